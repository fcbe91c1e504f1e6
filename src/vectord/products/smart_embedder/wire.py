"""Bodies and answers of Smart Embedder, as requests.py reads and OpenAPI shows them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from vectord.products.smart_embedder.flags import Flag


class EmbeddingsBody(msgspec.Struct):
    """All three kinds of vectors unless told otherwise; a null flag is as one left out."""

    sentences: list[str]
    return_dense: Flag = True
    return_sparse: Flag = True
    return_colbert: Flag = True
    normalize_dense: Flag = False
    sparse_as_indices: Flag = False


class RerankBody(msgspec.Struct):
    query: str
    passages: list[str]
    normalize: Annotated[Flag, msgspec.Meta(description="scores from 0 to 1; else as the model gives them")] = False


class Target(msgspec.Struct):
    field: str
    index: int | None
    pointer: str  # a JSON Pointer into the request


class Cut(msgspec.Struct):
    model: str
    max_tokens: int
    original_tokens: int
    truncated_tokens: int
    truncation_side: Literal["end"]


class Warned(msgspec.Struct):
    code: Literal["input_truncated", "query_truncated", "passage_truncated"]
    severity: Literal["warning"]
    message: str
    target: Target
    details: Cut


class Vectors(msgspec.Struct):
    """null for a kind that was not asked for. `sparse`: weights by token id; with sparse_as_indices, two lists under
    `indices` and `values`."""

    dense: list[float] | None
    sparse: dict[str, float | list[float]] | None
    colbert: list[list[float]] | None


class Embedded(msgspec.Struct):
    id: int
    text: str  # as it was sent
    embeddings: Vectors


class EmbeddingsAnswer(msgspec.Struct):
    data: list[Embedded]
    model_name: str
    dense_model_name: str
    sparse_model_name: str
    colbert_model_name: str
    processing_time_ms: float
    warnings: list[Warned]


class Ranked(msgspec.Struct):
    index: int
    passage: str
    score: float


class RerankAnswer(msgspec.Struct):
    results: list[Ranked]
    model_name: str
    processing_time_ms: float
    warnings: list[Warned]


class StatsAnswer(msgspec.Struct):
    """Of embedding alone, but for `rejected_requests`."""

    uptime: str
    uptime_seconds: int
    total_requests: int
    total_sentences: int
    total_batches: int
    rejected_requests: int
    hardware: str
