"""One vector or one weight a token: ColBERT's vectors and BGE-M3's lexical weights.

any_body.py builds one per model that has them. The engine selects tokens and uses the vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Generic

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import Colbert, ModelSpec
from vectord.compute.networks.heads.dense import DenseModules
from vectord.compute.networks.heads.projection import Projection
from vectord.compute.networks.weights import Linear, WeightReader
from vectord.compute.ops.base import Activation, Ops, T, Tokens


class ColbertHead(Generic[T]):
    """(T, H) to (T, C), each row of length 1. Source: FlagEmbedding's colbert_linear, pylate's Dense."""

    def __init__(self, spec: ModelSpec, colbert: Colbert, ops: Ops[T]) -> None:
        """Opens the head's own files. Raises ModelUnavailable."""
        self._ops = ops
        self._modules = DenseModules(colbert.dense_modules, ops)
        self._linear = BareLayer(colbert.linear, spec.hidden_size, colbert.dimensions, ops) if colbert.linear else None

    def __call__(self, x: T, tokens: Tokens[T]) -> T:
        x = self._modules.apply(x)
        x = x if self._linear is None else self._linear.apply(x)
        return self._ops.normalize(x)  # (T, C)


class LexicalHead(Generic[T]):
    """(T, H) to (T, 1): how much each token matters. Source: FlagEmbedding's sparse_linear."""

    def __init__(self, spec: ModelSpec, file: Path, ops: Ops[T]) -> None:
        """Opens the head's own file. Raises ModelUnavailable."""
        self._layer = BareLayer(file, spec.hidden_size, 1, ops, "relu")

    def __call__(self, x: T, tokens: Tokens[T]) -> T:
        return self._layer.apply(x)


class BareLayer(Generic[T]):
    """A layer with a file of its own: its tensors are called weight and bias."""

    def __init__(self, file: Path, inputs: int, outputs: int, ops: Ops[T], activation: Activation = "identity") -> None:
        self._ops = ops
        self._checkpoint = open_checkpoint((file,))  # kept: a graph's constants may lie over its map
        reader = WeightReader(self._checkpoint, ops)
        linear = Linear(reader.tensor("weight", outputs, inputs), reader.tensor("bias", outputs))
        self._projection = Projection(linear, activation)

    def apply(self, x: T) -> T:
        """(T, inputs) to (T, outputs)."""
        return self._projection.apply(self._ops, x)
