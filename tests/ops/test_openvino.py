"""What the OpenVINO op set promises beyond the conformance of all op sets: few shapes, no copies, no calls home."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.artifacts.checkpoint import Weight
from vectord.ops.base import AttentionSpec, Tokens
from vectord.ops.openvino import LENGTH_STEP, OpenvinoOps, build, ov, pack

WIDTH = 8
SPEC = AttentionSpec(heads=2, head_size=4)


def pack_lengths(*lengths: int, groups: int = 4) -> dict[str, np.ndarray]:
    cu_seqlens = np.cumsum([0, *lengths], dtype=np.int32)
    ids = np.arange(1, cu_seqlens[-1] + 1, dtype=np.int32)
    return pack(ids, np.ones_like(ids), cu_seqlens, groups)


def table(rows: int = 100) -> Weight:
    return Weight("table", "F32", np.random.default_rng(0).standard_normal((rows, WIDTH)).astype(np.float32))


def names(model: ov.Model) -> set[str]:
    return {port.get_any_name() for port in model.inputs}


@pytest.mark.parametrize(
    ("tokens", "rows"),
    [(1, 16), (16, 16), (17, 32), (48, 48), (49, 64), (65, 80), (256, 256), (257, 320), (1000, 1024)],
)
def test_rows_are_rounded_up(tokens: int, rows: int) -> None:
    """To 16 up to 256, so that a lone text costs what it is, then to 64, so that there are few shapes."""
    inputs = pack_lengths(tokens)
    for name in ("ids", "type_ids", "positions", "unpack"):
        assert inputs[name].shape == (rows,)
    np.testing.assert_array_equal(inputs["ids"][:tokens], np.arange(1, tokens + 1))
    assert not inputs["ids"][tokens:].any()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.integers(1, 5))
def test_inputs_have_the_shapes_of_the_graph(lengths: list[int], groups: int) -> None:
    """Every group has rows and a mask of one shape, of a rounded length, in use or not; positions restart at 0."""
    inputs = pack_lengths(*lengths, groups=groups)
    texts = 0
    for g in range(groups):
        count, length = inputs[f"rows{g}"].shape
        assert inputs[f"mask{g}"].shape == (count, 1, 1, length)
        assert length % LENGTH_STEP == 0
        texts += count
    assert texts == len(lengths)
    assert f"rows{groups}" not in inputs
    np.testing.assert_array_equal(
        inputs["positions"][: sum(lengths)], np.concatenate([np.arange(length) for length in lengths])
    )
    assert {array.dtype for array in inputs.values()} == {np.dtype(np.int32), np.dtype(np.float32)}
    assert all(array.flags.c_contiguous for array in inputs.values())


def test_graph_asks_only_for_what_the_network_uses() -> None:
    """A network without types or attention has no inputs for them."""
    ops = OpenvinoOps()

    def embed(tokens: Tokens[ov.Node]) -> ov.Node:
        return ops.embed(ops.constant(table()), tokens.ids)

    assert names(build(embed, groups=4)) == {"ids"}
    assert names(build(lambda tokens: ops.first(embed(tokens), tokens), groups=4)) == {"ids", "starts"}


def attend(ops: OpenvinoOps) -> Callable[[Tokens[ov.Node]], ov.Node]:
    def network(tokens: Tokens[ov.Node]) -> ov.Node:
        x = ops.embed(ops.constant(table()), tokens.ids)
        return ops.mean(ops.attention(x, x, x, tokens, SPEC), tokens)

    return network


def run(network: Callable[[Tokens[ov.Node]], ov.Node], inputs: dict[str, np.ndarray], groups: int) -> np.ndarray:
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = ov.Core().compile_model(build(network, groups), "CPU", config)
    return np.array(compiled([inputs[port.get_any_name()] for port in compiled.inputs])[0])


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_number_of_groups_changes_nothing(groups: int) -> None:
    """How texts are grouped is a matter of speed alone, groups that stay empty included."""
    ops, lengths = OpenvinoOps(), (3, 20, 1, 40)
    want = run(attend(ops), pack_lengths(*lengths), 4)
    np.testing.assert_allclose(run(attend(ops), pack_lengths(*lengths, groups=groups), groups), want, atol=1e-5)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_constant_lies_over_the_checkpoint(dtype: str) -> None:
    """A constant reads the weight's own memory: 2 GB of weights are not copied to make a graph."""
    kinds = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
    array = np.zeros((4, 3), kinds[dtype])
    node = OpenvinoOps().constant(Weight("w", dtype, array))
    constant = node if dtype == "F32" else node.input_value(0).get_node()
    assert node.get_element_type() == ov.Type.f32
    assert constant.get_element_type() == {"F32": ov.Type.f32, "F16": ov.Type.f16, "BF16": ov.Type.bf16}[dtype]
    array[:] = 7
    assert constant.get_tensor_view().data.tobytes() == array.tobytes()


def test_constants_memory_lives_as_long_as_the_op_set() -> None:
    """OpenVINO keeps no reference to the memory it shares, so the op set must."""
    array = np.ones((4, 3), np.float32)
    ops = OpenvinoOps()
    before = sys.getrefcount(array)
    ops.constant(Weight("w", "F32", array))
    assert sys.getrefcount(array) > before


CALLS_HOME = """
import os, sys
WATCHED = ("socket.", "urllib.", "subprocess.", "os.exec", "os.posix_spawn")
sys.addaudithook(lambda event, _: event.startswith(WATCHED) and os.write(1, (event + chr(10)).encode()))
import numpy as np
from vectord.ops.openvino import build, ov
compiled = ov.Core().compile_model(build(lambda tokens: tokens.ids, groups=1), "CPU")
compiled([np.zeros(16, np.int32)])
import socket; socket.socket().close()  # the hook is known to work
"""


def test_openvino_calls_nobody(tmp_path: Path) -> None:
    """Left alone, importing openvino reports to Google Analytics and writes to the user's home. Not here."""
    environ = {**os.environ, "HOME": str(tmp_path), "CI": ""}  # it is silent where CI is "true"
    result = subprocess.run(
        [sys.executable, "-c", CALLS_HOME], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == ["socket.__new__"]  # our own, at the end
    assert not list(tmp_path.iterdir())
