"""One vector a text: pooling, then sentence-transformers' Dense modules.

any_body.py builds one per embedding model. The engine normalizes and cuts to `dimensions`, which needs no
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from vectord.checkpoints.checkpoint import Checkpoint, open_checkpoint
from vectord.checkpoints.spec import DenseModule, ModelSpec, Pooling
from vectord.compute.networks.heads.projection import Projection
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T, Tokens
from vectord.errors import ModelUnavailable


class DenseHead(Generic[T]):
    """(T, H) to (M, D), not normalised. Source: sentence-transformers Pooling and Dense."""

    def __init__(self, spec: ModelSpec, ops: Ops[T]) -> None:
        """Opens the Dense modules' own checkpoints. Raises ModelUnavailable if widths or files do not fit."""
        assert spec.pooling is not None, "only for models that embed"
        self._ops = ops
        self._pooling: Pooling = spec.pooling
        self._modules = DenseModules(spec.dense_modules, ops)
        _check(spec)

    def __call__(self, x: T, tokens: Tokens[T]) -> T:
        return self._modules.apply(pool(self._ops, self._pooling, x, tokens))  # (M, D)


class DenseModules(Generic[T]):
    """Linear layers in sequence, each from its own file."""

    def __init__(self, modules: Sequence[DenseModule], ops: Ops[T]) -> None:
        """Raises ModelUnavailable if files do not fit."""
        self._ops = ops
        # kept because a graph's constants may lie over these maps without keeping them alive
        self._checkpoints = tuple(open_checkpoint((module.weights,)) for module in modules)
        self._projections = tuple(
            _project(ops, module, checkpoint) for module, checkpoint in zip(modules, self._checkpoints, strict=True)
        )

    def apply(self, x: T) -> T:
        """(T, H) to (T, O)."""
        for projection in self._projections:
            x = projection.apply(self._ops, x)
        return x


def pool(ops: Ops[T], pooling: Pooling, x: T, tokens: Tokens[T]) -> T:
    """(T, H) to (M, H): each span's first row, last row, mean or largest numbers."""
    pools = {"cls": ops.first, "last": ops.last, "mean": ops.mean, "max": ops.max}
    return pools[pooling](x, tokens)


def _project(ops: Ops[T], module: DenseModule, checkpoint: Checkpoint) -> Projection[T]:
    """A Dense module as a projection."""
    linear = WeightReader(checkpoint, ops).linear("linear", module.in_features, module.out_features, bias=module.bias)
    return Projection(linear, module.activation)


def _check(spec: ModelSpec) -> None:
    width = spec.hidden_size
    for module in spec.dense_modules:
        if module.in_features != width:
            raise ModelUnavailable(f"Dense module {module.folder.name} takes {module.in_features} numbers, not {width}")
        width = module.out_features
    if width != spec.dimensions:
        raise ModelUnavailable(f"the model's modules give {width} numbers a text, not {spec.dimensions}")
