"""Bodies and answers of Jina's API, as requests.py reads and OpenAPI shows them.

null is the same as absent; unknown keys are ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from vectord.products.common.body import Count, TokenId
from vectord.products.common.inputs import Switch
from vectord.products.common.usage import TokenUsage

EmbeddingType: TypeAlias = Literal["float", "base64", "binary", "ubinary"]
EmbeddingTypes: TypeAlias = EmbeddingType | list[EmbeddingType]

Types = Annotated[
    EmbeddingTypes | None,
    msgspec.Meta(
        description="base64 is of float32, little-endian; binary and ubinary are bytes of eight signs each. "
        "Of a list, each vector is an object that holds it under each type"
    ),
]
Width = Annotated[Count | None, msgspec.Meta(description="leading numbers to keep; 0 and null: all")]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class TextDoc(msgspec.Struct):
    """A text in an object. One without is an image or a PDF, in the words of some model, and refused."""

    text: str | None = None


Document: TypeAlias = str | TextDoc


class MultiVectorBody(msgspec.Struct):
    input: str | TextDoc | list[str | TokenId | list[TokenId] | TextDoc]
    model: str | None = None
    embedding_type: Types = None
    encoding_type: Annotated[EmbeddingTypes | None, msgspec.Meta(description="LlamaIndex's `embedding_type`")] = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None, msgspec.Meta(description="what OpenAI's SDK sends for `embedding_type`")
    ] = None
    input_type: Annotated[str | None, msgspec.Meta(description='"query" or "document"')] = None
    dimensions: Width = None
    truncate: Annotated[Switch, msgspec.Meta(description="null: yes")] = None
    prompt_name: str | None = None


class EmbeddingsBody(MultiVectorBody):
    task: Annotated[
        str | None, msgspec.Meta(description='"retrieval.query", "code.passage" ...; others have no meaning here')
    ] = None
    normalized: Annotated[Switch, msgspec.Meta(description="null: yes")] = None
    late_chunking: Annotated[
        Switch, msgspec.Meta(description="the inputs are one text in pieces, each embedded in sight of all")
    ] = None
    return_multivector: Annotated[Switch, msgspec.Meta(description="a vector a token, under `embeddings`")] = None
    return_tokenized_input: Annotated[Switch, msgspec.Meta(description="refused if true")] = None
    force_dimensions: Annotated[
        Switch, msgspec.Meta(description="ours: cut vectors that were not trained to be cut, too")
    ] = None


class RerankBody(msgspec.Struct):
    query: str
    documents: list[Document]
    model: str | None = None
    top_n: Annotated[Count | None, msgspec.Meta(description="results to show; 0 and null: all")] = None
    return_documents: Annotated[Switch, msgspec.Meta(description="null: yes")] = None
    truncation: Annotated[Switch, msgspec.Meta(description="null: yes")] = None
    max_doc_length: Annotated[
        Tokens | None, msgspec.Meta(description="tokens of a document that are read; null: as many as the model reads")
    ] = None
    return_embeddings: Annotated[Switch, msgspec.Meta(description="refused if true")] = None


class VectorByType(msgspec.Struct):
    """A vector in each of the types asked for."""

    floats: list[float] | msgspec.UnsetType = msgspec.field(name="float", default=msgspec.UNSET)
    base64: str | msgspec.UnsetType = msgspec.UNSET
    binary: list[int] | msgspec.UnsetType = msgspec.UNSET
    ubinary: list[int] | msgspec.UnsetType = msgspec.UNSET


class EmbeddingItem(msgspec.Struct, tag_field="object", tag="embedding"):
    index: int
    embedding: list[float] | str | VectorByType


class MultiVectorByType(msgspec.Struct):
    floats: list[list[float]] | msgspec.UnsetType = msgspec.field(name="float", default=msgspec.UNSET)
    base64: list[str] | msgspec.UnsetType = msgspec.UNSET


class MultiVectorItem(msgspec.Struct, tag_field="object", tag="embeddings"):
    """A vector for each token."""

    index: int
    embeddings: list[list[float] | str] | MultiVectorByType


class Embeddings(msgspec.Struct):
    object: Literal["list"]
    data: list[EmbeddingItem | MultiVectorItem]
    model: str
    usage: TokenUsage


class MultiVectors(msgspec.Struct):
    object: Literal["list"]
    data: list[MultiVectorItem]
    model: str
    usage: TokenUsage


class ShownDocument(msgspec.Struct):
    text: str


class RankedDocument(msgspec.Struct):
    index: int
    relevance_score: float
    score: float  # the same, and `text` is that of `document`: for clients of Semantic Explorer
    text: str | msgspec.UnsetType = msgspec.UNSET  # unless return_documents is false
    document: ShownDocument | msgspec.UnsetType = msgspec.UNSET


class RankingTokens(msgspec.Struct):
    input_tokens: int
    output_tokens: int


class RankingMeta(msgspec.Struct):
    """Xinference's, whose clients read the usage here."""

    tokens: RankingTokens


class Ranking(msgspec.Struct):
    object: Literal["list"]
    results: list[RankedDocument]
    model: str
    usage: TokenUsage
    id: str
    meta: RankingMeta
