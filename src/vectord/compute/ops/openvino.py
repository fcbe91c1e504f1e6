"""The op set that builds an OpenVINO graph, for the CPU backend.

The ops make nodes and compute nothing: `build` calls a network once with symbolic tokens and returns an OpenvinoGraph.
It has the model to compile and `pack`, which makes the model's inputs of one batch. Attention runs by length groups
(ops/groups.py). openvino_plans.py calls it; `pack` runs on the thread that calls `forward`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.files.weight import ComputedWeight, fill_rows, in_bfloat16
from vectord.compute.memory import Scratch
from vectord.compute.ops.base import Activation, AttentionSpec, Ops, PackedTexts, Tokens, Window
from vectord.compute.ops.groups import (
    Group,
    Rectangle,
    attending_pieces,
    length_groups,
    piece_order,
    pooled_pieces,
    positions,
    unpack_rows,
)
from vectord.schema import Features, Int32


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Keep `import openvino` from contacting its maker: the package ends by importing its model converter, if
    installed, whose import reports to Google Analytics and writes to the user's home (openvino/tools/ovc/__init__.py
    of 2026.4). None makes Python raise the ImportError that the package expects."""
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
    from openvino.op import Constant  # type: ignore[import-untyped]

# op, ov: no other module imports openvino
__all__ = ["LENGTH_STEP", "OpenvinoGraph", "OpenvinoOps", "build", "op", "ov"]

Array: TypeAlias = npt.NDArray[np.generic]
Name = TypeVar("Name", bound=str)

MASKED = np.float32(-1e30)  # the score of hidden keys; finite, so that a row of padding stays finite
FAR = np.int32(2**30)  # the position of a padded key: after every query and outside every window
LENGTH_STEP = 16  # a group's length is rounded up to a multiple: the runtime keeps memory for every shape
# A batch of at most so many rows is rounded up to a multiple of the step. A row of padding costs as much as a token,
# and each shape takes memory in each plan.
ROW_STEPS = (32, 4), (64, 8), (256, 16)
LONG_ROW_STEP = 64
# Layouts of single texts that a graph keeps, and the tokens of the longest.
KEPT_LAYOUTS, KEPT_LENGTH = 256, 64
WORDS_AT_ONCE = 4096  # of the vocabulary in pooled_linear: all words for 1,024 tokens would take 125 MB
# The runtime's own mark on a conversion that must not be folded: without it, weights of 16 bits are also held in 32.
KEEP_PACKED = "decompression_0"
_TYPES = {"F32": ov.Type.f32, "F16": ov.Type.f16, "BF16": ov.Type.bf16, "I32": ov.Type.i32}


class Places(msgspec.Struct, frozen=True):
    """One group's pieces, each of Q query and K key places, as the graph's parameters."""

    queries: ov.Node  # (n, Q) row numbers into (T, H)
    keys: ov.Node  # (n, K)


class GraphLayout:
    """Where texts and spans begin and end, as parameters of the graph, each made when an op first needs it.

    The name of a group's parameter ends in its number and, where texts are cut for a window, in "w" and the window.
    """

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._parameters: dict[str, ov.Node] = {}
        self._hidden: dict[tuple[Window | None, int | None], list[ov.Node]] = {}
        self._rows_with_keys: dict[tuple[Window | None, int | None], list[ov.Node]] = {}
        self._biases: dict[str, list[ov.Node]] = {}
        self._key_distances: list[ov.Node] = []
        self._neighbours: dict[int, tuple[ov.Node, ov.Node]] = {}
        self.windows: set[Window | None] = set()  # of the attentions so far

    @property
    def parameters(self) -> list[ov.Node]:
        """The parameters with at least one consumer."""
        return [node for node in self._parameters.values() if node.output(0).get_target_inputs()]

    def parameter(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike = np.int32) -> ov.Node:
        """Return the parameter of this name. -1 in `shape`: any size."""
        if name not in self._parameters:
            node = op.parameter(list(shape), dtype, name=name)
            node.output(0).set_names({name})
            self._parameters[name] = node
        return self._parameters[name]

    def places(self, window: Window | None) -> list[Places]:
        self.windows.add(window)
        return [
            Places(self.parameter(f"queries{ending}", [-1, -1]), self.parameter(f"keys{ending}", [-1, -1]))
            for ending in self._endings(window)
        ]

    def unpack(self, window: Window | None) -> ov.Node:
        """(T,) the place of each row among the groups' query places, laid end to end."""
        return self.parameter(f"unpack{_ending(window)}", [-1])

    def padding(self, window: Window | None) -> list[ov.Node]:
        """For each group: (n, 1, 1, K) 0, and MASKED on padded keys."""
        return [self.parameter(f"padding{ending}", [-1, 1, 1, -1], np.float32) for ending in self._endings(window)]

    def hidden(self, spec: AttentionSpec) -> list[ov.Node]:
        """For each group: (n, 1, Q, K) whether the key is hidden from the query or padded. All layers share it."""
        if (spec.window, spec.after) not in self._hidden:
            self._hidden[spec.window, spec.after] = hidden = []
            for ending in self._endings(spec.reach):
                queries = self.parameter(f"query_positions{ending}", [-1, 1, -1, 1])
                keys = self.parameter(f"key_positions{ending}", [-1, 1, 1, -1])
                last = op.add(queries, op.constant(np.int32(spec.after))) if spec.after else queries
                too_late = op.greater(keys, last)  # (n, 1, Q, K)
                if spec.before is None:
                    hidden.append(too_late)
                    continue
                first = op.subtract(queries, op.constant(np.int32(spec.before)))
                hidden.append(op.logical_or(too_late, op.less(keys, first)))
        return self._hidden[spec.window, spec.after]

    def rows_with_keys(self, spec: AttentionSpec) -> list[ov.Node]:
        """For each group: (n * Q, 1) 1, and 0 for a query without visible keys. All layers share it.

        A window can contain only rows that are not keys. In the shape of the scores, before attention's last transpose,
        OpenVINO 2026.4 takes the product into its attention kernel, whose float32 results are then wrong for heads of
        128 numbers and more (cosine 0.5 with EmbeddingGemma's shape).
        """
        if (spec.window, spec.after) not in self._rows_with_keys:
            self._rows_with_keys[spec.window, spec.after] = [
                op.reshape(
                    op.convert(op.reduce_logical_or(op.logical_not(hide), _ints(-1), True), "f32"), _ints(-1, 1), False
                )
                for hide in self.hidden(spec)
            ]
        return self._rows_with_keys[spec.window, spec.after]

    def distances(self) -> list[ov.Node]:
        """For each group: (Q + K - 1,) the key's position minus the query's, from 1 - Q to K - 1."""
        return [self.parameter(f"distances{ending}", [-1]) for ending in self._endings(None)]

    def biases(self, bias: ov.Node) -> list[ov.Node]:
        """For each group: (1, heads, Q, K), laid out from `bias` (heads, 2 * M - 1). Layers with one bias share it."""
        name = bias.get_friendly_name()
        if name not in self._biases:
            by_place, middle = op.transpose(bias, _ints(1, 0)), op.constant(np.int32(_size(bias, 1) // 2))
            self._biases[name] = laid = []
            for at, distances in zip(self.places(None), self.distances(), strict=True):
                # By rows: along columns of large tables the runtime's gather reads beyond their end (OpenVINO 2026.4).
                by_distance = _rows(by_place, op.add(distances, middle))
                x = op.unsqueeze(op.transpose(by_distance, _ints(1, 0)), _ints(0, 2))  # (1, heads, 1, Q + K - 1)
                x = op.broadcast(x, _shape(1, 1, _length(at.queries), 1), broadcast_spec="BIDIRECTIONAL")
                laid.append(_skew(x, at.queries, at.keys))
        return self._biases[name]

    def key_distances(self) -> list[ov.Node]:
        """For each group: (1, 1, Q, K) the distance of query and key. All layers share it."""
        if not self._key_distances:
            one, zero = _ints(1), _ints(0)
            for at, distances in zip(self.places(None), self.distances(), strict=True):
                q = _length(at.queries)  # (1,)
                rows = _reverse(op.slice(distances, zero, q, one, zero))  # (Q,) -i
                columns = op.slice(distances, op.subtract(q, one), _ints(2**31), one, zero)  # (K,) j
                pairs = op.add(op.unsqueeze(rows, _ints(0, 1, 3)), op.unsqueeze(columns, _ints(0, 1, 2)))
                self._key_distances.append(op.convert(op.abs(pairs), "f32"))  # integers until here
        return self._key_distances

    def neighbours(self, offset: int, positions: ov.Node) -> tuple[ov.Node, ov.Node]:
        """(T,) the row `offset` after each, and (T, 1) whether it is of the same text. All layers share it."""
        if offset not in self._neighbours:
            step, zero, one = (op.constant(np.int32(number)) for number in (offset, 0, 1))
            count = op.squeeze(op.shape_of(positions, "i32"), _ints(0))
            rows = op.add(op.range(zero, count, one, "i32"), step)
            rows = op.minimum(op.maximum(rows, zero), op.subtract(count, one))
            inside = op.equal(_rows(positions, rows), op.add(positions, step))
            self._neighbours[offset] = rows, op.unsqueeze(inside, _ints(1))
        return self._neighbours[offset]

    def span_rows(self) -> list[ov.Node]:
        """For each group of spans: (n, L) row numbers; padding repeats the span's first row."""
        return [self.parameter(f"span_rows{ending}", [-1, -1]) for ending in self._endings(None)]

    def _endings(self, window: Window | None) -> list[str]:
        return [f"{g}{_ending(window)}" for g in range(self._groups)]


def _ending(window: Window | None) -> str:
    return "" if window is None else f"w{window}"


_NO_PLACES = Rectangle(np.zeros((0, LENGTH_STEP), np.int32), np.zeros((0, LENGTH_STEP), np.bool_))
_NO_PIECES = Group(np.zeros(0, np.int32), _NO_PLACES, _NO_PLACES)

# How each parameter of a group is made from the group and the positions of all rows.
_PARTS: Mapping[str, Callable[[Group, Int32], Array]] = {
    "queries": lambda group, at: group.queries.rows,
    "keys": lambda group, at: group.keys.rows,
    "padding": lambda group, at: np.where(group.keys.valid, np.float32(0), MASKED)[:, None, None, :],
    "query_positions": lambda group, at: at[group.queries.rows][:, None, :, None],
    "key_positions": lambda group, at: np.where(group.keys.valid, at[group.keys.rows], FAR)[:, None, None, :],
    "distances": lambda group, at: np.arange(1 - group.queries.rows.shape[1], group.keys.rows.shape[1], dtype=np.int32),
}


@dataclass(frozen=True, slots=True)
class OpenvinoGraph:
    """A network to compile, and the packing of its inputs."""

    model: ov.Model
    inputs: tuple[str, ...]  # names of its parameters, in their order
    outputs: tuple[str, ...]  # its results, in their order
    groups: int  # length groups that attention and pooling may use
    windows: tuple[Window | None, ...]  # of its attentions
    features: Features | None  # (0, W) without rows, in the type of PackedTexts.features; None: none
    coordinates: int  # the columns of PackedTexts.coordinates; 0: none
    _kept: dict[tuple[int, frozenset[str]], Mapping[str, Array | ov.Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # layouts of single texts, by their length and the requested results

    def pack(self, texts: PackedTexts, outputs: Collection[str]) -> list[ov.Tensor]:
        """Return one batch as the model's inputs, in their order. An inference request reads them in place.

        outputs: the per-token results to return. Rows are padded to a round number (they belong to no text), and unused
        groups get no pieces.
        """
        total = texts.ids.size
        step = next((step for limit, step in ROW_STEPS if total <= limit), LONG_ROW_STEP)
        rows = -(-total // step) * step
        arrays: dict[str, Array | ov.Tensor] = {
            "ids": _extend(texts.ids, rows),
            "type_ids": _extend(texts.type_ids, rows),
            "adapters": _extend(texts.row_adapters, rows),
            **self._layout(texts, outputs, rows),
        }
        columns = np.zeros((self.coordinates, rows), np.int32)
        if texts.coordinates is not None:
            columns[:, :total] = texts.coordinates.T
        arrays |= {f"coordinates{i}": column for i, column in enumerate(columns)}
        if self.features is not None:
            arrays["features"] = features = np.zeros((rows, self.features.shape[1]), self.features.dtype)
            if texts.features is not None:
                features[: len(texts.features)] = texts.features
        return [_tensor(arrays[name]) for name in self.inputs]

    def _layout(self, texts: PackedTexts, outputs: Collection[str], rows: int) -> Mapping[str, Array | ov.Tensor]:
        """All inputs but the tokens. Those of a single text depend on its length only; of short texts they are kept."""
        is_whole = texts.spans is None and texts.keys is None
        if not is_whole or texts.cu_seqlens.size > 2 or texts.ids.size > KEPT_LENGTH:
            return self._make_layout(texts, outputs, rows)
        key = texts.ids.size, frozenset(outputs)
        layout = self._kept.get(key)
        if layout is None:
            layout = {name: _tensor(array) for name, array in self._make_layout(texts, outputs, rows).items()}
            if len(self._kept) < KEPT_LAYOUTS:
                self._kept[key] = layout
        return layout

    def _make_layout(self, texts: PackedTexts, outputs: Collection[str], rows: int) -> dict[str, Array]:
        at, sizes = positions(texts), np.diff(texts.cu_seqlens)
        starts, stops = texts.pooled.T
        lengths = stops - starts
        begins = np.cumsum(lengths, dtype=np.int32) - lengths
        arrays: dict[str, Array] = {
            "positions": _extend(at, rows),
            "row_lengths": _extend(np.repeat(sizes, sizes), rows),
            "firsts": starts.copy(),
            "lasts": stops - 1,
            "members": np.arange(lengths.sum(), dtype=np.int32) + np.repeat(starts - begins, lengths),
            "begins": begins,
            **{_answered(name): np.arange(texts.ids.size * (name in outputs), dtype=np.int32) for name in self.outputs},
        }
        for window in self.windows:
            found, ending = length_groups(attending_pieces(texts, window), self.groups, LENGTH_STEP), _ending(window)
            arrays[f"unpack{ending}"] = unpack_rows(found, rows)
            for g, group in enumerate(self._filled(found)):
                names = {f"{part}{g}{ending}": part for part in _PARTS}
                arrays |= {name: _PARTS[part](group, at) for name, part in names.items() if name in self.inputs}
        if "span_order" in self.inputs:
            found = length_groups(pooled_pieces(texts), self.groups, LENGTH_STEP)
            arrays["span_order"] = piece_order(found)
            arrays |= {f"span_rows{g}": group.queries.rows for g, group in enumerate(self._filled(found))}
        return {name: array for name, array in arrays.items() if name in self.inputs}

    def _filled(self, found: Sequence[Group]) -> list[Group]:
        return [*[_NO_PIECES] * (self.groups - len(found)), *found]


def _tensor(numbers: Array | ov.Tensor) -> ov.Tensor:
    """An array as a tensor over its memory, which the tensor keeps; a tensor unchanged."""
    return numbers if isinstance(numbers, ov.Tensor) else ov.Tensor(numbers, shared_memory=True)


def build(
    network: Callable[[Tokens[ov.Node]], Mapping[Name, ov.Node]],
    groups: int,
    by_token: Collection[str] = (),
    features: Features | None = None,
    coordinates: int = 0,
) -> OpenvinoGraph:
    """Return the graph of one network. `network` is called once, and its outputs become the results, in float32.

    groups: the number of length groups; each costs a little in compile time and in every forward.
    by_token: outputs with one row per token, which are returned only if `pack` requests them.
    features: see OpenvinoGraph.
    coordinates: the columns of PackedTexts.coordinates; 0: none.
    """
    layout = GraphLayout(groups)
    names = ("ids", "type_ids", "positions", "adapters")
    ids, type_ids, positions, adapters = (layout.parameter(name, [-1]) for name in names)
    outside = None
    if features is not None:
        outside = op.convert(layout.parameter("features", [-1, features.shape[1]], features.dtype), "f32")
    places = tuple(layout.parameter(f"coordinates{i}", [-1]) for i in range(coordinates))
    tokens = Tokens(ids, type_ids, positions, layout, adapters, outside, places)
    answers = {
        name: _rows(answer, layout.parameter(_answered(name), [-1])) if name in by_token else answer
        for name, answer in network(tokens).items()
    }
    results = [op.convert(answer, "f32") for answer in answers.values()]
    inputs = tuple(node.get_friendly_name() for node in layout.parameters)
    model = ov.Model(results, layout.parameters, "network")
    return OpenvinoGraph(model, inputs, tuple(answers), groups, tuple(layout.windows), features, coordinates)


def _answered(output: str) -> str:
    return f"{output}_rows"


def _extend(values: Int32, rows: int) -> Int32:
    extended = np.zeros(rows, np.int32)
    extended[: values.size] = values
    return extended


class OpenvinoOps(Ops[ov.Node]):
    """Ops[ov.Node]. Its constants lie over the checkpoint's map: keep it alive as long as the compiled graph."""

    def __init__(self, *, bfloat16: bool = False) -> None:
        """bfloat16: the plan's type, in which matrices that are computed from their file are held."""
        self._weights: dict[str, Weight] = {}  # by node's name; OpenVINO does not keep the memory it shares
        self._bfloat16 = bfloat16
        self.scratch = Scratch()

    @property
    def heads(self) -> OpenvinoOps:
        heads = _HeadOps() if self._bfloat16 else OpenvinoOps()
        heads._weights, heads.scratch = self._weights, self.scratch
        return heads

    def constant(self, weight: Weight) -> ov.Node:
        if weight.dtype == "F64":
            weight = ComputedWeight(weight.name, weight.shape, weight.parts)
        if isinstance(weight, ComputedWeight) and len(weight.shape) > 1:
            written = self.scratch.array(weight.shape, np.uint16 if self._bfloat16 else np.float32)
            fill_rows(written, map(in_bfloat16, weight.parts()) if self._bfloat16 else weight.parts())
            weight = Weight(weight.name, "BF16" if self._bfloat16 else "F32", written)
        array = weight.array
        # op.constant would read the signatures of its overloads for each weight.
        node = Constant(ov.Tensor(array, array.shape, _TYPES[weight.dtype]), shared_memory=True)
        if weight.dtype in {"F16", "BF16"}:
            node = op.convert(node, "f32")
            if array.ndim > 1:
                node.get_rt_info()[KEEP_PACKED] = True
        self._weights[node.get_friendly_name()] = Weight(weight.name, weight.dtype, array)  # holds a computed array
        return node

    def matrix(self, weight: Weight) -> ov.Node:
        return self.constant(weight)

    def embed(self, table: ov.Node, ids: ov.Node) -> ov.Node:
        return _rows(table, ids)

    def place(self, x: ov.Node, features: ov.Node, marks: ov.Node) -> ov.Node:
        return op.select(op.unsqueeze(op.equal(marks, op.constant(np.int32(1))), _ints(1)), features, x)

    def add(self, a: ov.Node, b: ov.Node) -> ov.Node:
        return op.add(a, b)

    def multiply(self, a: ov.Node, b: ov.Node) -> ov.Node:
        return op.multiply(a, b)

    def scale(self, x: ov.Node, factor: float) -> ov.Node:
        return op.multiply(x, op.constant(np.float32(factor)))

    def clip(self, x: ov.Node, least: float, most: float) -> ov.Node:
        return op.clamp(x, least, most)

    def power(self, x: ov.Node, exponent: float) -> ov.Node:
        return op.power(x, op.constant(np.float32(exponent)))

    def concat(self, parts: Sequence[ov.Node]) -> ov.Node:
        return op.concat(list(parts), 1)

    def columns(self, x: ov.Node, start: int, stop: int) -> ov.Node:
        return op.slice(x, _ints(start), _ints(stop), _ints(1), _ints(1))

    def linear(self, x: ov.Node, weight: ov.Node, bias: ov.Node | None) -> ov.Node:
        product = op.matmul(x, weight, False, True)
        return product if bias is None else op.add(product, bias)

    def product(self, x: ov.Node, weight: ov.Node) -> ov.Node:
        return op.matmul(x, weight, False, True)

    def layer_norm(self, x: ov.Node, weight: ov.Node, bias: ov.Node | None, eps: float) -> ov.Node:
        normed = op.multiply(op.mvn(x, _ints(-1), True, eps, "inside_sqrt"), weight)
        return normed if bias is None else op.add(normed, bias)

    def rms_norm(self, x: ov.Node, weight: ov.Node, eps: float) -> ov.Node:
        """Return the graph that the runtime recognizes and fuses into one kernel."""
        runs = op.reshape(x, _ints(0, -1, _size(weight, 0)), True)  # (T, k, W)
        squares = op.reduce_mean(op.power(runs, op.constant(np.float32(2))), _ints(-1), True)
        length = op.sqrt(op.add(squares, op.constant(np.float32(eps))))
        normed = op.multiply(op.multiply(runs, op.divide(op.constant(np.float32(1)), length)), weight)
        return op.reshape(normed, _ints(0, -1), True)

    def normalize(self, x: ov.Node) -> ov.Node:
        return op.normalize_l2(x, _ints(-1), 1e-30, "max")

    def activation(self, x: ov.Node, kind: Activation) -> ov.Node:
        return _ACTIVATIONS[kind](x)

    def rotate(self, x: ov.Node, cos: ov.Node, sin: ov.Node, head_size: int) -> ov.Node:
        heads = op.reshape(x, _ints(0, -1, head_size), True)  # (T, heads, head_size)
        first, second = op.split(heads, op.constant(np.int64(2)), 2).outputs()
        cos, sin = op.unsqueeze(cos, _ints(1)), op.unsqueeze(sin, _ints(1))  # (T, 1, head_size / 2)
        turned = [
            op.subtract(op.multiply(first, cos), op.multiply(second, sin)),
            op.add(op.multiply(second, cos), op.multiply(first, sin)),
        ]
        return op.reshape(op.concat(turned, 2), _ints(0, -1), True)

    def attention(
        self,
        q: ov.Node,
        k: ov.Node,
        v: ov.Node,
        tokens: Tokens[ov.Node],
        spec: AttentionSpec,
        bias: ov.Node | None = None,
    ) -> ov.Node:
        """A bias depends on positions in a text, so it excludes parents and windows."""
        layout: GraphLayout = tokens.layout
        assert bias is None or (spec.window is None and spec.score_cap is None)
        # Not scaled: right after the product that makes q the runtime would fold the scale into the weights and keep a
        # float32 copy of them.
        scores = [
            op.matmul(_heads(_rows(q, at.queries), spec), _key_heads(_rows(k, at.keys), spec), False, True)
            for at in layout.places(spec.reach)
        ]  # (n, heads, Q, K) each
        if (cap := spec.score_cap) is not None:
            capped = [self.scale(op.tanh(self.scale(score, spec.factor / cap)), cap) for score in scores]
            return _mix(capped, v, layout, spec)
        if bias is None:
            return _mix(scores, v, layout, spec, factor=spec.factor)
        scaled = [self.scale(score, spec.factor) for score in scores]
        return _mix(self._biased(scaled, bias, layout), v, layout, spec)

    def _biased(self, scores: Sequence[ov.Node], bias: ov.Node, layout: GraphLayout) -> list[ov.Node]:
        """Each group's scores with the bias of their distances added.

        A bias that falls evenly with the distance (ALiBi) is laid out once instead of once a head, in a tenth of the
        memory.
        """
        array = self._weights[bias.get_friendly_name()].array.astype(np.float32)  # (heads, 2 * M - 1)
        far = array.shape[1] // 2
        distances = np.abs(np.arange(array.shape[1], dtype=np.float32) - far)
        slopes = -array[:, -1:] / np.float32(max(1, far))
        if not slopes.all() or not np.allclose(slopes * -distances, array, rtol=1e-5, atol=1e-6):
            return [op.add(score, added) for score, added in zip(scores, layout.biases(bias), strict=True)]
        slopes = slopes.reshape(-1, 1, 1)
        slope, inverse = op.constant(slopes), op.constant(1 / slopes)
        return [
            op.multiply(op.subtract(op.multiply(score, inverse), distance), slope)
            for score, distance in zip(scores, layout.key_distances(), strict=True)
        ]

    def disentangled_attention(
        self,
        q: ov.Node,
        k: ov.Node,
        v: ov.Node,
        place_k: ov.Node | None,
        place_q: ov.Node | None,
        buckets: ov.Node,
        tokens: Tokens[ov.Node],
        spec: AttentionSpec,
    ) -> ov.Node:
        """It depends on positions in a text, so it excludes parents and windows.

        All queries with the places of all distances (Q + K - 1 a group) are one product for each term; _skew then
        shifts row i by i places.
        """
        layout: GraphLayout = tokens.layout
        assert spec.window is None
        scale = op.constant(np.float32(spec.factor))
        middle = op.constant(np.int32(_size(buckets, 0) // 2))
        scores = []
        for at, distances in zip(layout.places(None), layout.distances(), strict=True):
            queries, keys = _heads(_rows(q, at.queries), spec), _heads(_rows(k, at.keys), spec)
            score = op.matmul(queries, keys, False, True)  # (n, heads, Q, K)
            by_distance = _rows(buckets, op.subtract(middle, distances))  # (Q + K - 1,) buckets of i - j, descending
            if place_k is not None:
                places = _place_heads(_rows(place_k, by_distance), spec)
                score = op.add(score, _skew(op.matmul(queries, places, False, True), at.queries, at.keys))
            if place_q is not None:
                places = _place_heads(_rows(place_q, _reverse(by_distance)), spec)
                turned = _skew(op.matmul(keys, places, False, True), at.keys, at.queries)  # (n, heads, K, Q)
                score = op.add(score, op.transpose(turned, _ints(0, 1, 3, 2)))
            scores.append(op.multiply(score, scale))
        return _mix(scores, v, layout, spec)

    def shift(self, x: ov.Node, offset: int, tokens: Tokens[ov.Node]) -> ov.Node:
        rows, inside = tokens.layout.neighbours(offset, tokens.positions)
        return op.select(inside, _rows(x, rows), op.constant(np.float32(0)))

    def mixture(
        self,
        x: ov.Node,
        logits: ov.Node,
        top: int,
        experts: Sequence[Callable[[ov.Node], ov.Node]],
        tokens: Tokens[ov.Node],
    ) -> ov.Node:
        """An expert's rows are gathered and their results scattered. Their number is rounded up with copies of the
        batch's first row, whose results are dropped: the runtime keeps memory for every shape."""
        best = op.topk(op.softmax(logits, -1), op.constant(np.int32(top)), -1, "max", "none", "i32")
        shares, chosen = best.outputs()  # (T, top)
        out = op.multiply(x, op.constant(np.float32(0)))
        for e, expert in enumerate(experts):
            is_chosen = op.equal(chosen, op.constant(np.int32(e)))
            share = op.reduce_sum(op.select(is_chosen, shares, op.constant(np.float32(0))), _ints(-1), True)  # (T, 1)
            rows = op.squeeze(op.non_zero(op.reduce_logical_or(is_chosen, _ints(-1), False), "i64"), _ints(0))
            count = op.shape_of(rows)  # (1,)
            filler = op.subtract(_ints(LENGTH_STEP), op.mod(count, _ints(LENGTH_STEP)))
            zero = op.constant(np.int64(0))
            padded = op.pad(rows, _ints(0), filler, "constant", zero)
            place = op.range(zero, op.squeeze(op.shape_of(padded), _ints(0)), op.constant(np.int64(1)), "i64")
            is_filler = op.unsqueeze(op.greater_equal(place, count), _ints(1))  # (n, 1)
            part = op.multiply(expert(_rows(x, padded)), _rows(share, padded))
            part = op.select(is_filler, op.constant(np.float32(0)), part)
            out = op.scatter_nd_update(out, op.unsqueeze(padded, _ints(1)), part, "sum")
        return out

    def text_lengths(self, tokens: Tokens[ov.Node]) -> ov.Node:
        layout: GraphLayout = tokens.layout
        return layout.parameter("row_lengths", [-1])

    def first(self, x: ov.Node, tokens: Tokens[ov.Node]) -> ov.Node:
        return _rows(x, tokens.layout.parameter("firsts", [-1]))

    def merge(self, x: ov.Node, rows: int, tokens: Tokens[ov.Node]) -> ov.Node:
        firsts = op.unsqueeze(tokens.layout.parameter("firsts", [-1]), _ints(1))
        places = op.add(firsts, op.constant(np.arange(rows, dtype=np.int32)))  # (M, rows)
        return op.reshape(_rows(x, places), _ints(-1, rows * _size(x, 1)), False)

    def last(self, x: ov.Node, tokens: Tokens[ov.Node]) -> ov.Node:
        return _rows(x, tokens.layout.parameter("lasts", [-1]))

    def mean(self, x: ov.Node, tokens: Tokens[ov.Node]) -> ov.Node:
        members, begins = (tokens.layout.parameter(name, [-1]) for name in ("members", "begins"))
        return op.embedding_bag_offsets(x, members, begins, reduction="mean")

    def max(self, x: ov.Node, tokens: Tokens[ov.Node]) -> ov.Node:
        layout: GraphLayout = tokens.layout
        maxima = [op.reduce_max(_rows(x, rows), _ints(1), False) for rows in layout.span_rows()]  # (n, H) each
        return _rows(_end_to_end(maxima), layout.parameter("span_order", [-1]))

    def pooled_linear(self, x: ov.Node, weight: ov.Node, bias: ov.Node, pool: Callable[[ov.Node], ov.Node]) -> ov.Node:
        """weight and bias: results of `constant`."""
        starts = range(0, _size(weight, 0), WORDS_AT_ONCE)
        parts = [(self._part(weight, start), self._part(bias, start)) for start in starts]
        return op.concat([pool(self.linear(x, *part)) for part in parts], 1)

    def _part(self, constant: ov.Node, start: int) -> ov.Node:
        weight = self._weights[constant.get_friendly_name()]
        return self.constant(Weight(weight.name, weight.dtype, weight.array[start : start + WORDS_AT_ONCE]))


class _HeadOps(OpenvinoOps):
    """Float32 in plans of bfloat16: every node that it makes has the runtime's mark for that.

    The runtime drops the mark of a node that it replaces by another, so a few ops have a form here that it keeps.
    """

    def embed(self, table: ov.Node, ids: ov.Node) -> ov.Node:
        return _marked(super().embed(table, ids))

    def add(self, a: ov.Node, b: ov.Node) -> ov.Node:
        return _marked(super().add(a, b))

    def multiply(self, a: ov.Node, b: ov.Node) -> ov.Node:
        return _marked(super().multiply(a, b))

    def scale(self, x: ov.Node, factor: float) -> ov.Node:
        return _marked(super().scale(x, factor))

    def power(self, x: ov.Node, exponent: float) -> ov.Node:
        # The runtime would replace a product with a power of -1 by a division.
        return _marked(super().power(_marked(super().power(x, 2.0)), exponent / 2))

    def concat(self, parts: Sequence[ov.Node]) -> ov.Node:
        return _marked(super().concat(parts))

    def linear(self, x: ov.Node, weight: ov.Node, bias: ov.Node | None) -> ov.Node:
        product = op.matmul(x, weight, False, True)
        if bias is None:
            return _in_float32(product, x)
        # The runtime would replace the product and the sum with a constant by one node.
        return _in_float32(op.add(product, op.multiply(bias, _one(product))), x)

    def layer_norm(self, x: ov.Node, weight: ov.Node, bias: ov.Node | None, eps: float) -> ov.Node:
        return _in_float32(super().layer_norm(x, weight, bias, eps), x)

    def normalize(self, x: ov.Node) -> ov.Node:
        total = op.maximum(_sum(op.multiply(x, x)), op.constant(np.float32(1e-30)))
        return _in_float32(op.multiply(x, op.power(total, op.constant(np.float32(-0.5)))), x)

    def activation(self, x: ov.Node, kind: Activation) -> ov.Node:
        return _in_float32(_HEAD_ACTIVATIONS.get(kind, _ACTIVATIONS[kind])(x), x)

    def first(self, x: ov.Node, tokens: Tokens[ov.Node]) -> ov.Node:
        return _in_float32(super().first(x, tokens), x)

    def last(self, x: ov.Node, tokens: Tokens[ov.Node]) -> ov.Node:
        return _in_float32(super().last(x, tokens), x)

    def mean(self, x: ov.Node, tokens: Tokens[ov.Node]) -> ov.Node:
        return _in_float32(super().mean(x, tokens), x)

    def max(self, x: ov.Node, tokens: Tokens[ov.Node]) -> ov.Node:
        return _in_float32(super().max(x, tokens), x)


@cache
def _float32_mark() -> tuple[str, ov.OVAny]:
    """The name and value of the runtime's mark on a node that stays in float32. Python has no constructor of it."""
    parameter = """<layer id="0" name="x" type="Parameter" version="opset1"><data shape="1" element_type="f32"/>
        <rt_info><attribute name="DisablePrecisionConversion" version="0" value="dynamic:f16"/></rt_info>
        <output><port id="0" precision="FP32"><dim>1</dim></port></output></layer>"""
    result = """<layer id="1" name="y" type="Result" version="opset1">
        <input><port id="0" precision="FP32"><dim>1</dim></port></input></layer>"""
    edge = '<edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>'
    model = f'<net name="mark" version="11"><layers>{parameter}{result}</layers><edges>{edge}</edges></net>'
    [(name, value)] = ov.Core().read_model(model.encode(), b"").get_parameters()[0].get_rt_info().items()
    return name, value


def _marked(node: ov.Node) -> ov.Node:
    mark, value = _float32_mark()
    node.set_rt_info(value, mark)
    return node


def _in_float32(y: ov.Node, x: ov.Node) -> ov.Node:
    """y, with the mark on it and on all nodes between x and it."""
    seen, found = {x.get_friendly_name()}, [y]
    while found:
        node = found.pop()
        if node.get_friendly_name() in seen or node.get_type_name() in {"Constant", "Parameter"}:
            continue
        seen.add(node.get_friendly_name())
        _marked(node)
        found += [each.get_node() for each in node.input_values()]
    return y


def _mix(
    scores: Sequence[ov.Node], v: ov.Node, layout: GraphLayout, spec: AttentionSpec, *, factor: float | None = None
) -> ov.Node:
    """Each group's scores (n, heads, Q, K), v (T, kv_heads * head_size) -> (T, heads * head_size).

    factor: of the scores, applied after their mask. Before it, the runtime would move the factor into the weights of k
    in a graph of one length group, and apply it to k in any other: the vector of a text would depend on its plan.

    Written out, because the runtime decomposes `scaled_dot_product_attention` and then copies k to transpose it. From
    this form it makes one kernel, which holds the scores of a few queries at a time.
    """
    if spec.causal or spec.before is not None:
        hidden = layout.hidden(spec)
        seen = [op.select(hide, op.constant(MASKED), score) for hide, score in zip(hidden, scores, strict=True)]
    else:
        seen = [op.add(score, padding) for score, padding in zip(scores, layout.padding(spec.reach), strict=True)]
    if factor is not None:
        seen = [op.multiply(score, op.constant(np.float32(factor))) for score in seen]
    answers = []
    for i, (score, at) in enumerate(zip(seen, layout.places(spec.reach), strict=True)):
        values = _key_heads(_rows(v, at.keys), spec)
        answer = op.matmul(op.softmax(score, -1), values, False, False)  # (n, heads, Q, head_size)
        answer = op.reshape(op.transpose(answer, _ints(0, 2, 1, 3)), _ints(-1, spec.width), False)  # (n * Q, width)
        if spec.before is not None:
            answer = op.multiply(answer, layout.rows_with_keys(spec)[i])
        answers.append(answer)
    return _rows(_end_to_end(answers), layout.unpack(spec.reach))


def _heads(x: ov.Node, spec: AttentionSpec) -> ov.Node:
    """(n, L, heads * head_size) -> (n, heads, L, head_size)."""
    return op.transpose(op.reshape(x, _ints(0, 0, spec.heads, spec.head_size), True), _ints(0, 2, 1, 3))


def _key_heads(x: ov.Node, spec: AttentionSpec) -> ov.Node:
    """(n, K, kv_heads * head_size) -> (n, heads, K, head_size): each key and value serves heads / kv_heads queries."""
    kv_heads = spec.kv_heads or spec.heads
    if kv_heads == spec.heads:
        return _heads(x, spec)
    split = op.reshape(x, _ints(0, 0, kv_heads, spec.head_size), True)  # (n, K, kv_heads, head_size)
    key_heads = op.constant(np.repeat(np.arange(kv_heads, dtype=np.int32), spec.heads // kv_heads))
    return op.transpose(op.gather(split, key_heads, op.constant(np.int32(2))), _ints(0, 2, 1, 3))


def _place_heads(x: ov.Node, spec: AttentionSpec) -> ov.Node:
    """(W, heads * head_size) -> (1, heads, W, head_size)."""
    return _heads(op.unsqueeze(x, _ints(0)), spec)


def _skew(x: ov.Node, rows: ov.Node, columns: ov.Node) -> ov.Node:
    """x (n, heads, Q, Q + K - 1) -> (n, heads, Q, K), entry (i, j) taken from (i, j - i + Q - 1).

    rows (., Q) and columns (., K) give the lengths. In the flat rows of x the entry is at Q - 1 + i * (Q + K - 2) + j,
    so from Q - 1 on the rows are one shorter.
    """
    q, k = _length(rows), _length(columns)
    one, two = _ints(1), _ints(2)
    wide = op.add(q, k)
    flat = op.reshape(x, _shape(0, 0, op.multiply(q, op.subtract(wide, one))), True)
    begin, size = op.subtract(q, one), op.multiply(q, op.subtract(wide, two))
    cut = op.slice(flat, begin, op.add(begin, size), one, two)
    return op.slice(op.reshape(cut, _shape(0, 0, q, op.subtract(wide, two)), True), _ints(0), k, one, _ints(3))


def _reverse(x: ov.Node) -> ov.Node:
    return op.slice(x, _ints(-1), _ints(-(2**31)), _ints(-1), _ints(0))


def _end_to_end(groups: Sequence[ov.Node]) -> ov.Node:
    return groups[0] if len(groups) == 1 else op.concat(list(groups), 0)


def _rows(x: ov.Node, index: ov.Node) -> ov.Node:
    return op.gather(x, index, op.constant(np.int32(0)))


def _size(x: ov.Node, axis: int) -> int:
    size: int = x.get_output_partial_shape(0)[axis].get_length()
    return size


def _length(index: ov.Node) -> ov.Node:
    """index (n, L): L, as (1,)."""
    return op.gather(op.shape_of(index), _ints(1), op.constant(np.int32(0)))


def _shape(*sizes: int | ov.Node) -> ov.Node:
    return op.concat([_ints(size) if isinstance(size, int) else size for size in sizes], 0)


def _ints(*values: int) -> ov.Node:
    return op.constant(np.array(values, np.int64))


_ACTIVATIONS: dict[Activation, Callable[[ov.Node], ov.Node]] = {
    "identity": lambda x: x,
    "sigmoid": op.sigmoid,
    "tanh": op.tanh,
    "relu": op.relu,
    "gelu": lambda x: op.gelu(x, "erf"),
    "gelu_tanh": lambda x: op.gelu(x, "tanh"),
    "log1p_relu": lambda x: op.log(op.add(op.relu(x), op.constant(np.float32(1)))),
    "quick_gelu": lambda x: op.multiply(x, op.sigmoid(op.multiply(x, op.constant(np.float32(1.702))))),
    "silu": op.swish,
    "softmax": lambda x: op.softmax(x, -1),
}


def head_softmax(x: ov.Node) -> ov.Node:
    minus = op.multiply(_one(x), op.constant(np.float32(-1)))
    below = op.add(x, op.multiply(op.reduce_max(x, _ints(-1), True), minus))
    return op.exp(op.add(below, op.multiply(op.log(_sum(op.exp(below))), minus)))


# In nodes that the runtime does not replace.
_HEAD_ACTIVATIONS: dict[Activation, Callable[[ov.Node], ov.Node]] = {
    "silu": lambda x: op.multiply(_half(x), op.add(op.tanh(_half(x)), op.constant(np.float32(1)))),
    "softmax": head_softmax,
}


def _one(x: ov.Node) -> ov.Node:
    """1 as a number that is not constant: the runtime joins constants with other nodes. x: any, with rows."""
    return op.convert(op.minimum(op.gather(op.shape_of(x), _ints(0), op.constant(np.int32(0))), _ints(1)), "f32")


def _sum(x: ov.Node) -> ov.Node:
    return op.reduce_sum(x, _ints(-1), True)


def _half(x: ov.Node) -> ov.Node:
    return op.multiply(x, op.constant(np.float32(0.5)))
