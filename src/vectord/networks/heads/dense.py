"""One vector a text: pooling, then sentence-transformers' Dense modules.

any_body.py builds one per model that embeds. Normalising and cutting to `dimensions` are the engine's: they need no
weights.
"""

from __future__ import annotations

from typing import Generic

from vectord.artifacts.checkpoint import Checkpoint, open_checkpoint
from vectord.artifacts.spec import DenseModule, ModelSpec, Pooling
from vectord.errors import ModelUnavailable
from vectord.networks.heads.projection import Projection
from vectord.networks.weights import WeightReader
from vectord.ops.base import Ops, T, Tokens


class DenseHead(Generic[T]):
    """(T, H) to (M, D), not normalised. Source: sentence-transformers Pooling and Dense."""

    def __init__(self, spec: ModelSpec, ops: Ops[T]) -> None:
        """Opens the Dense modules' own checkpoints. Raises ModelUnavailable if widths or files do not fit."""
        assert spec.pooling is not None, "only for models that embed"
        self._ops = ops
        self._pooling: Pooling = spec.pooling
        # Held because a graph's constants may lie over these maps without holding them.
        self._checkpoints = tuple(open_checkpoint((module.weights,)) for module in spec.dense_modules)
        self._projections = tuple(
            project(ops, module, checkpoint)
            for module, checkpoint in zip(spec.dense_modules, self._checkpoints, strict=True)
        )
        _check(spec)

    def __call__(self, x: T, tokens: Tokens[T]) -> T:
        x = pool(self._ops, self._pooling, x, tokens)  # (M, H)
        for projection in self._projections:
            x = projection.apply(self._ops, x)
        return x  # (M, D)


def pool(ops: Ops[T], pooling: Pooling, x: T, tokens: Tokens[T]) -> T:
    """(T, H) to (M, H): each span's first row, last row, mean or largest numbers."""
    pools = {"cls": ops.first, "last": ops.last, "mean": ops.mean, "max": ops.max}
    return pools[pooling](x, tokens)


def project(ops: Ops[T], module: DenseModule, checkpoint: Checkpoint) -> Projection[T]:
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
