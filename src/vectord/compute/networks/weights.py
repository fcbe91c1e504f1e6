"""A checkpoint as networks read it: tensors by name, checked against the shape that the config requires."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, Generic

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.files.read import OPTION, Settings
from vectord.checkpoints.files.weight import NETWORK_DTYPES
from vectord.checkpoints.spec import Output
from vectord.compute.networks.adapters import Adapters, LowRank
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable
from vectord.schema import Int32


class ClipRange(msgspec.Struct, frozen=True):
    """Between which numbers are clipped."""

    least: float
    most: float


class Linear(msgspec.Struct, Generic[T], frozen=True):
    weight: T  # (O, H)
    bias: T | None  # (O,)
    change: LowRank[T] | None = None  # by adapters, which only a Transformer computes, as the limits
    inputs: ClipRange | None = None
    outputs: ClipRange | None = None


class Norm(msgspec.Struct, Generic[T], frozen=True):
    weight: T  # (H,)
    bias: T | None  # (H,)


class WeightReader(Generic[T]):
    """Makes constants of one op set; `prefix` precedes every name.

    read: the names read so far, shared with the readers that this one makes. adapters: of layers; None: without.
    """

    def __init__(
        self,
        weights: Mapping[str, Weight],
        ops: Ops[T],
        prefix: str = "",
        read: set[str] | None = None,
        adapters: Adapters[T] | None = None,
    ) -> None:
        self._weights = weights
        self._ops = ops
        self._prefix = prefix
        self._read: set[str] = set() if read is None else read
        self._adapters = adapters or Adapters({}, 0, ops)

    def under(self, prefix: str) -> WeightReader[T]:
        """Return a reader whose names continue from `prefix`."""
        return WeightReader(self._weights, self._ops, self._prefix + prefix, self._read, self._adapters)

    def over(self, ops: Ops[T]) -> WeightReader[T]:
        """Return a reader of the same names that makes constants of `ops`, without adapters."""
        return WeightReader(self._weights, ops, self._prefix, self._read)

    def unread(self) -> set[str]:
        """Return the full names of the tensors that neither this reader nor one made from it has read."""
        return (self._weights.keys() - self._read) | self._adapters.unread()

    def ignore(self, name: str) -> None:
        """Count the tensor as read."""
        self._read.add(self._prefix + name)

    def after_prefix(self, prefixes: Sequence[str], name: str) -> WeightReader[T]:
        """Return a reader under the first of `prefixes` that has `name`. Raises ModelUnavailable if none has."""
        for prefix in prefixes:
            if self._prefix + prefix + name in self._weights:
                return self.under(prefix)
        tried = ", ".join(self._prefix + prefix + name for prefix in prefixes)
        raise ModelUnavailable(f"the checkpoint has no tensor named {tried}")

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._weights

    def first_of(self, *names: str) -> str:
        """Return the first of `names` that the checkpoint has; else the last, which `tensor` will report."""
        return next((name for name in names if name in self), names[-1])

    def tensor(self, name: str, *shape: int, rows: slice | Int32 | None = None) -> T:
        """Return the constant `name`; of it these rows only, a slice without a copy: part of a fused product, or of a
        table."""
        return self._ops.constant(self._rows(name, shape, rows))

    def array(self, name: str, *shape: int) -> npt.NDArray[np.float32]:
        """Return a float32 copy of the tensor, to compute other constants from."""
        return self._checked(name, shape).as_float32()

    def check_tied(
        self,
        name: str,
        words: WeightReader[T],
        of: str,
        config: Mapping[str, Any],
        *shape: int,
        rows: slice | None = None,
    ) -> None:
        """Raise ModelUnavailable if the checkpoint has a matrix `name` that differs from the word vectors `of`, to
        which config.json ties it: transformers 4 replaces it by them, transformers 5 computes with it."""
        key = "tie_word_embeddings"
        if name not in self or (isinstance(config, Settings) and key in config.allowed):
            return
        tensors = self._rows(name, shape, rows), words._rows(of, shape, rows)
        if not all(map(np.array_equal, *(tensor.parts() for tensor in tensors))):
            raise ModelUnavailable(
                f"config.json: {key} is true, but {self._prefix}{name} differs from {words._prefix}{of}; set it to "
                f"false to use that matrix, or ignore the matrix with {OPTION} {key}"
            )

    def constant(self, name: str, array: npt.NDArray[np.floating]) -> T:
        """Return a constant that is not in the checkpoint, such as a table of positions."""
        return self._ops.constant(Weight(name, "F32", np.ascontiguousarray(array, np.float32)))

    def linear(
        self, name: str, inputs: int, outputs: int, *, bias: bool = True, rows: slice | Int32 | None = None
    ) -> Linear[T]:
        """Return `name.weight` (outputs, inputs) and, if the layer has one, `name.bias` (outputs,); or these rows."""
        weight = self._rows(f"{name}.weight", (outputs, inputs), rows)
        added = self._rows(f"{name}.bias", (outputs,), rows) if bias else None
        change = self._adapters.of_linear(self._prefix + name, weight, added, outputs, rows)
        return Linear(self._ops.matrix(weight), None if added is None else self._ops.constant(added), change)

    def convolution(self, name: str, *shape: int, bias: bool, flat: bool = False) -> Linear[T]:
        """Return a convolution whose steps are as long as its kernel, as the layer of one kernel's numbers in order.

        shape: of `name.weight` (outputs, channels, height, width); `name.bias` (outputs,) if it has one. flat: it is
        (outputs, height * width * channels) instead.
        """
        outputs, channels = shape[:2]
        weight = self._checked(f"{name}.weight", (outputs, prod(shape[1:])) if flat else shape)
        array = weight.array.reshape(outputs, -1, channels).swapaxes(1, 2) if flat else weight.array
        matrix = Weight(weight.name, weight.dtype, np.ascontiguousarray(array.reshape(outputs, -1)))
        return Linear(self._ops.matrix(matrix), self.tensor(f"{name}.bias", outputs) if bias else None)

    def table_change(self, name: str, words: int, width: int) -> LowRank[T] | None:
        """Return what adapters change in the table `name`.weight (words, width); None: nothing."""
        return self._adapters.of_table(self._prefix + name, words, width)

    def row_change(self, name: str, width: int) -> T | None:
        """Return what each adapter adds to `name`.weight (1, width), as (adapters + 1, width); None: nothing."""
        return self._adapters.of_row(self._prefix + name, width)

    def stacked(self, name: str, *shape: int, count: int, transposed: bool = False) -> tuple[T, ...]:
        """Return `count` matrices that are one below the other in the tensor `name`, as weights of layers.

        transposed: their columns are the tensor's rows; this takes a copy.
        """
        weight = self._checked(name, shape)
        parts = np.split(weight.array, count)  # one array for all: a computed one is not kept
        if transposed:
            parts = [np.ascontiguousarray(part.T) for part in parts]
        return tuple(self._ops.matrix(Weight(weight.name, weight.dtype, part)) for part in parts)

    def linears(
        self, names: str | Sequence[str], inputs: int, outputs: Sequence[int], *, bias: bool
    ) -> tuple[Linear[T], ...]:
        """Return the layers `names`, of so many outputs each, or those that are stacked under one name."""
        if not isinstance(names, str):
            return tuple(self.linear(name, inputs, size, bias=bias) for name, size in zip(names, outputs, strict=False))
        ends = pairwise(accumulate(outputs, initial=0))
        return tuple(self.linear(names, inputs, sum(outputs), bias=bias, rows=slice(*part)) for part in ends)

    def norm(self, name: str, width: int, *, bias: bool = True, offset: float = 0.0) -> Norm[T]:
        """Return `name.weight`, plus `offset`, and `name.bias`; `gamma` and `beta` in checkpoints from TensorFlow."""
        if offset:
            return Norm(self.constant(f"{name}.weight", offset + self.array(f"{name}.weight", width)), None)
        weight_name, bias_name = ("gamma", "beta") if f"{name}.gamma" in self else ("weight", "bias")
        weight = self.tensor(f"{name}.{weight_name}", width)
        return Norm(weight, self.tensor(f"{name}.{bias_name}", width) if bias else None)

    def _rows(self, name: str, shape: Sequence[int], rows: slice | Int32 | None) -> Weight:
        weight = self._checked(name, shape)
        return weight if rows is None else Weight(weight.name, weight.dtype, weight.array[rows])

    def _checked(self, name: str, shape: Sequence[int]) -> Weight:
        full_name = self._prefix + name
        weight = self._weights.get(full_name)
        if weight is None:
            raise ModelUnavailable(f"the checkpoint has no tensor {full_name}, which should be {_show(shape)}")
        if weight.dtype not in NETWORK_DTYPES:
            supported = ", ".join(sorted(NETWORK_DTYPES))
            raise ModelUnavailable(f"the checkpoint's tensor {full_name} is {weight.dtype}; supported are {supported}")
        if weight.shape != tuple(shape):
            raise ModelUnavailable(
                f"the checkpoint's tensor {full_name} is {_show(weight.shape)}; "
                f"by config.json it should be {_show(shape)}"
            )
        self._read.add(full_name)
        return weight


class HarmlessTensors(msgspec.Struct, frozen=True):
    """Tensors of an architecture's checkpoints that its network need not read, and the reason."""

    reason: str
    names: str  # a regular expression of whole names
    unless: Output | None = None  # the output that needs them

    def includes(self, name: str, outputs: Collection[Output]) -> bool:
        return self.unless not in outputs and re.fullmatch(self.names, name) is not None


# Reasons and names that several architectures share; each lists its own as HARMLESS_TENSORS.
LABELS = HarmlessTensors(
    "heads of classifiers and of answers in a text", r"(classifier|score|qa_outputs)\.(weight|bias)", unless="scores"
)
POOLER = HarmlessTensors("the body's pooler, which only classifiers read", r"(\w+\.)?pooler\.dense\.(weight|bias|lora)")
FREQUENCIES = HarmlessTensors("frequencies of rotary positions, which the config determines", r"(.+\.)?inv_freq")
_NAMED_LIMIT = 3  # tensors in the message


def check_all_read(
    unread: Collection[str], harmless: Collection[HarmlessTensors], outputs: Collection[Output], model_type: str
) -> None:
    """Raises ModelUnavailable, with names and count, if a tensor that affects `outputs` was not read."""
    unused = sorted(name for name in unread if not any(known.includes(name, outputs) for known in harmless))
    if unused:
        names = ", ".join(name[:100] for name in unused[:_NAMED_LIMIT]) + ", ..." * (len(unused) > _NAMED_LIMIT)
        raise ModelUnavailable(
            f"the checkpoint's tensors {names} ({len(unused)} in all) have no place in a network of model_type "
            f"{model_type!r}: it was trained as another network, or config.json describes only a part of it"
        )


def _show(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a single number"
