"""T5Gemma 2: its scores are those of transformers' class after the script's steps, on every backend."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from msgspec.structs import replace
from tests.checkpoints.reading import spec_of
from tests.models import packed_texts
from tests.t5gemma2 import NAME, Reference, write_t5gemma2

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.backends.base import Backend, BackendOptions, TokenBatch
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.schema import Float32, TextOptions
from vectord.text.sequence import ReadRequest, Texts
from vectord.text.tokenizer import TextEncoder

QUERY = "the quick fox"
PASSAGES = ["a", "the lazy dog sleeps", "many birds sing in the morning, " * 9]  # some longer than the window


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return spec_of(write_t5gemma2(tmp_path_factory.mktemp("t5gemma2")), name=NAME)


@pytest.fixture(scope="module")
def reference(spec: ModelSpec) -> Reference:
    return Reference(spec.folder)


@pytest.fixture(scope="module")
def texts(spec: ModelSpec) -> Texts:
    request = ReadRequest(inputs=PASSAGES, query=QUERY, options=TextOptions(), truncate=True)
    return TextEncoder(spec).read(request)


def run(spec: ModelSpec, texts: Texts, output: Output, backend: Backend | None = None) -> Float32:
    """backend: None: the reference op set, in float64."""
    packed = packed_texts(texts)
    if backend is None:
        network = Network(spec, open_checkpoint(spec.weights, spec.others), NumpyOps())
        return network(pack(packed), {output})[output]
    return backend.forward(TokenBatch(texts=packed, outputs=frozenset({output})), 0)[output]


def scores(spec: ModelSpec, texts: Texts, backends: tuple[Backend | None, Backend | None]) -> np.ndarray:
    assert spec.images is not None and texts.images is not None
    rows = run(spec.images, texts.images, "dense", backends[1])
    features = np.zeros((len(texts.ids), rows.shape[1]), np.float32)
    features[texts.all_type_ids == 1] = rows
    logits = run(spec, replace(texts, features=features, images=None), "scores", backends[0])
    return np.asarray(1 / (1 + np.exp(logits[:, 0] - logits[:, 1])))


def test_rows_are_means_of_the_encoders_states(spec: ModelSpec, texts: Texts, reference: Reference) -> None:
    assert spec.images is not None and texts.images is not None
    expected = np.concatenate([reference.rows(passage) for passage in PASSAGES])
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(run(spec.images, texts.images, "dense"), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["numpy", "openvino", "torch"])
def test_scores_equal_its_own_class(name: str, spec: ModelSpec, texts: Texts, reference: Reference) -> None:
    """Together and alone."""
    backends: tuple[Backend | None, Backend | None] = None, None
    if name != "numpy":
        assert spec.images is not None
        load = import_module(f"vectord.compute.backends.{name}").load
        options = BackendOptions(device="cpu", dtype="float32", threads=1)
        backends = load(spec, options), load(spec.images, options)
    expected = [reference.score(QUERY, passage) for passage in PASSAGES]
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(scores(spec, texts, backends), expected, atol=1e-5)
    for backend in backends:
        if backend is not None:
            backend.close()
