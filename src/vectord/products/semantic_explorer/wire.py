"""Bodies and answers of Semantic Explorer, as requests.py reads and OpenAPI shows them.

null is the same as absent; unknown keys are ignored. A `model` is required there; here it may be left out.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from vectord.products.common.body import Count
from vectord.products.common.inputs import Switch
from vectord.products.common.ranking import Documents, TextDocument
from vectord.products.common.usage import TokenUsage

Best = Annotated[Count | None, msgspec.Meta(description="how many results; 0 and null: all")]


class EmbedBody(msgspec.Struct):
    input: str | list[str]
    model: str | None = None


class TextBody(msgspec.Struct):
    text: str
    model: str | None = None


class TextsBody(msgspec.Struct):
    texts: list[str]
    model: str | None = None


class RerankBody(msgspec.Struct):
    """return_documents: of other products that rank `documents` on this path; it adds a `document` to each result."""

    query: str
    documents: Documents
    model: str | None = None
    top_n: Best = None
    return_documents: Switch = None


class NamedDocument(msgspec.Struct):
    text: str
    id: str | None = None


class RerankNamedBody(msgspec.Struct):
    query: str
    documents: list[NamedDocument]
    model: str | None = None
    top_k: Best = None
    return_scores: bool | None = None


class Embeddings(msgspec.Struct):
    embeddings: list[list[float]]
    model: str
    usage: TokenUsage


class CountedEmbeddings(msgspec.Struct):
    embeddings: list[list[float]]
    model: str
    count: int
    dimensions: int  # 0 if there are none


class Ranked(msgspec.Struct):
    """The same score under both names."""

    index: int
    score: float
    relevance_score: float
    text: str
    document: TextDocument | msgspec.UnsetType = msgspec.UNSET  # only with return_documents


class ApiVersion(msgspec.Struct):
    version: str


class BilledUnits(msgspec.Struct):
    search_units: int


class Meta(msgspec.Struct):
    api_version: ApiVersion
    billed_units: BilledUnits


class Ranking(msgspec.Struct):
    """`results` and `model` are this product's; the rest is for clients of Cohere, Jina and others on this path."""

    id: str
    object: Literal["rerank"]
    results: list[Ranked]
    model: str
    usage: TokenUsage
    meta: Meta


class RankedNamed(msgspec.Struct):
    index: int
    text: str
    id: str | msgspec.UnsetType = msgspec.UNSET  # only if the document has one
    score: float | msgspec.UnsetType = msgspec.UNSET  # not with "return_scores": false


class RankingNamed(msgspec.Struct):
    results: list[RankedNamed]
    model: str


class Described(msgspec.Struct):
    id: str
    name: str
    description: str
    model_type: Literal["embedding", "reranker"]
    dimensions: int | msgspec.UnsetType = msgspec.UNSET  # of an embedding model


class Status(msgspec.Struct):
    """Whether there is a model of each kind that answers."""

    status: Literal["ok", "not_ready"]
    embedding_ready: bool
    reranker_ready: bool
