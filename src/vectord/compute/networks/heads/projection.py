"""A linear layer with optional activation and norm: the building block of every head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from vectord.compute.networks.weights import Linear, Norm
from vectord.compute.ops.base import Activation, Ops, T


@dataclass(frozen=True, slots=True)
class Projection(Generic[T]):
    linear: Linear[T]
    activation: Activation = "identity"
    norm: Norm[T] | None = None
    norm_eps: float = 1e-12

    def apply(self, ops: Ops[T], x: T) -> T:
        """(T, H) to (T, O)."""
        x = ops.activation(ops.linear(x, self.linear.weight, self.linear.bias), self.activation)
        return x if self.norm is None else ops.layer_norm(x, self.norm.weight, self.norm.bias, self.norm_eps)
