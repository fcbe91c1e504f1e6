"""Reranked documents as Cohere, Jina, infinity, vLLM and Semantic Explorer read and write them.

These products share a path, and their bodies may be alike. So each result has every key that one of their clients
reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from vectord.schema import Float32, RerankResult

T = TypeVar("T")


class TextDocument(msgspec.Struct):
    """A document in an object; other keys are ignored."""

    text: str


class RankedItem(msgspec.Struct):
    """The keys of every item of `ranked`. Products add `text` and `document` as they have them."""

    index: int
    relevance_score: float
    score: float  # the same


Documents: TypeAlias = list[str | TextDocument]

EXAMPLE: Mapping[str, Any] = {
    "query": "What is the capital of France?",
    "documents": ["Paris is the capital of France.", "Cats sleep most of the day."],
}


def read_documents(documents: Documents) -> list[str]:
    """The documents' texts."""
    return [document if isinstance(document, str) else document.text for document in documents]


def as_object(text: str) -> dict[str, str]:
    """A document in a response, for all these products but infinity."""
    return {"text": text}


def best_first(scores: Float32, top_n: int | None = None) -> list[tuple[int, np.float32]]:
    """Indices and values of `scores` (N,) from the highest to the lowest; equal scores stay in order.

    top_n: the most results; None and 0 for all.
    """
    order: list[int] = np.argsort(-scores, kind="stable")[: top_n or None].tolist()
    return [(index, scores[index]) for index in order]


def ranked(
    result: RerankResult,
    passages: Sequence[T],
    top_n: int | None,
    *,
    document: Callable[[T], object] | None,
    text: bool = False,
) -> list[dict[str, Any]]:
    """The results, best first. top_n: the most results; None and 0 for all.

    document: makes the value of `document` from a passage; None leaves the key out. text: whether results have
    Semantic Explorer's `text`.
    """
    items = []
    for index, score in best_first(result.scores, top_n):
        item: dict[str, Any] = {"index": index, "relevance_score": score, "score": score}
        if text:
            item["text"] = passages[index]
        if document is not None:
            item["document"] = document(passages[index])
        items.append(item)
    return items
