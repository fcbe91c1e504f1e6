"""What adapters (LoRA) add to the layers of a network: all adapters of a model at once, for batches of any mixture.

A layer of H numbers to O computes W x + B (g * (A x)). A (R, H) and B (O, R) are those of all adapters, end to end, and
B has the scale in it; g (R,) is 1 at the rows of A that belong to the text's adapter, and 0 elsewhere. So the weights
stay unchanged, and a text without an adapter gets W x. With a table of word vectors, A x is a row of a table (V, R).
DoRA multiplies each number of the sum by a factor of the text's adapter, which gives the rows of W + B A new lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeAlias

import msgspec
import numpy as np

from vectord.checkpoints.adapters import Change
from vectord.checkpoints.checkpoint import Weight
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable
from vectord.schema import Float32, Int32

# The shapes of `down` and `up` by the rank.
_Shapes: TypeAlias = Callable[[int], tuple[tuple[int, int], tuple[int, int]]]


class LowRank(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """The changes of one layer by all adapters; R: the sum of their ranks."""

    down: T  # (R, H); of a table of V rows (V, R)
    up: T  # (O, R)
    gates: T  # (adapters + 1, R) g of each adapter; the first is of texts without one
    factors: T | None = None  # (adapters + 1, O) of the sum, which includes the layer's bias; None: no DoRA
    biases: T | None = None  # (adapters + 1, O) added after that, so that the bias stays; None: there is no bias


class Adapters(Generic[T]):
    """The changes of one model's layers as constants of one op set. Layers share constants where they are equal."""

    def __init__(self, changes: Mapping[str, Sequence[Change]], count: int, ops: Ops[T]) -> None:
        """changes: by the full name of the layer; count: how many adapters the model has."""
        self._changes, self._count, self._ops = changes, count, ops
        self._read: set[str] = set()
        self._gates: dict[tuple[tuple[int, int], ...], T] = {}
        self._downs: dict[str, T] = {}

    def unread(self) -> set[str]:
        return {f"{layer}.lora" for layer in self._changes.keys() - self._read}

    def of_linear(
        self, layer: str, weight: Weight, bias: Weight | None, outputs: int, rows: slice | Int32 | None
    ) -> LowRank[T] | None:
        """Return the changes of a linear layer of so many outputs, or of these rows of them; None: none changes it.

        weight, bias: (O, H) and (O,), of these rows.
        """
        inputs = weight.shape[1]
        changes = self._take(layer, lambda rank: ((rank, inputs), (outputs, rank)), outputs)
        if not changes:
            return None
        if layer not in self._downs:
            self._downs[layer] = self._constant(layer, np.concatenate([one.down.as_float32() for one in changes]))
        up = np.concatenate([one.up.as_float32() * np.float32(one.scale) for one in changes], axis=1)
        up = up if rows is None else up[rows]
        factors = biases = None
        if any(one.magnitude is not None for one in changes):
            # (adapters + 1, O): what gives each row of the layer plus an adapter's change the length of the file.
            plain, by_adapter = weight.as_float32(), np.ones((self._count + 1, weight.shape[0]), np.float32)
            for one in changes:
                if one.magnitude is not None:
                    own_up, lengths = one.up.as_float32(), one.magnitude.as_float32()
                    own_up, lengths = (own_up, lengths) if rows is None else (own_up[rows], lengths[rows])
                    changed = plain + np.float32(one.scale) * own_up @ one.down.as_float32()
                    by_adapter[one.adapter] = lengths / np.linalg.norm(changed, axis=1)
            factors = self._constant(layer, by_adapter)
            if bias is not None:
                biases = self._constant(layer, (1 - by_adapter) * bias.as_float32())
        return LowRank(self._downs[layer], self._constant(layer, up), self._gates_of(changes), factors, biases)

    def of_table(self, layer: str, words: int, width: int) -> LowRank[T] | None:
        """Return the changes of a table of vectors; None: no adapter changes it."""
        changes = self._take(layer, lambda rank: ((words, rank), (width, rank)))
        if not changes:
            return None
        up = np.concatenate([one.up.as_float32() * np.float32(one.scale) for one in changes], axis=1)
        table = np.concatenate([one.down.as_float32() for one in changes], axis=1)  # (V, R)
        return LowRank(self._constant(layer, table), self._constant(layer, up), self._gates_of(changes))

    def of_row(self, layer: str, width: int) -> T | None:
        """Return what each adapter adds to the only row of a table, (adapters + 1, width); None: none changes it."""
        changes = self._take(layer, lambda rank: ((1, rank), (width, rank)))
        if not changes:
            return None
        added = np.zeros((self._count + 1, width), np.float32)
        for one in changes:
            added[one.adapter] = one.down.as_float32()[0] @ one.up.as_float32().T * np.float32(one.scale)
        return self._constant(layer, added)

    def _take(self, layer: str, shapes: _Shapes, lengths: int | None = None) -> Sequence[Change]:
        """lengths: of DoRA, as many as the layer has outputs; None: it is no linear layer."""
        changes = self._changes.get(layer, ())
        self._read.add(layer)
        for one in changes:
            if one.magnitude is not None and one.magnitude.shape != (lengths,):
                raise ModelUnavailable(
                    f"the adapter's use_dora is supported in linear layers, with a length for each output; found "
                    f"{one.magnitude.name}"
                )
            for weight, expected in zip((one.down, one.up), shapes(one.rank), strict=True):
                if weight.array.shape != expected:
                    raise ModelUnavailable(
                        f"the adapter's tensor {weight.name} is {list(weight.array.shape)}; by config.json and its "
                        f"rank {one.rank} it should be {list(expected)}"
                    )
        return changes

    def _gates_of(self, changes: Sequence[Change]) -> T:
        columns = tuple((one.adapter, one.rank) for one in changes)
        if columns not in self._gates:
            owners = np.repeat([adapter for adapter, _ in columns], [rank for _, rank in columns])  # (R,)
            gates = owners == np.arange(self._count + 1)[:, None]
            self._gates[columns] = self._constant("gates", gates.astype(np.float32))
        return self._gates[columns]

    def _constant(self, name: str, array: Float32) -> T:
        return self._ops.constant(Weight(name, "F32", np.ascontiguousarray(array, np.float32)))
