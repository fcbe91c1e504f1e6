"""Bodies and answers of Cohere's API, as requests.py reads and OpenAPI shows them.

null is the same as absent; unknown keys are ignored. v1 and v2 share a struct where their bodies hardly differ: what
only one of them documents is read by both.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from vectord.products.common.body import Count, TokenId
from vectord.products.common.inputs import Switch
from vectord.products.common.usage import TokenUsage

Version: TypeAlias = Literal["1", "2"]
EmbeddingType: TypeAlias = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
Truncate: TypeAlias = Literal["END", "START", "NONE"]
Limit = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]

Priority = Annotated[
    int, msgspec.Meta(ge=0, le=999, description="accepted and ignored: the header x-vectord-lane says what may wait")
]


class ContentPart(msgspec.Struct):
    type: Annotated[str, msgspec.Meta(description='"text"; this server embeds no images')]
    text: str | None = None


class EmbedInput(msgspec.Struct):
    content: list[ContentPart]


class EmbedBody(msgspec.Struct):
    """One of `texts` and `inputs`."""

    texts: list[str] | None = None
    inputs: Annotated[
        list[EmbedInput] | None, msgspec.Meta(description="the text parts of each are one text, a line each")
    ] = None
    images: Annotated[list[str] | None, msgspec.Meta(description="refused: this server embeds no images")] = None
    model: str | None = None
    input_type: Annotated[
        str | None, msgspec.Meta(description='"search_query" or "search_document"; others have no meaning here')
    ] = None
    embedding_types: Annotated[
        list[EmbeddingType] | None,
        msgspec.Meta(description="base64 is of float32, little-endian; null: float, in v1 without its name"),
    ] = None
    truncate: Truncate | None = None
    max_tokens: Annotated[Limit | None, msgspec.Meta(description="of an input, specials included")] = None
    output_dimension: Annotated[Count | None, msgspec.Meta(description="leading numbers to keep; 0, null: all")] = None
    force_dimensions: Annotated[
        Switch, msgspec.Meta(description="ours: cut vectors that were not trained to be cut, too")
    ] = None
    priority: Priority | None = None


class RerankBody(msgspec.Struct):
    """Of a document's object only fields that are strings count, as Cohere's schema has them."""

    query: str
    documents: list[str | dict[str, Any]]
    model: str | None = None
    top_n: Annotated[Count | None, msgspec.Meta(description="results to show; 0 and null: all")] = None
    rank_fields: Annotated[
        list[str] | None,
        msgspec.Meta(
            description="fields of objects to rank by, in this order, a line `name: value` each; null: `text`"
        ),
    ] = None
    return_documents: Annotated[
        Switch, msgspec.Meta(description="null: yes in v1, where other APIs answer so, and no in v2")
    ] = None
    max_chunks_per_doc: Annotated[Count | None, msgspec.Meta(description="accepted and ignored")] = None
    max_tokens_per_doc: Annotated[
        Limit | None, msgspec.Meta(description="longer documents are cut to it; null: 4096 in v2, and no limit in v1")
    ] = None
    priority: Priority | None = None


class TokenizeBody(msgspec.Struct):
    text: str
    model: str | None = None


class DetokenizeBody(msgspec.Struct):
    tokens: list[TokenId]
    model: str | None = None


class ApiVersion(msgspec.Struct):
    version: Version


class BilledUnits(msgspec.Struct):
    """Embedding bills tokens, reranking one search."""

    input_tokens: int | msgspec.UnsetType = msgspec.UNSET
    search_units: int | msgspec.UnsetType = msgspec.UNSET


class Meta(msgspec.Struct):
    api_version: ApiVersion
    billed_units: BilledUnits | msgspec.UnsetType = msgspec.UNSET  # not where only tokens are made
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET  # only when something was cut


class EmbeddingsByType(msgspec.Struct):
    """Those asked for, a row a text. Rows of binary and ubinary have a number for eight dimensions."""

    floats: list[list[float]] | msgspec.UnsetType = msgspec.field(name="float", default=msgspec.UNSET)
    int8: list[list[int]] | msgspec.UnsetType = msgspec.UNSET
    uint8: list[list[int]] | msgspec.UnsetType = msgspec.UNSET
    binary: list[list[int]] | msgspec.UnsetType = msgspec.UNSET
    ubinary: list[list[int]] | msgspec.UnsetType = msgspec.UNSET
    base64: list[str] | msgspec.UnsetType = msgspec.UNSET


class EmbedAnswer(msgspec.Struct):
    id: str
    response_type: Literal["embeddings_floats", "embeddings_by_type"]  # v1's SDK chooses by it how to read the rest
    embeddings: list[list[float]] | EmbeddingsByType
    texts: list[str]
    meta: Meta


class RankedDocument(msgspec.Struct):
    index: int
    relevance_score: float
    score: float
    document: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class RerankAnswer(msgspec.Struct):
    """`object`, `model`, `usage` and `score` are for the clients of other APIs that share the path."""

    id: str
    object: Literal["rerank"]
    model: str
    results: list[RankedDocument]
    usage: TokenUsage
    meta: Meta


class TokenizeAnswer(msgspec.Struct):
    tokens: list[int]
    token_strings: list[str]
    meta: Meta


class DetokenizeAnswer(msgspec.Struct):
    text: str
    meta: Meta
