"""Voyage's API: embeddings, contextualized chunk embeddings and rerank."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from vectord import errors
from vectord.errors import EmptyInput, InvalidField
from vectord.products.common.body import Count, PositiveCount
from vectord.products.common.dialect import EXAMPLE_MODEL, Call, Dialect, Incoming, Rendered, Routes
from vectord.products.common.errors import STATUSES, Statuses, render_message
from vectord.products.common.fields import about, refused
from vectord.products.common.inputs import (
    Force,
    InputItem,
    Medium,
    OnSwitch,
    Switch,
    TopN,
    Truncate,
    Width,
    check_count,
    join_chunks,
    read_chunks,
    read_inputs,
    read_kind,
    read_parts,
    refuse_none,
    with_nvidia_keys,
)
from vectord.products.common.ranking import EXAMPLE, RerankFields, ranked, rerank_request
from vectord.products.common.vectors import (
    EmbeddingItem,
    Encoding,
    embedding_items,
    list_answer,
    read_encoding,
    token_usage,
)
from vectord.schema import (
    ChunkOptions,
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    Input,
    Precision,
    RerankResult,
    Span,
    TextOptions,
    Usage,
)

ROUTES = Routes({"truncate_side": "truncate"})

# The SDK expects 422 for a body that cannot be read, and 400 for any other fault of a body.
ERRORS: Statuses = {
    **STATUSES,
    errors.MalformedBody: 422,
    errors.WrongType: 422,
    errors.EmptyInput: 422,
    errors.ModelNotFound: 400,
}


class VectorFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    input_type: Annotated[str | None, about('"query" or "document"')] = None
    output_dimension: Width = None
    force_dimensions: Force = None
    output_dtype: Annotated[Precision | None, about("the type of the numbers; null: float")] = None
    encoding_format: Annotated[
        str | None, about('null or "base64": the bytes of the numbers, in their `output_dtype`')
    ] = None


# --- embeddings -----------------------------------------------------------------------------------------------


class EmbeddingsBody(VectorFields, kw_only=True):
    input: str | list[str]
    truncation: OnSwitch = None
    truncate: Truncate = None


class VoyageUsage(msgspec.Struct):
    total_tokens: int
    truncated_inputs: list[int] | UnsetType = UNSET  # only if an input was truncated


class BaseAnswer(msgspec.Struct):
    object: Literal["list"]
    model: str
    usage: VoyageUsage


class Embeddings(BaseAnswer):
    data: list[EmbeddingItem]


@ROUTES.post(
    "/v1/embeddings",
    "/embeddings",
    answer=Embeddings,
    summary="Embed texts, as Voyage does",
    example={
        "model": EXAMPLE_MODEL,
        "input": ["a happy person", "a rainy day"],
        "input_type": "document",
        "output_dtype": "int8",
    },
    names={"inputs": "input", "dimensions": "output_dimension"},
)
def parse_embeddings(body: EmbeddingsBody, incoming: Incoming) -> Call:
    own = TextOptions(truncate=body.truncation, truncate_by_default=True)
    text = with_nvidia_keys(own, body.truncate, body.input_type)
    return _embed(body, read_inputs(body.input), text, render_embeddings)


def render_embeddings(dtype: Precision, encoding: Encoding, result: EmbedResult) -> Rendered:
    return _list(result, embedding_items(result.dense[dtype], encoding))


# --- texts and images ---------------------------------------------------------------------------------------


class Part(InputItem):
    video_url: Medium = None
    video_base64: Medium = None


class MultimodalInput(msgspec.Struct):
    content: list[Part]


class MultimodalBody(VectorFields, kw_only=True):
    inputs: list[MultimodalInput]
    truncation: OnSwitch = None


class MultimodalUsage(VoyageUsage, kw_only=True):
    text_tokens: int
    image_pixels: int
    video_pixels: Literal[0]


class MultimodalEmbeddings(Embeddings):
    usage: MultimodalUsage


@ROUTES.post(
    "/v1/multimodalembeddings",
    "/multimodalembeddings",
    answer=MultimodalEmbeddings,
    summary="Embed texts and images",
    example={"model": EXAMPLE_MODEL, "inputs": [{"content": [{"type": "text", "text": "a happy person"}]}]},
    names={"dimensions": "output_dimension"},
)
def parse_multimodal(body: MultimodalBody, incoming: Incoming) -> Call:
    for index, item in enumerate(body.inputs):
        if any(part.video_url is not None or part.video_base64 is not None for part in item.content):
            raise InvalidField("{field} has a video; this model embeds none.", field="inputs", index=index)
    inputs = [read_parts(item.content, index) for index, item in enumerate(body.inputs)]
    text = TextOptions(truncate=body.truncation, truncate_by_default=True, kind=read_kind(body.input_type))
    return _embed(body, inputs, text, render_multimodal)


def render_multimodal(dtype: Precision, encoding: Encoding, result: EmbedResult) -> Rendered:
    usage = _usage(result.usage) | {
        "text_tokens": result.usage.tokens - result.usage.image_tokens,
        "image_pixels": result.usage.pixels,
        "video_pixels": 0,
    }
    return list_answer(result, embedding_items(result.dense[dtype], encoding), usage=usage)


# --- contextualized chunks ------------------------------------------------------------------------------------

CHUNK_TOKENS = 512  # Voyage's default


class ContextualizedBody(VectorFields, kw_only=True):
    """`inputs`: one list for each document, with its chunks in order and without overlap, or with a single query."""

    inputs: list[list[str]]
    enable_auto_chunking: Annotated[Switch, about("each document is one text, which is cut into chunks here")] = None
    chunk_size: Annotated[PositiveCount | None, about("tokens; null: 512")] = None
    chunk_overlap: Annotated[Count | None, about("tokens that a chunk shares with the previous one; null: none")] = None


class ChunkItem(EmbeddingItem):
    text: str | UnsetType = UNSET  # only with enable_auto_chunking


class DocumentItem(msgspec.Struct):
    object: Literal["list"]
    index: int
    data: list[ChunkItem]


class ContextualizedEmbeddings(BaseAnswer):
    data: list[DocumentItem]


@ROUTES.post(
    "/v1/contextualizedembeddings",
    "/contextualizedembeddings",
    computes="documents",
    answer=ContextualizedEmbeddings,
    summary="Embed chunks of documents, each as part of its document",
    example={"model": EXAMPLE_MODEL, "inputs": [["a happy person", "who walks in the rain"]], "input_type": "document"},
    names={
        "documents": "inputs",
        "spans": "inputs",
        "dimensions": "output_dimension",
        "chunk.max_tokens": "chunk_size",
        "chunk.overlap_tokens": "chunk_overlap",
        "late": "model",  # the path is for late chunking only, so a model that does not support it is the fault
    },
)
def parse_contextualized(body: ContextualizedBody, incoming: Incoming) -> Call:
    """Queries are embedded as usual, since they have no context. Chunks are embedded by late chunking."""
    check_count(len(body.inputs), incoming.guards.max_inputs)
    check_count(sum(map(len, body.inputs)), incoming.guards.max_inputs, unit="chunk")
    refuse_none(body.inputs, "inputs")
    for index, texts in enumerate(body.inputs):
        if not texts or not all(text.strip() for text in texts):  # a blank text has no tokens for a vector
            raise EmptyInput("{field} must hold texts, and none that is blank.", field="inputs", index=index)
    kind = read_kind(body.input_type)
    cuts = body.enable_auto_chunking
    if cuts and kind == "query":
        raise InvalidField("{field} is for documents, not for queries.", field="enable_auto_chunking")
    for name in ("chunk_size", "chunk_overlap"):
        if getattr(body, name) and not cuts:
            raise InvalidField("{field} is for `enable_auto_chunking`.", field=name)
    if kind == "query":
        text = TextOptions(truncate_by_default=True, kind="query")
        return _embed(body, _single_texts(body.inputs), text, render_queries)
    documents: Sequence[str]
    chunks: ChunkOptions | None = None
    spans: Sequence[Sequence[Span]] | None = None
    if cuts:
        documents = _single_texts(body.inputs)
        chunks = read_chunks(body.chunk_size or CHUNK_TOKENS, body.chunk_overlap)
    else:
        joined = [join_chunks(texts) for texts in body.inputs]
        documents, spans = [document for document, _ in joined], [spans for _, spans in joined]
    dtype = body.output_dtype or "float"
    request = DocumentsRequest(
        documents=documents,
        chunks=chunks,
        spans=spans,
        model=body.model or None,
        text=TextOptions(kind=kind),
        late=True,
        dimensions=body.output_dimension or None,
        force_dimensions=body.force_dimensions is True,
        precisions=(dtype,),
    )
    shown = documents if chunks else None
    return Call(request, partial(render_chunks, dtype, read_encoding(body.encoding_format), shown))


def _embed(
    body: VectorFields,
    inputs: Sequence[Input],
    text: TextOptions,
    render: Callable[[Precision, Encoding, EmbedResult], Rendered],
) -> Call:
    """The call for one vector an input."""
    dtype = body.output_dtype or "float"
    request = EmbedRequest(
        inputs=inputs,
        model=body.model or None,
        text=text,
        dimensions=body.output_dimension or None,
        force_dimensions=body.force_dimensions is True,
        precisions=(dtype,),
    )
    return Call(request, partial(render, dtype, read_encoding(body.encoding_format)))


def _single_texts(inputs: Sequence[Sequence[str]]) -> list[str]:
    """The only text of each list."""
    for index, texts in enumerate(inputs):
        if len(texts) > 1:
            template = "{field} must hold one text: a query, or a document that is to be cut into chunks here."
            raise InvalidField(template, field="inputs", index=index, limit=1, given=len(texts))
    return [text for (text,) in inputs]


def render_queries(dtype: Precision, encoding: Encoding, result: EmbedResult) -> Rendered:
    """Each vector in a list of its own, like the chunks of a document."""
    rows = result.dense[dtype]
    items = [embedding_items(rows[index : index + 1], encoding) for index in range(len(rows))]
    return _lists(result, items)


def render_chunks(
    dtype: Precision, encoding: Encoding, documents: Sequence[str] | None, result: DocumentsResult
) -> Rendered:
    """documents: their texts, to show that of each chunk; None if the client cut them itself."""
    lists = [embedding_items(document.vectors[dtype], encoding) for document in result.documents]
    if documents is not None:
        for items, document, text in zip(lists, result.documents, documents, strict=True):
            for item, chunk in zip(items, document.chunks, strict=True):
                item["text"] = text[chunk.span.start : chunk.span.stop]
    return _lists(result, lists)


def _lists(result: EmbedResult | DocumentsResult, lists: Sequence[Sequence[dict[str, object]]]) -> Rendered:
    data = [{"object": "list", "index": index, "data": items} for index, items in enumerate(lists)]
    return _list(result, data)


# --- rerank ---------------------------------------------------------------------------------------------------


class RerankBody(RerankFields):
    query: str
    documents: list[str]
    model: str | None = None
    top_k: TopN = None
    top_n: Annotated[Any, refused("its name here is `top_k`", 0)] = None
    return_documents: Switch = None
    truncation: OnSwitch = None


class RankedItem(msgspec.Struct):
    index: int
    relevance_score: float
    document: str | UnsetType = UNSET  # only with return_documents


class Ranking(BaseAnswer):
    data: list[RankedItem]


# At /rerank, clients of Jina and others send the required fields alone; Voyage's SDKs always send `truncation`.
_post_rerank = partial(
    ROUTES.post,
    computes="rerank",
    answer=Ranking,
    summary="Rank documents by how well they answer a query, as Voyage does",
    example={"model": EXAMPLE_MODEL, **EXAMPLE, "top_k": 1},
    names={"passages": "documents"},
)


@_post_rerank("/v1/rerank")
@_post_rerank("/rerank", one_of=["top_k", "truncation"])
def parse_rerank(body: RerankBody, incoming: Incoming) -> Call:
    shown = body.documents if body.return_documents else None

    def render(result: RerankResult) -> Rendered:
        return _list(result, ranked(result, body.top_k, "relevance_score", document=shown))

    text = TextOptions(truncate=body.truncation, truncate_by_default=True)
    return Call(rerank_request(body, body.query, body.documents, body.model, text), render)


# --- all responses --------------------------------------------------------------------------------------------


def _list(result: EmbedResult | DocumentsResult | RerankResult, data: Sequence[dict[str, Any]]) -> Rendered:
    return list_answer(result, data, usage=_usage(result.usage))


def _usage(usage: Usage) -> dict[str, Any]:
    shown = token_usage(usage)
    del shown["prompt_tokens"]  # Voyage has the total only
    return shown


DIALECT = Dialect(name="voyage", title="Voyage", routes=tuple(ROUTES), render_error=render_message("detail", ERRORS))
