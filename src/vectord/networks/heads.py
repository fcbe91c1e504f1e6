"""What turns last hidden states into an answer, over the same ops: pooling, then sentence-transformers' Dense.

Network builds one per model. Normalising and cutting to `dimensions` are the engine's: they need no weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Generic

from vectord.artifacts.checkpoint import Checkpoint, open_checkpoint
from vectord.artifacts.spec import DenseModule, ModelSpec, Pooling
from vectord.errors import ModelUnavailable
from vectord.networks.weights import Linear, WeightReader
from vectord.ops.base import Activation, Ops, T, Tokens


@dataclass(frozen=True, slots=True)
class Projection(Generic[T]):
    """One Dense module."""

    linear: Linear[T]
    activation: Activation


class DenseHead(Generic[T]):
    """(T, H) to (N, D): one vector a text, not normalised. Source: sentence-transformers Pooling and Dense."""

    def __init__(self, spec: ModelSpec, ops: Ops[T]) -> None:
        """Opens the Dense modules' own checkpoints. Raises ModelUnavailable if widths or files do not fit."""
        _check(spec)
        self._ops = ops
        self._pooling = spec.pooling
        # Held because a graph's constants may lie over these maps without holding them.
        self._checkpoints = tuple(open_checkpoint((m.folder / "model.safetensors",)) for m in spec.dense_modules)
        self._projections = tuple(map(partial(_projection, ops), spec.dense_modules, self._checkpoints))

    def __call__(self, x: T, tokens: Tokens[T]) -> T:
        x = pool(self._ops, self._pooling, x, tokens)  # (N, H)
        for projection in self._projections:
            x = self._ops.linear(x, projection.linear.weight, projection.linear.bias)
            x = self._ops.activation(x, projection.activation)
        return x  # (N, D)


def pool(ops: Ops[T], pooling: Pooling, x: T, tokens: Tokens[T]) -> T:
    """(T, H) to (N, H): each text's first row, last row, or mean."""
    if pooling == "cls":
        return ops.first(x, tokens)
    if pooling == "last":
        return ops.last(x, tokens)
    return ops.mean(x, tokens)


def _projection(ops: Ops[T], module: DenseModule, checkpoint: Checkpoint) -> Projection[T]:
    linear = WeightReader(checkpoint, ops).linear("linear", module.in_features, module.out_features, bias=module.bias)
    return Projection(linear, module.activation)


def _check(spec: ModelSpec) -> None:
    if not spec.include_prompt and any(spec.prompts.values()):
        raise ModelUnavailable("pooling that leaves out the prompt's tokens (include_prompt: false) is not supported")
    width = spec.hidden_size
    for module in spec.dense_modules:
        if module.in_features != width:
            raise ModelUnavailable(f"Dense module {module.folder.name} takes {module.in_features} numbers, not {width}")
        width = module.out_features
    if width != spec.dimensions:
        raise ModelUnavailable(f"the model's modules give {width} numbers a text, not {spec.dimensions}")
