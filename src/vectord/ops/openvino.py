"""The op set that builds an OpenVINO graph: what the CPU backend runs.

The ops make nodes, nothing is computed here: `build` calls a network once with symbolic tokens and returns the
model to compile, `pack` makes that model's inputs for one batch. Attention runs by length groups (ops/groups.py).
Called by backends/openvino.py; `pack` on the thread that calls `forward`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vectord.artifacts.checkpoint import Weight
from vectord.ops.base import Activation, AttentionSpec, Tokens
from vectord.ops.groups import length_groups, unpack_rows


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Keep `import openvino` from calling home: nothing may leave the machine.

    The package ends by importing its model converter, if that is there, and the converter's import reports itself to
    Google Analytics and writes to the user's home (openvino/tools/ovc/__init__.py of 2026.4). None makes Python
    raise the ImportError that the package expects. It also saves 60 ms.
    """
    converter = "openvino.tools.ovc"
    hide = converter not in sys.modules
    if hide:
        sys.modules[converter] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hide:
            del sys.modules[converter]


with _without_telemetry():
    import openvino as ov  # type: ignore[import-untyped]
    import openvino.opset16 as op  # type: ignore[import-untyped]

__all__ = ["LENGTH_STEP", "Layout", "OpenvinoOps", "build", "ov", "pack"]  # ov: nobody else imports openvino

Int32 = npt.NDArray[np.int32]
MASKED = np.float32(-1e30)  # added to the score of a padded place; finite, so a row of padding stays finite
LENGTH_STEP = 16  # places a group's length is rounded up to: the runtime keeps memory for every shape it meets
_TYPES = {"F32": ov.Type.f32, "F16": ov.Type.f16, "BF16": ov.Type.bf16}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where texts begin and end, as the graph's parameters. G groups of (n, L) places; sizes differ by group."""

    starts: ov.Node  # (N,) first row of each text
    ends: ov.Node  # (N,) last row of each text
    rows: tuple[ov.Node, ...]  # G x (n, L) row numbers into (T, H)
    masks: tuple[ov.Node, ...]  # G x (n, 1, 1, L) 0 on a text's places, MASKED on padding
    unpack: ov.Node  # (T,) place of each row among the groups' places
    members: ov.Node  # (R,) 0, 1 ... R - 1: the rows that belong to a text, R <= T


def build(network: Callable[[Tokens[ov.Node]], ov.Node], groups: int) -> ov.Model:
    """The graph of one network: `network` is called once, its answer becomes the only output, in float32.

    groups: how many length groups attention may use; each costs a little in compile time and in every forward.
    """
    parameters: list[ov.Node] = []

    def parameter(name: str, shape: list[int], dtype: npt.DTypeLike = np.int32) -> ov.Node:
        node = op.parameter(shape, dtype, name=name)
        node.output(0).set_names({name})
        parameters.append(node)
        return node

    layout = Layout(
        starts=parameter("starts", [-1]),
        ends=parameter("ends", [-1]),
        rows=tuple(parameter(f"rows{g}", [-1, -1]) for g in range(groups)),
        masks=tuple(parameter(f"mask{g}", [-1, 1, 1, -1], np.float32) for g in range(groups)),
        unpack=parameter("unpack", [-1]),
        members=parameter("members", [-1]),
    )
    tokens = Tokens(
        ids=parameter("ids", [-1]),
        type_ids=parameter("type_ids", [-1]),
        positions=parameter("positions", [-1]),
        layout=layout,
    )
    answer = op.convert(network(tokens), "f32")
    used = [node for node in parameters if node.output(0).get_target_inputs()]
    return ov.Model([answer], used, "network")


def pack(ids: Int32, type_ids: Int32, cu_seqlens: Int32, groups: int) -> dict[str, npt.NDArray[np.generic]]:
    """One batch as the inputs of a graph that was built with as many groups, by parameter name.

    ids, type_ids (T,), cu_seqlens (N + 1,). Rows are added up to a round number (they belong to no text), and
    groups that the batch does not need get no texts.
    """
    total = int(cu_seqlens[-1])
    starts, ends = cu_seqlens[:-1], cu_seqlens[1:] - 1
    rows = _round_rows(total)
    found = length_groups(cu_seqlens, groups, LENGTH_STEP)
    members = np.arange(total, dtype=np.int32)
    inputs: dict[str, npt.NDArray[np.generic]] = {
        "ids": _extend(ids, rows),
        "type_ids": _extend(type_ids, rows),
        "positions": _extend(members - np.repeat(starts, ends - starts + 1), rows),
        "starts": starts.copy(),
        "ends": ends,
        "unpack": unpack_rows(found, cu_seqlens, rows),
        "members": members,
    }
    for g in range(groups):
        inputs[f"rows{g}"] = found[g].rows if g < len(found) else np.zeros((0, LENGTH_STEP), np.int32)
        valid = found[g].valid if g < len(found) else np.zeros((0, LENGTH_STEP), np.bool_)
        inputs[f"mask{g}"] = np.where(valid, np.float32(0), MASKED)[:, None, None, :]
    return inputs


def _round_rows(total: int) -> int:
    # Few shapes keep memory small, but a step of 64 makes a text of 65 tokens as dear as one of 128.
    step = 16 if total < 256 else 64
    return -(-total // step) * step


def _extend(values: Int32, rows: int) -> Int32:
    extended = np.zeros(rows, np.int32)
    extended[: values.size] = values
    return extended


class OpenvinoOps:
    """Ops[ov.Node]. Its constants lie over the checkpoint's map: keep it for as long as what was compiled from it."""

    def __init__(self) -> None:
        self._arrays: list[npt.NDArray[np.generic]] = []  # OpenVINO does not keep the memory it shares

    def constant(self, weight: Weight) -> ov.Node:
        self._arrays.append(weight.array)
        node = op.constant(ov.Tensor(weight.array, weight.array.shape, _TYPES[weight.dtype]), shared_memory=True)
        return node if weight.dtype == "F32" else op.convert(node, "f32")

    def embed(self, table: ov.Node, ids: ov.Node) -> ov.Node:
        return _rows(table, ids)

    def add(self, a: ov.Node, b: ov.Node) -> ov.Node:
        return op.add(a, b)

    def linear(self, x: ov.Node, weight: ov.Node, bias: ov.Node | None) -> ov.Node:
        product = op.matmul(x, weight, False, True)
        return product if bias is None else op.add(product, bias)

    def layer_norm(self, x: ov.Node, weight: ov.Node, bias: ov.Node, eps: float) -> ov.Node:
        centred = op.mvn(x, _ints(-1), True, eps, "inside_sqrt")
        return op.add(op.multiply(centred, weight), bias)

    def activation(self, x: ov.Node, kind: Activation) -> ov.Node:
        return _ACTIVATIONS[kind](x)

    def attention(self, q: ov.Node, k: ov.Node, v: ov.Node, tokens: Tokens[ov.Node], spec: AttentionSpec) -> ov.Node:
        layout: Layout = tokens.layout
        scale = spec.head_size**-0.5 if spec.scale is None else spec.scale
        q = op.multiply(q, op.constant(np.float32(scale)))  # here it becomes part of the product that makes q
        answers = [
            _attend(_rows(q, rows), _rows(k, rows), _rows(v, rows), mask, spec)
            for rows, mask in zip(layout.rows, layout.masks, strict=True)
        ]
        places = answers[0] if len(answers) == 1 else op.concat(answers, 0)
        return _rows(places, layout.unpack)

    def first(self, x: ov.Node, tokens: Tokens[ov.Node]) -> ov.Node:
        return _rows(x, tokens.layout.starts)

    def last(self, x: ov.Node, tokens: Tokens[ov.Node]) -> ov.Node:
        return _rows(x, tokens.layout.ends)

    def mean(self, x: ov.Node, tokens: Tokens[ov.Node]) -> ov.Node:
        layout: Layout = tokens.layout
        return op.embedding_bag_offsets(x, layout.members, layout.starts, reduction="mean")


def _attend(q: ov.Node, k: ov.Node, v: ov.Node, mask: ov.Node, spec: AttentionSpec) -> ov.Node:
    """One group: q, k, v (n, L, heads * head_size), mask (n, 1, 1, L) -> (n * L, heads * head_size).

    Written out, because the runtime takes `scaled_dot_product_attention` apart and then copies k to turn it; from
    this form it makes one kernel that turns k as it reads (measured: 4 % of the whole forward).
    """
    apart = _ints(0, 0, spec.heads, spec.head_size)
    swap = _ints(0, 2, 1, 3)
    q, k, v = (op.transpose(op.reshape(x, apart, True), swap) for x in (q, k, v))  # (n, heads, L, head_size)
    scores = op.add(op.matmul(q, k, False, True), mask)  # (n, heads, L, L)
    answer = op.matmul(op.softmax(scores, -1), v, False, False)  # (n, heads, L, head_size)
    return op.reshape(op.transpose(answer, swap), _ints(-1, spec.heads * spec.head_size), False)


def _rows(x: ov.Node, index: ov.Node) -> ov.Node:
    return op.gather(x, index, op.constant(np.int32(0)))


def _ints(*values: int) -> ov.Node:
    return op.constant(np.array(values, np.int64))


_ACTIVATIONS: dict[Activation, Callable[[ov.Node], ov.Node]] = {
    "gelu": lambda x: op.gelu(x, "erf"),
    "gelu_tanh": lambda x: op.gelu(x, "tanh"),
    "relu": op.relu,
    "silu": op.swish,
    "tanh": op.tanh,
    "identity": lambda x: x,
}
