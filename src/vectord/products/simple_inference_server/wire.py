"""Bodies and answers of Simple Inference Server, as requests.py reads and OpenAPI shows them.

null is the same as absent; unknown keys are ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from vectord.products.common.body import Count
from vectord.products.common.inputs import TextsOrIds
from vectord.products.common.usage import EmbeddingsUsage, TokenUsage


class EmbeddingsBody(msgspec.Struct):
    """More than the product takes: lists of token ids, base64, and no `model` at all, for the OpenAI SDK's users."""

    input: TextsOrIds
    model: str | None = None
    encoding_format: Annotated[str | None, msgspec.Meta(description='"float" (also for null) or "base64"')] = None
    user: str | None = None


class RerankBody(msgspec.Struct):
    query: str
    documents: list[str]
    model: str | None = None
    top_n: Annotated[Count | None, msgspec.Meta(description="0 and null: all")] = None


class EmbeddingItem(msgspec.Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(msgspec.Struct):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingsUsage


class RankedDocument(msgspec.Struct):
    index: int
    relevance_score: float
    score: float
    document: str


class Ranking(msgspec.Struct):
    model: str
    results: list[RankedDocument]
    usage: TokenUsage
