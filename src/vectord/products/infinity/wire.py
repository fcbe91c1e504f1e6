"""Bodies and answers of infinity's API, as requests.py reads and OpenAPI shows them.

null is the same as absent; unknown keys are ignored. `usage` counts tokens, where infinity counts characters.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from vectord.products.common.body import Count, TokenId
from vectord.products.common.inputs import Switch
from vectord.products.common.usage import TokenUsage

MAX_TEXT_CHARS = 122_880  # infinity's own bound, 15 for each of 8192 tokens

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS, description="blanks at both ends are dropped")]
TopN = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Model = Annotated[
    str | None,
    msgspec.Meta(description='null and "default/not-specified": the first that can; any, where one is served'),
]


class TextDocument(msgspec.Struct):
    """A document as LiteLLM may send it; other keys are ignored."""

    text: Text


class EmbeddingsBody(msgspec.Struct):
    """Vectors that `dimensions` has cut are of length 1 again, which infinity leaves to the client."""

    input: Text | list[Text | TokenId | list[TokenId]]
    model: Model = None
    encoding_format: Annotated[str | None, msgspec.Meta(description='"float" (also for null) or "base64"')] = None
    user: str | None = None
    dimensions: Annotated[Count | None, msgspec.Meta(description="leading numbers to keep; 0 and null: all")] = None
    output_dimension: Annotated[Count | None, msgspec.Meta(description="LiteLLM's word for `dimensions`")] = None
    force_dimensions: Annotated[
        Switch, msgspec.Meta(description="ours: cut vectors that were not trained to be cut, too")
    ] = None
    modality: Annotated[str | None, msgspec.Meta(description='"text"; images and audio are not served')] = None


class RerankBody(msgspec.Struct):
    query: Text
    documents: list[Text | TextDocument]
    model: Model = None
    return_documents: Switch = None
    raw_scores: Annotated[Switch, msgspec.Meta(description="logits; null: 0 to 1")] = None
    top_n: Annotated[TopN | None, msgspec.Meta(description="results to show; null: all")] = None


class ClassifyBody(msgspec.Struct):
    input: list[Text]
    model: Model = None
    raw_scores: Annotated[Switch, msgspec.Meta(description="logits; null: probabilities")] = None


class EmbeddingItem(msgspec.Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(msgspec.Struct):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: TokenUsage
    id: str
    created: int


class RankedDocument(msgspec.Struct):
    index: int
    relevance_score: float
    score: float  # the same, for clients of Semantic Explorer
    document: str | None  # null unless return_documents


class Ranking(msgspec.Struct):
    object: Literal["rerank"]
    results: list[RankedDocument]
    model: str
    usage: TokenUsage
    id: str
    created: int


class ScoredLabel(msgspec.Struct):
    score: float
    label: str


class Classes(msgspec.Struct):
    object: Literal["classify"]
    data: list[list[ScoredLabel]]
    model: str
    usage: TokenUsage
    id: str
    created: int
