"""A checkpoint as a network reads it: tensors by name, checked against the shape the config promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from vectord.artifacts.checkpoint import Weight
from vectord.errors import ModelUnavailable
from vectord.ops.base import Ops, T


@dataclass(frozen=True, slots=True)
class Linear(Generic[T]):
    weight: T  # (O, H)
    bias: T | None  # (O,)


@dataclass(frozen=True, slots=True)
class Norm(Generic[T]):
    weight: T  # (H,)
    bias: T  # (H,)


class WeightReader(Generic[T]):
    """Hands out constants of one op set; `prefix` comes before every name."""

    def __init__(self, weights: Mapping[str, Weight], ops: Ops[T], prefix: str = "") -> None:
        self._weights = weights
        self._ops = ops
        self._prefix = prefix

    def after_prefix(self, prefixes: Sequence[str], name: str) -> WeightReader[T]:
        """A reader under the first of `prefixes` that has `name`. Raises ModelUnavailable if none has."""
        for prefix in prefixes:
            if prefix + name in self._weights:
                return WeightReader(self._weights, self._ops, prefix)
        tried = ", ".join(prefix + name for prefix in prefixes)
        raise ModelUnavailable(f"the checkpoint has no tensor named {tried}")

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._weights

    def tensor(self, name: str, *shape: int) -> T:
        """The constant `name`. Raises ModelUnavailable if it is missing or not of this shape."""
        full_name = self._prefix + name
        weight = self._weights.get(full_name)
        if weight is None:
            raise ModelUnavailable(f"the checkpoint has no tensor {full_name}, which should be {_show(shape)}")
        if weight.array.shape != shape:
            raise ModelUnavailable(
                f"the checkpoint's tensor {full_name} is {_show(weight.array.shape)}; "
                f"by config.json it should be {_show(shape)}"
            )
        return self._ops.constant(weight)

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool = True) -> Linear[T]:
        """`name.weight` (outputs, inputs) and, unless the layer has none, `name.bias` (outputs,)."""
        weight = self.tensor(f"{name}.weight", outputs, inputs)
        return Linear(weight, self.tensor(f"{name}.bias", outputs) if bias else None)

    def norm(self, name: str, width: int) -> Norm[T]:
        """`name.weight` and `name.bias`; `gamma` and `beta` in checkpoints that came from TensorFlow."""
        weight, bias = ("gamma", "beta") if f"{name}.gamma" in self else ("weight", "bias")
        return Norm(self.tensor(f"{name}.{weight}", width), self.tensor(f"{name}.{bias}", width))


def _show(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a single number"
