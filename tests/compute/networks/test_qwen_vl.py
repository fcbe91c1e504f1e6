"""Qwen3-VL: the vectors of texts, images and both are those of transformers' class, on every backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.checkpoints.reading import spec_of
from tests.models import packed_texts
from tests.qwen_vl import GmeReference, Reference, embedder_text, shown, write_gme, write_qwen3_vl
from tests.towers import media_of

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.backends.base import Backend, BackendOptions, TokenBatch
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.schema import Float32, TextOptions
from vectord.text.sequence import ReadRequest, Texts
from vectord.text.tokenizer import TextEncoder


@dataclass(frozen=True, slots=True)
class Model:
    spec: ModelSpec
    inputs: Sequence[Sequence[Any]]  # texts and Pillow images
    texts: Texts
    reference: Reference

    @property
    def expected(self) -> np.ndarray:
        return np.stack([self.reference.embed(parts) for parts in self.inputs])

    def rows(self, backend: Backend | None = None) -> Float32:
        """The images' rows in the texts."""
        assert self.texts.images is not None and self.spec.images is not None
        return run(self.spec.images, self.texts.images, backend)

    def placed(self, rows: np.ndarray) -> Texts:
        features = np.zeros((len(self.texts.ids), rows.shape[1]), np.float32)
        features[self.texts.all_type_ids == 1] = rows if self.texts.shown is None else rows[self.texts.shown]
        return replace(self.texts, features=features, images=None)


def run(spec: ModelSpec, texts: Texts, backend: Backend | None = None, output: Output = "dense") -> Float32:
    """backend: None: the reference op set, in float64."""
    packed = packed_texts(texts)
    if backend is None:
        network = Network(spec, open_checkpoint(spec.weights, spec.others), NumpyOps())
        return network(pack(packed), {output})[output]
    return backend.forward(TokenBatch(texts=packed, outputs=frozenset({output})), 0)[output]


def read(spec: ModelSpec, inputs: Sequence[Sequence[Any]], **options: Any) -> Texts:
    items = [[part if isinstance(part, str) else media_of(part) for part in parts] for parts in inputs]
    return TextEncoder(spec).read(ReadRequest(inputs=items, options=TextOptions(**options), truncate=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3_vl(tmp_path_factory.mktemp("qwen3-vl"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    images = shown()
    inputs = [["the quick brown fox"], [images[0]], [images[1], "a caption\n"], ["two ", images[2], " and", images[3]]]
    spec = spec_of(folder)
    return Model(spec, inputs, read(spec, inputs), Reference(folder))


@pytest.fixture(scope="module", params=["openvino", "torch"])
def backends(request: pytest.FixtureRequest, model: Model) -> Iterator[tuple[Backend, Backend]]:
    """Of the language model, and of its network of images."""
    assert model.spec.images is not None
    load = import_module(f"vectord.compute.backends.{request.param}").load
    options = BackendOptions(device="cpu", dtype="float32", threads=1)
    loaded = load(model.spec, options), load(model.spec.images, options)
    yield loaded
    for each in loaded:
        each.close()


def test_tokens_are_those_of_the_script(model: Model) -> None:
    """In its template, with a token for each row of an image."""
    for i, parts in enumerate(model.inputs):
        images = [part for part in parts if not isinstance(part, str)]
        expected = model.reference.inputs(embedder_text(parts), images)["input_ids"][0]
        np.testing.assert_array_equal(model.texts[i].ids, expected)


def test_vectors_equal_its_own_class(model: Model) -> None:
    """In float64, from texts and files to the vector of the last token."""
    found = run(model.spec, model.placed(model.rows()))
    assert np.abs(model.expected).max() > 1
    np.testing.assert_allclose(found, model.expected, atol=1e-5)


def test_texts_alone_have_plain_positions(model: Model) -> None:
    """Without coordinates, features, and the network of images; next to inputs with images nothing changes."""
    alone = read(model.spec, model.inputs[:1])
    assert alone.images is None and alone.coordinates is None and alone.features is None
    together = run(model.spec, model.placed(model.rows()))[:1]
    np.testing.assert_array_equal(run(model.spec, alone), together)


def test_backends_agree(model: Model, backends: tuple[Backend, Backend]) -> None:
    """In float32, together and alone."""
    texts, images = backends
    placed = model.placed(model.rows(images))
    np.testing.assert_allclose(run(model.spec, placed, texts), model.expected, atol=1e-4)
    for place in range(len(placed)):
        one = placed.take(np.array([place], np.int32))
        np.testing.assert_allclose(run(model.spec, one, texts), model.expected[[place]], atol=1e-4)


def test_reranker_scores_equal_its_script(tmp_path: Path) -> None:
    """The logit of "yes" less that of "no", of a query with each document; both may have texts and images."""
    folder = write_qwen3_vl(tmp_path, head=True)
    spec, images = spec_of(folder, name="Qwen/Qwen3-VL-Reranker-2B"), shown()
    query: list[Any] = ["the quick ", images[0]]
    documents = [["a lazy dog"], [images[1]], ["many birds ", images[2], " sing"]]
    items = [[part if isinstance(part, str) else media_of(part) for part in parts] for parts in [query, *documents]]
    texts = TextEncoder(spec).read(
        ReadRequest(inputs=items[1:], query=items[0], options=TextOptions(), truncate=True, instruction="Find birds")
    )
    model = Model(spec, documents, texts, Reference(folder))
    logits = run(spec, model.placed(model.rows()), output="scores")
    expected = [model.reference.logit(query, document, "Find birds") for document in documents]
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], expected, atol=1e-5)
    (query_length, document), *others = texts.parts
    assert {parts[0] for parts in others} == {query_length}
    assert document.kept == len(model.reference.tokenizer("a lazy dog").input_ids)


def test_gme_equals_the_steps_of_its_script(tmp_path: Path) -> None:
    """In its template, with the images resized twice and plain positions; an instruction stays unchanged."""
    folder, images = write_gme(tmp_path), shown()
    spec, inputs = spec_of(folder), [["the quick brown fox"], [images[0]], [images[1], "a caption"], [images[2], "x"]]
    reference = GmeReference(folder)
    for prompt, system in ((None, "You are a helpful assistant."), ("Find the fox", "Find the fox")):
        model = Model(spec, inputs, read(spec, inputs, prompt=prompt), reference)
        expected = np.stack([reference.embed(parts, system) for parts in inputs])
        np.testing.assert_allclose(run(spec, model.placed(model.rows())), expected, atol=1e-5)


def test_each_setting_of_both_sections(tmp_path: Path) -> None:
    """Other layers, heads, sizes, taps, sections of the rotation and activations, at once."""
    folder = write_qwen3_vl(
        tmp_path,
        text={"num_hidden_layers": 2, "rms_norm_eps": 0.01, "attention_bias": True, "head_dim": 12}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [3, 1, 2]}},
        depth=2,
        num_heads=4,
        intermediate_size=20,
        hidden_act="gelu",
        deepstack_visual_indexes=[1],
        num_position_embeddings=16,
    )
    spec, inputs = spec_of(folder), [["a lazy dog ", *shown()[:2]]]
    model = Model(spec, inputs, read(spec, inputs), Reference(folder))
    np.testing.assert_allclose(run(spec, model.placed(model.rows())), model.expected, atol=1e-5)
