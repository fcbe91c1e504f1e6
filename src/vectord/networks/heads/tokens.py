"""One vector or one weight a token: ColBERT's vectors and BGE-M3's lexical weights.

any_body.py builds one per model that has them. Which tokens count, and what becomes of them, is the engine's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Generic

from vectord.artifacts.checkpoint import Checkpoint, open_checkpoint
from vectord.artifacts.spec import Colbert, ModelSpec
from vectord.networks.heads.dense import project
from vectord.networks.heads.projection import Projection
from vectord.networks.weights import Linear, WeightReader
from vectord.ops.base import Ops, T, Tokens


class ColbertHead(Generic[T]):
    """(T, H) to (T, C), each row of length 1. Source: FlagEmbedding's colbert_linear, pylate's Dense."""

    def __init__(self, spec: ModelSpec, colbert: Colbert, ops: Ops[T]) -> None:
        """Opens the head's own files. Raises ModelUnavailable."""
        self._ops = ops
        self._checkpoints = tuple(open_checkpoint((module.weights,)) for module in colbert.dense_modules)
        self._projections = tuple(
            project(ops, module, checkpoint)
            for module, checkpoint in zip(colbert.dense_modules, self._checkpoints, strict=True)
        )
        if colbert.linear is not None:
            self._checkpoints += (open_checkpoint((colbert.linear,)),)
            linear = _bare_linear(self._checkpoints[-1], spec.hidden_size, colbert.dimensions, ops)
            self._projections += (Projection(linear),)

    def __call__(self, x: T, tokens: Tokens[T]) -> T:
        for projection in self._projections:
            x = projection.apply(self._ops, x)
        return self._ops.normalize(x)  # (T, C)


class LexicalHead(Generic[T]):
    """(T, H) to (T, 1): how much each token matters. Source: FlagEmbedding's sparse_linear."""

    def __init__(self, spec: ModelSpec, file: Path, ops: Ops[T]) -> None:
        """Opens the head's own file. Raises ModelUnavailable."""
        self._ops = ops
        self._checkpoint = open_checkpoint((file,))
        self._projection = Projection(_bare_linear(self._checkpoint, spec.hidden_size, 1, ops), "relu")

    def __call__(self, x: T, tokens: Tokens[T]) -> T:
        return self._projection.apply(self._ops, x)


def _bare_linear(checkpoint: Checkpoint, inputs: int, outputs: int, ops: Ops[T]) -> Linear[T]:
    """A file that holds one layer: its names have no prefix."""
    reader = WeightReader(checkpoint, ops)
    return Linear(reader.tensor("weight", outputs, inputs), reader.tensor("bias", outputs))
