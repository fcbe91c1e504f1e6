"""Scores of a text or a pair: classifiers, cross-encoders, and yes-or-no language models.

An architecture file's `classifier(config, weights, ops, labels)` reads the head's weights; network.py builds the head.
Scores are logits; the engine applies sigmoid, softmax or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from vectord.checkpoints.spec import Pooling
from vectord.compute.networks.heads.dense import pool
from vectord.compute.networks.heads.projection import Projection
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T, Tokens


@dataclass(frozen=True, slots=True)
class Classifier(Generic[T]):
    pooling: Pooling
    projections: tuple[Projection[T], ...]  # the last one gives one number a label


def classify_pooled(body: WeightReader[T], weights: WeightReader[T], width: int, labels: int) -> Classifier[T]:
    """The first token through the body's `pooler`, then `classifier`: BERT's way. Raises ModelUnavailable."""
    pooler = Projection(body.linear("pooler.dense", width, width), "tanh")
    return Classifier("cls", (pooler, Projection(weights.linear("classifier", width, labels))))


def classify_first(weights: WeightReader[T], width: int, labels: int) -> Classifier[T]:
    """The first token through `classifier.dense` and `classifier.out_proj`: RoBERTa's way. Raises ModelUnavailable."""
    dense = Projection(weights.linear("classifier.dense", width, width), "tanh")
    return Classifier("cls", (dense, Projection(weights.linear("classifier.out_proj", width, labels))))


class ClassifierHead(Generic[T]):
    """(T, H) to (M, labels)."""

    def __init__(self, classifier: Classifier[T], ops: Ops[T]) -> None:
        self._classifier = classifier
        self._ops = ops

    def __call__(self, x: T, tokens: Tokens[T]) -> T:
        x = pool(self._ops, self._classifier.pooling, x, tokens)
        for projection in self._classifier.projections:
            x = projection.apply(self._ops, x)
        return x


class YesNoHead(Generic[T]):
    """(T, H) to (M, 2): the logits of "no" and "yes" after the last token, two rows of the language model's head."""

    def __init__(self, words: T, ops: Ops[T]) -> None:
        """words (2, H): the head's rows of "no" and "yes"."""
        self._words = words
        self._ops = ops

    def __call__(self, x: T, tokens: Tokens[T]) -> T:
        return self._ops.linear(self._ops.last(x, tokens), self._words, None)
