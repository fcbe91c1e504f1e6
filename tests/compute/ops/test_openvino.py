"""The OpenVINO op set's own promises: few shapes, no copies, no network access."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.models import pack_texts

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.files.weight import ComputedWeight
from vectord.checkpoints.spec import Output
from vectord.compute.ops.base import AttentionSpec, PackedTexts, Tokens
from vectord.compute.ops.openvino import (
    WORDS_AT_ONCE,
    OpenvinoGraph,
    OpenvinoOps,
    build,
    ov,
)

WIDTH = 8
SPEC = AttentionSpec(heads=2, head_size=4)
WINDOWED = replace(SPEC, window=3)
CAUSAL = replace(SPEC, causal=True)

Answers = dict[Output, ov.Node]


def texts_of(*lengths: int, **options: Any) -> PackedTexts:
    """Ids that count from 1, all of type 1."""
    total = sum(lengths)
    ids, types = np.arange(1, total + 1, dtype=np.int32), np.ones(total, np.int32)
    return pack_texts(*([0] * length for length in lengths), **{"ids": ids, "type_ids": types, **options})


def table(rows: int = 2000) -> Weight:
    return Weight("table", "F32", np.random.default_rng(0).standard_normal((rows, WIDTH)).astype(np.float32))


def attend(ops: OpenvinoOps, *specs: AttentionSpec) -> Callable[[Tokens[ov.Node]], Answers]:
    """A network of several attentions, and the meaning of each kind of input."""
    words = ops.constant(table())

    def network(tokens: Tokens[ov.Node]) -> Answers:
        x = ops.embed(words, tokens.ids)
        x = ops.add(ops.add(x, ops.embed(words, tokens.type_ids)), ops.embed(words, tokens.positions))
        for spec in specs:
            x = ops.attention(x, x, x, tokens, spec)
        return {"dense": ops.mean(x, tokens), "splade": ops.max(x, tokens), "tokens": x}

    return network


def inputs_of(graph: OpenvinoGraph, texts: PackedTexts) -> dict[str, np.ndarray]:
    return {name: one.data for name, one in zip(graph.inputs, graph.pack(texts, ()), strict=True)}


def run(graph: OpenvinoGraph, texts: PackedTexts, outputs: Collection[Output] = ()) -> dict[Output, np.ndarray]:
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    answers = ov.Core().compile_model(graph.model, "CPU", config)(graph.pack(texts, outputs))
    return {output: np.array(answers[i]) for i, output in enumerate(graph.outputs)}


@pytest.mark.parametrize(
    ("tokens", "rows"),
    [(1, 4), (12, 12), (17, 20), (33, 40), (64, 64), (65, 80), (256, 256), (257, 320), (1000, 1024)],
)
def test_rows_are_rounded_up(tokens: int, rows: int) -> None:
    """To 4 up to 32 tokens, so that a query costs little, and to more for longer batches, for few shapes."""
    inputs = inputs_of(build(attend(OpenvinoOps(), SPEC), groups=4), texts_of(tokens))
    for name in ("ids", "type_ids", "positions", "unpack"):
        assert inputs[name].shape == (rows,)
    np.testing.assert_array_equal(inputs["ids"][:tokens], np.arange(1, tokens + 1))
    assert not inputs["ids"][tokens:].any()


def test_the_layout_of_a_single_text_is_kept_and_right() -> None:
    """Only of a whole text that attends to all of itself. The runtime has not changed it, and few are kept."""
    graph = build(attend(OpenvinoOps(), SPEC, WINDOWED), groups=2)

    whole = texts_of(9)
    others = [
        whole,
        replace(whole, spans=np.array([[2, 5]], np.int32)),
        replace(whole, keys=np.array([4], np.int32)),
        replace(whole, adapters=np.array([0], np.int32), type_ids=np.ones_like(whole.type_ids)),
        texts_of(4, 5),
        texts_of(9, 2),
    ]
    for texts in others * 2:
        run(graph, texts)
        fresh = build(attend(OpenvinoOps(), SPEC, WINDOWED), groups=2)
        for name, got, want in zip(graph.inputs, graph.pack(texts, ()), fresh.pack(texts, ()), strict=True):
            np.testing.assert_array_equal(got.data, want.data, err_msg=name)
    first, again = (graph.pack(texts_of(20), ()) for _ in range(2))
    assert (
        sum(one is other for one, other in zip(first, again, strict=True)) == len(graph.inputs) - 2
    )  # not ids, type_ids


@pytest.mark.parametrize("specs", [(SPEC,), (CAUSAL,), (WINDOWED, SPEC)], ids=["all", "causal", "windows"])
def test_layers_share_their_inputs_and_masks(specs: Sequence[AttentionSpec]) -> None:
    """Repeating the layers adds no input and computes no mask again."""

    def comparisons(graph: OpenvinoGraph) -> int:
        return sum(node.get_type_name() in {"Greater", "Less"} for node in graph.model.get_ops())

    once, twice = (build(attend(OpenvinoOps(), *specs * rounds), groups=2) for rounds in (1, 2))
    assert set(twice.inputs) == set(once.inputs)
    assert len(twice.inputs) == len(set(twice.inputs))
    assert comparisons(twice) == comparisons(once)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("specs", [(SPEC,), (WINDOWED, CAUSAL)], ids=["all", "windows"])
def test_the_number_of_groups_changes_no_result(groups: int, specs: Sequence[AttentionSpec]) -> None:
    """Groups are for speed only, including empty ones."""
    texts = texts_of(3, 20, 1, 40)
    ops = OpenvinoOps()
    got, want = (run(build(attend(ops, *specs), some), texts) for some in (groups, 4))
    for output, rows in want.items():
        np.testing.assert_allclose(got[output], rows, atol=1e-5, err_msg=output)


def test_token_outputs_are_returned_only_on_request() -> None:
    """Those of the texts' tokens, without padding; the other outputs do not change."""
    ops, texts = OpenvinoOps(), texts_of(3, 20)
    graph = build(attend(ops, SPEC), 2, by_token={"tokens"})
    assert graph.outputs == ("dense", "splade", "tokens")
    silent, asked = run(graph, texts, ("dense",)), run(graph, texts, ("tokens",))
    assert silent["tokens"].shape == (0, WIDTH)
    assert asked["tokens"].shape == (23, WIDTH)
    np.testing.assert_allclose(asked["tokens"], run(build(attend(ops, SPEC), 2), texts)["tokens"][:23], atol=1e-6)
    np.testing.assert_array_equal(asked["dense"], silent["dense"])


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_constant_lies_over_the_checkpoint(dtype: str) -> None:
    """It shares the weight's memory: 2 GB of weights are not copied for a graph."""
    kinds = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
    array = np.zeros((4, 3), kinds[dtype])
    node = OpenvinoOps().constant(Weight("w", dtype, array))
    constant = node if dtype == "F32" else node.input_value(0).get_node()
    assert node.get_element_type() == ov.Type.f32
    assert constant.get_element_type() == {"F32": ov.Type.f32, "F16": ov.Type.f16, "BF16": ov.Type.bf16}[dtype]
    array[:] = 7
    assert constant.get_tensor_view().data.tobytes() == array.tobytes()


@pytest.mark.parametrize("bfloat16", [True, False])
def test_computed_matrices_are_held_in_the_type_of_the_plan(bfloat16: bool) -> None:
    """Quantized weights of a file are not held in 32 bits for a plan that multiplies in 16; vectors are."""
    ops = OpenvinoOps(bfloat16=bfloat16)
    for shape, expected in (((4, 3), ov.Type.bf16 if bfloat16 else ov.Type.f32), ((4,), ov.Type.f32)):
        node = ops.constant(ComputedWeight("w", shape, lambda shape=shape: [np.ones(shape, np.float32)]))
        constant = node.input_value(0).get_node() if node.get_input_size() else node
        assert constant.get_element_type() == expected


def test_words_are_cut_over_the_same_memory() -> None:
    """pooled_linear reads the vocabulary in parts of the weight's own memory, without a second table."""
    ops, words = OpenvinoOps(), 2 * WORDS_AT_ONCE + 5
    matrix, bias = np.zeros((words, WIDTH), np.float32), np.zeros(words, np.float32)

    def network(tokens: Tokens[ov.Node]) -> Answers:
        x = ops.embed(ops.constant(table()), tokens.ids)
        constants = (ops.constant(Weight(f"{array.ndim}", "F32", array)) for array in (matrix, bias))
        return {"splade": ops.pooled_linear(x, *constants, lambda each: ops.max(each, tokens))}

    graph = build(network, groups=2)
    matrix[:], bias[:] = 7, 7
    constants = [node for node in graph.model.get_ops() if node.get_type_name() == "Constant"]
    sevens = [node.get_output_shape(0) for node in constants if (node.data == 7).all()]
    assert sorted(shape[0] for shape in sevens if len(shape) == 2) == [5, WORDS_AT_ONCE, WORDS_AT_ONCE]
    assert sum(shape[0] for shape in sevens if len(shape) == 1) == words


CALLS_HOME = """
import os, sys
WATCHED = ("socket.", "urllib.", "subprocess.", "os.exec", "os.posix_spawn")
sys.addaudithook(lambda event, _: event.startswith(WATCHED) and os.write(1, (event + chr(10)).encode()))
import numpy as np
from vectord.compute.ops.openvino import build, ov
graph = build(lambda tokens: {"tokens": tokens.ids}, groups=1)
compiled = ov.Core().compile_model(graph.model, "CPU")
compiled([np.zeros(16, np.int32)])
import socket; socket.socket().close()  # the hook is known to work
"""


def test_openvino_contacts_nobody(tmp_path: Path) -> None:
    """By itself, importing openvino reports to Google Analytics and writes to the user's home."""
    environ = {**os.environ, "HOME": str(tmp_path), "CI": ""}  # it is silent if CI is "true"
    result = subprocess.run(
        [sys.executable, "-c", CALLS_HOME], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == ["socket.__new__"]  # our own import, at the end
    assert not list(tmp_path.iterdir())
