"""`documents` to rank and the list of `results`, as Cohere, Jina, infinity, vLLM and Semantic Explorer write them.

They share a path, and a body may not tell them apart; so each result carries every key that one of them reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from vectord.products.common.order import best_first
from vectord.schema import Float32, RerankResult


class TextDocument(msgspec.Struct):
    """A document in an object; other keys are ignored."""

    text: str


Documents: TypeAlias = list[str | TextDocument]


def read_documents(documents: Documents) -> list[str]:
    return [document if isinstance(document, str) else document.text for document in documents]


def as_object(text: str) -> dict[str, str]:
    """How all but infinity show a document."""
    return {"text": text}


def ranked(
    result: RerankResult,
    passages: Sequence[str],
    *,
    top_n: int | None,
    document: Callable[[str], object] | None,
    text: bool = True,
) -> list[dict[str, Any]]:
    """Best first, at most `top_n` (None and 0: all).

    document: what stands under `document` for a passage, None for no such key. text: whether Semantic Explorer's
    `text` stands beside it.
    """
    return [
        _one(result.scores, passages, index, document, text) for index in best_first(result.scores)[: top_n or None]
    ]


def _one(
    scores: Float32, passages: Sequence[str], index: int, document: Callable[[str], object] | None, text: bool
) -> dict[str, Any]:
    score = scores[index]
    shown: dict[str, Any] = {"index": index, "relevance_score": score, "score": score}
    if text:
        shown["text"] = passages[index]
    if document is not None:
        shown["document"] = document(passages[index])
    return shown
