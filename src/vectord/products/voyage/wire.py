"""Bodies and answers of Voyage's API, as requests.py reads and OpenAPI shows them.

null is the same as absent; unknown keys are ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from vectord.products.common.body import Count
from vectord.products.common.inputs import Switch
from vectord.schema import Precision

InputType = Annotated[str | None, msgspec.Meta(description='"query" or "document"')]
Width = Annotated[Count | None, msgspec.Meta(description="leading numbers to keep; 0 and null: all")]
Dtype = Annotated[Precision | None, msgspec.Meta(description="what the numbers are; null: float")]
Encoding = Annotated[str | None, msgspec.Meta(description='null or "base64": the bytes of numbers of `output_dtype`')]
Force = Annotated[Switch, msgspec.Meta(description="ours: cut vectors that were not trained to be cut, too")]
ChunkTokens = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class EmbeddingsBody(msgspec.Struct):
    input: str | list[str]
    model: str | None = None
    input_type: InputType = None
    truncation: Annotated[Switch, msgspec.Meta(description="null: yes")] = None
    output_dimension: Width = None
    force_dimensions: Force = None
    output_dtype: Dtype = None
    encoding_format: Encoding = None


class ContextualizedBody(msgspec.Struct):
    """`inputs`: for each document its chunks, in order and without overlap; for each query itself alone."""

    inputs: list[list[str]]
    model: str | None = None
    input_type: InputType = None
    output_dimension: Width = None
    force_dimensions: Force = None
    output_dtype: Annotated[Precision | None, msgspec.Meta(description="what the numbers are; null: float")] = None
    encoding_format: Encoding = None
    enable_auto_chunking: Annotated[
        Switch, msgspec.Meta(description="each document is one text, which is cut into chunks here")
    ] = None
    chunk_size: Annotated[ChunkTokens | None, msgspec.Meta(description="tokens; null: 512")] = None
    chunk_overlap: Annotated[
        Count | None, msgspec.Meta(description="tokens a chunk shares with the one before; null: none")
    ] = None


class RerankBody(msgspec.Struct):
    query: str
    documents: list[str]
    model: str | None = None
    top_k: Annotated[Count | None, msgspec.Meta(description="results to show; 0 and null: all")] = None
    return_documents: Switch = None
    truncation: Annotated[Switch, msgspec.Meta(description="null: yes")] = None


class EmbeddingItem(msgspec.Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class ChunkItem(EmbeddingItem):
    text: str | msgspec.UnsetType = msgspec.UNSET  # only with enable_auto_chunking


class VoyageUsage(msgspec.Struct):
    total_tokens: int
    truncated_inputs: list[int] | msgspec.UnsetType = msgspec.UNSET  # only when something was cut


class Embeddings(msgspec.Struct):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: VoyageUsage


class DocumentItem(msgspec.Struct):
    object: Literal["list"]
    index: int
    data: list[ChunkItem]


class ContextualizedEmbeddings(msgspec.Struct):
    object: Literal["list"]
    data: list[DocumentItem]
    model: str
    usage: VoyageUsage


class RankedItem(msgspec.Struct):
    index: int
    relevance_score: float
    document: str | msgspec.UnsetType = msgspec.UNSET  # only with return_documents


class Ranking(msgspec.Struct):
    object: Literal["list"]
    data: list[RankedItem]
    model: str
    usage: VoyageUsage
