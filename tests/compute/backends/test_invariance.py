"""The law of every backend and kind of model: a text has the same numbers alone and with any others in its batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import numpy as np
import pytest
from tests.compute.backends.models import (
    write_all_kinds,
    write_classifier,
    write_cross_encoder,
    write_decoder,
    write_plain,
    write_splade,
    write_static,
    write_tagger,
    write_yes_no,
)
from tests.compute.backends.test_conformance import NOT_BACKENDS
from tests.compute.backends.test_onnx import bert_config, export, states
from tests.models import pack_texts, random_texts, randomize, read_tiny_spec

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.compute import backends
from vectord.compute.backends.base import POOLED, Answers, BackendOptions, TokenBatch
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.schema import Float32

# More sizes than a plan has groups of lengths, so that texts of one group have padding.
LENGTHS = (5, 1, 300, 17, 2, 200, 60, 33, 400, 120, 90)
KINDS: Mapping[str, Callable[[Path], ModelSpec]] = {
    "dense": write_plain,
    "last token": write_decoder,
    "sparse": write_splade,
    "three vectors with ColBERT": write_all_kinds,
    "cross-encoder": write_cross_encoder,
    "classifier": write_classifier,
    "token classifier": write_tagger,
    "yes or no": write_yes_no,
}
NETWORKS = ("numpy", "fake", "openvino", "torch", "transformers")
NOT_SERVED = {("transformers", "sparse"), ("transformers", "yes or no")}
PACKED = tuple(
    ("openvino", kind, dtype) for kind in ("dense", "last token") for dtype in ("int8-weights", "int4-weights")
)


class Summing:
    """An operator's class."""

    def __init__(self, folder: Path, device: str) -> None: ...

    def embed(self, texts: list[np.ndarray]) -> np.ndarray:
        return np.array([[len(ids), ids.sum(), ids[0]] for ids in texts], np.float32)


def write_handled(folder: Path) -> ModelSpec:
    (folder / "config.json").write_text('{"model_type": "someones_own", "hidden_size": 3}')
    return read_tiny_spec(folder, outputs=frozenset({"dense"}), handler=f"{__name__}.Summing")


def write_graph(folder: Path) -> ModelSpec:
    from transformers import BertModel

    export(randomize(BertModel(bert_config(), add_pooling_layer=False)), states, "last_hidden_state", folder)
    return read_tiny_spec(folder, weights=(folder / "onnx/model.onnx",), max_tokens=64)


def write_graph_of_scores(folder: Path) -> ModelSpec:
    from transformers import BertForSequenceClassification

    model = randomize(BertForSequenceClassification(bert_config(num_labels=1)))
    export(model, lambda model, ids, mask, types: model(ids, mask, types).logits, "logits", folder)
    facts = {"outputs": frozenset({"scores"}), "pooling": None, "labels": ("0",), "max_tokens": 64}
    return read_tiny_spec(folder, weights=(folder / "onnx/model.onnx",), **facts)


OTHERS: Mapping[tuple[str, str], Callable[[Path], ModelSpec]] = {
    ("static", "table"): write_static,
    ("handler", "dense"): write_handled,
    **{(name, "dense"): write_graph for name in ("onnx", "onnxruntime")},
    **{(name, "cross-encoder"): write_graph_of_scores for name in ("onnx", "onnxruntime")},
}
CASES = [
    *((name, kind, "float32") for name in NETWORKS for kind in KINDS if (name, kind) not in NOT_SERVED),
    *((*case, "float32") for case in OTHERS),
    *PACKED,
]


def load(name: str, spec: ModelSpec, dtype: str) -> tuple[Callable[[TokenBatch], Answers], Callable[[], None]]:
    """The forward pass, and its end."""
    if name == "numpy":
        network = Network(spec, open_checkpoint(spec.weights), NumpyOps())
        return lambda batch: network(pack(batch.texts), batch.outputs), lambda: None
    loaded = import_module(f"{backends.__name__}.{name}").load(
        spec, BackendOptions(device="cpu", dtype=dtype, threads=1)
    )
    return partial(loaded.forward, stream=0), loaded.close


def outputs_of(forward: Callable[[TokenBatch], Answers], spec: ModelSpec, *texts: list[int]) -> list[list[Float32]]:
    """Each text's rows of each output. The second half of a text has other token types, as a pair's second text."""
    types = np.concatenate([np.arange(len(text)) >= (len(text) + 1) // 2 for text in texts]).astype(np.int32)
    packed = pack_texts(*texts, type_ids=types * (spec.config.get("type_vocab_size", 0) == 2))
    answers = forward(TokenBatch(texts=packed, outputs=spec.outputs, alone=len(texts) == 1))
    bounds = packed.cu_seqlens[1:-1]
    rows = [np.split(answers[name], len(texts) if name in POOLED else bounds) for name in sorted(spec.outputs)]
    return [list(of_text) for of_text in zip(*rows, strict=True)]


def test_every_backend_has_cases() -> None:
    """A new file in the folder of backends needs one."""
    assert {module.name for module in iter_modules(backends.__path__)} - NOT_BACKENDS == {
        name for name, _, _ in CASES
    } - {"numpy"}


@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_other_texts_of_a_batch_change_nothing(case: tuple[str, str, str], tmp_path: Path) -> None:
    """Alone, and before and after longer and shorter texts; in both orders of the batch."""
    name, kind, dtype = case
    spec = OTHERS.get((name, kind), KINDS.get(kind, write_plain))(tmp_path)
    forward, close = load(name, spec, dtype)
    texts = random_texts([length for length in LENGTHS if length <= spec.max_tokens])
    alone = [outputs_of(forward, spec, text)[0] for text in texts]
    together, reverse = outputs_of(forward, spec, *texts), outputs_of(forward, spec, *texts[::-1])[::-1]
    close()
    for i, wanted in enumerate(alone):
        for number, rows in enumerate(wanted):
            scale = max(1.0, float(np.abs(rows).max()))
            for batch in (together, reverse):
                np.testing.assert_allclose(batch[i][number], rows, atol=2e-5 * scale, err_msg=f"text {i}")
