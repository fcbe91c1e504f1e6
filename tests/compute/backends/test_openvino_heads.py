"""Heads on OpenVINO in bfloat16 compute in float32: pooling, layers, norms and activations, of every kind of model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import LayerNorm
from tests.checkpoints.reading import spec_of
from tests.compute.networks import tiny_decoders
from tests.compute.networks.case import texts_of
from tests.compute.networks.test_heads_scores import FAMILIES, TOKEN_FAMILIES, scoring_spec
from tests.compute.networks.test_heads_tokens import DIMENSIONS, write_linear
from tests.compute.networks.tiny_encoders import CASES, write_tiny
from tests.models import POOLING_NAMES, batch_of, pack_texts, read_tiny_spec, write_sentence_bert

from vectord.checkpoints.activations import FORMULAS
from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import Colbert, ModelSpec, Output, ScoreActivation, YesNo
from vectord.compute.backends.openvino_plans import Compiler
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.compute.ops.openvino import OpenvinoOps, ov
from vectord.compute.processor import multiplies_bfloat16

pytestmark = pytest.mark.skipif(not multiplies_bfloat16(), reason="bfloat16 is emulated on this processor")

TEXTS = texts_of(9, 1, 40, 2, 17)

Make = Callable[[Path], ModelSpec]


def dense(pooling: Any = "mean", activation: ScoreActivation | None = None) -> Make:
    """Two Dense modules after the pooling."""

    def make(folder: Path) -> ModelSpec:
        spec = read_tiny_spec(
            write_sentence_bert(folder, pooling=pooling, dense=(16, 12)),
            outputs=frozenset({"dense"}),
            pooling=pooling,
            max_tokens=64,
        )
        first, second = spec.dense_modules
        return replace(spec, dense_modules=(replace(first, activation=activation or first.activation), second))

    return make


def modules_after_pooling(folder: Path) -> ModelSpec:
    further = [Normalize(), Dense(32, 16, activation_function=torch.nn.PReLU(), use_residual=True), LayerNorm(16)]
    further += [Dense(16, 16, activation_function=torch.nn.GLU())]
    spec = spec_of(write_sentence_bert(folder, further=further))
    return replace(spec, outputs=frozenset({"dense"}), max_tokens=64)


def classifier(name: str) -> Make:
    architecture, family, facts = FAMILIES[name]

    def make(folder: Path) -> ModelSpec:
        written = write_tiny(folder, family, "ForSequenceClassification", num_labels=3, **facts)
        return scoring_spec(written, architecture, 3)

    return make


def token_classifier(name: str) -> Make:
    architecture, family, facts = TOKEN_FAMILIES[name]

    def make(folder: Path) -> ModelSpec:
        written = write_tiny(folder, family, "ForTokenClassification", num_labels=5, **facts)
        labels = tuple(f"LABEL_{i}" for i in range(5))
        return CASES[architecture].spec(written, outputs=frozenset({"token_scores"}), token_labels=labels)

    return make


def yes_no(name: str) -> Make:
    def make(folder: Path) -> ModelSpec:
        judge = YesNo(prefix="", body="", suffix="", instruction="", token_ids=(21, 4))
        written = tiny_decoders.write(name, folder, head="AutoModelForCausalLM")
        return tiny_decoders.CASES[name].spec(written, outputs=frozenset({"scores"}), yes_no=judge)

    return make


def colbert(folder: Path) -> ModelSpec:
    path = folder / "colbert_linear.pt"
    written = write_tiny(folder, "Bert")
    write_linear(path, DIMENSIONS)
    return CASES["bert"].spec(
        written, outputs=frozenset({"colbert"}), colbert=Colbert(dimensions=DIMENSIONS, linear=path)
    )


def colbert_of_dense_modules(folder: Path) -> ModelSpec:
    spec = dense()(folder)
    late = Colbert(dimensions=12, dense_modules=spec.dense_modules)
    return replace(spec, outputs=frozenset({"colbert"}), dense_modules=(), pooling=None, colbert=late)


def lexical(folder: Path) -> ModelSpec:
    path = folder / "sparse_linear.pt"
    written = write_tiny(folder, "Bert")
    write_linear(path, 1)
    return CASES["bert"].spec(written, outputs=frozenset({"lexical"}), lexical=path)


HEADS: dict[str, Make] = {
    **{f"dense, {pooling}": dense(pooling) for pooling in (*POOLING_NAMES, ("max", "mean"))},
    **{f"dense, {activation}": dense(activation=activation) for activation in FORMULAS},
    "dense, modules after pooling": modules_after_pooling,
    **{f"classifier, {name}": classifier(name) for name in FAMILIES},
    **{f"token classifier, {name}": token_classifier(name) for name in ("bert", "modernbert cls")},
    **{f"yes or no, {name}": yes_no(name) for name in ("gemma", "gemma2", "qwen3")},
    "colbert": colbert,
    "colbert of Dense modules": colbert_of_dense_modules,
    "lexical": lexical,
}


def answer_of_head(spec: ModelSpec, states: np.ndarray, output: Output) -> np.ndarray:
    """The head alone, in float64."""
    network = Network(spec, open_checkpoint(spec.weights), NumpyOps())
    network._body = lambda tokens: states.astype(np.float64)  # type: ignore[assignment, misc]
    return np.asarray(network(pack(pack_texts(*TEXTS)), {output})[output])


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_a_head_rounds_nothing(tmp_path: Path, make: Make) -> None:
    """Its results are those of float64 for the same states of a body in bfloat16."""
    spec = make(tmp_path)
    (output,) = spec.outputs
    plan = Compiler(replace(spec, outputs=spec.outputs | {"tokens"}), ov.Core(), "bf16", threads=1).compile(1, groups=2)
    answers = plan.run(batch_of(*TEXTS, outputs=(output, "tokens")), 0)
    want = answer_of_head(spec, answers["tokens"], output)
    np.testing.assert_allclose(answers[output], want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", [name for name in HEADS if name.partition(", ")[2] not in FORMULAS])
def test_a_head_is_float32_and_its_body_is_not(tmp_path: Path, name: str) -> None:
    """As it is served, without an output of states: float32 from the first layer of the head on, and only there."""
    compiler = Compiler(HEADS[name](tmp_path), ov.Core(), "bf16", threads=1)
    ops = OpenvinoOps(bfloat16=True)
    compiled = compiler.compile_model(compiler.graph(ops, groups=2).model, streams=1)
    facts = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    kinds = [(info["layerType"].astype(str), info["primitiveType"].astype(str)) for info in facts]
    products = [i for i, (layer, kernel) in enumerate(kinds) if layer == "FullyConnected"]
    head = next(i for i in products if kinds[i][1].endswith("_f32"))
    assert all(kinds[i][1].endswith("_bf16") for i in products if i < head)
    assert not [kind for kind in kinds[head:] if kind[1].endswith("_bf16")]
