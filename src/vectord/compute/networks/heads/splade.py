"""One weight a word of the vocabulary: SPLADE, over a masked-language head.

An architecture file's `masked_lm(config, weights, ops)` reads that head's weights; network.py builds the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

from vectord.compute.networks import facts
from vectord.compute.networks.heads.projection import Projection
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T, Tokens


@dataclass(frozen=True, slots=True)
class MaskedLM(Generic[T]):
    transform: Projection[T]
    words: T  # (V, H)
    bias: T  # (V,)


def output_words(
    config: Mapping[str, Any],
    weights: WeightReader[T],
    name: str,
    body: WeightReader[T],
    words: str,
    shape: tuple[int, int],
) -> T:
    """The head's matrix `name`; the body's word vectors `words` if the config ties them or there is no other."""
    tied = facts.flag(config, "tie_word_embeddings", True)
    return body.tensor(words, *shape) if tied or name not in weights else weights.tensor(name, *shape)


class SpladeHead(Generic[T]):
    """(T, H) to (M, V): the largest logit of each word. Source: sentence-transformers SpladePooling, "max".

    log(1 + relu) grows with the logit, so the engine applies it after the maximum.
    """

    def __init__(self, head: MaskedLM[T], ops: Ops[T]) -> None:
        self._head = head
        self._ops = ops

    def __call__(self, x: T, tokens: Tokens[T]) -> T:
        return self._ops.max_linear(self._head.transform.apply(self._ops, x), self._head.words, self._head.bias, tokens)
