"""Jina's API: embeddings, late chunking, multi-vectors and rerank; also Xinference's rerank."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from vectord.errors import EmptyInput, InvalidField
from vectord.products.common.body import PositiveCount, TokenId
from vectord.products.common.dialect import EXAMPLE_MODEL, Call, Dialect, Incoming, Rendered, Routes, random_id
from vectord.products.common.errors import FASTAPI, render_message
from vectord.products.common.fields import about, refused
from vectord.products.common.inputs import (
    Force,
    InputItem,
    Normalize,
    OnSwitch,
    Prompt,
    Switch,
    TopN,
    Truncate,
    User,
    Width,
    agreed,
    check_count,
    join_chunks,
    read_inputs,
    read_kind,
    read_truncate,
    refuse_none,
    with_images,
)
from vectord.products.common.media import read_pdf
from vectord.products.common.models import only_multivectors, read_task
from vectord.products.common.ranking import (
    EXAMPLE,
    SCORES,
    Documents,
    Query,
    RankedItem,
    RerankFields,
    ShownDocument,
    ranked,
    read_documents,
    read_query,
    rerank_request,
    shown_documents,
)
from vectord.products.common.vectors import (
    EmbeddingType,
    ListAnswer,
    RowsByType,
    json_answer,
    list_answer,
    precisions_of,
    rows_of_type,
    token_usage,
)
from vectord.schema import (
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    Input,
    InputKind,
    Item,
    MultiVectorOptions,
    Precision,
    RerankResult,
    TextOptions,
)

ROUTES = Routes({"truncate_side": "truncate"})
ERRORS = FASTAPI  # with a string for `detail`

# --- wire types -----------------------------------------------------------------------------------------------

EmbeddingTypes: TypeAlias = EmbeddingType | list[EmbeddingType]

Types = Annotated[
    EmbeddingTypes | None,
    about(
        "base64 is of float32, little-endian; int8 and uint8 are NIM's; binary and ubinary have eight signs in a "
        "byte. A list makes each vector an object of these types"
    ),
]


class JinaItem(InputItem):
    pdf: Annotated[str | None, about("base64: each page gets an entry in `data`")] = None

    def read_item(self, field: str, index: int | None = None) -> Item:
        """Raises InvalidField as `InputItem` and `read_pdf`."""
        if self.pdf is None or any(part is not None for part in (self.text, self.audio, self.video, *self._images)):
            return super().read_item(field, index)
        return read_pdf(self.pdf, field, index)


class MultiVectorBody(msgspec.Struct):
    input: str | list[str | TokenId | list[TokenId] | JinaItem] | JinaItem
    model: str | None = None
    embedding_type: Types = None
    encoding_type: Annotated[EmbeddingTypes | None, about("LlamaIndex's name of `embedding_type`")] = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None, about("the name of `embedding_type` in OpenAI's SDK")
    ] = None
    input_type: Annotated[str | None, about('"query" or "document"')] = None
    dimensions: Width = None
    truncate: Truncate = None
    prompt_name: str | None = None


class EmbeddingsBody(MultiVectorBody):
    task: Annotated[
        str | None,
        about(
            '"retrieval.query", "text-matching" ...: the adapter of that name, or the prompt for that use. '
            "Other names are refused"
        ),
    ] = None
    normalized: OnSwitch = None
    late_chunking: Annotated[
        Switch, about("the inputs are chunks of one text, each embedded in the context of all")
    ] = None
    return_multivector: Annotated[Switch, about("one vector per token, under `embeddings`")] = None
    return_tokenized_input: Annotated[Any, refused("use /tokenize", False, "false")] = None
    prompt: Prompt = None
    force_dimensions: Force = None
    normalize: Normalize = None
    user: User = None


class VectorByType(msgspec.Struct):
    """A vector in each of the requested types."""

    floats: list[float] | UnsetType = msgspec.field(name="float", default=UNSET)
    base64: str | UnsetType = UNSET
    int8: list[int] | UnsetType = UNSET
    uint8: list[int] | UnsetType = UNSET
    binary: list[int] | UnsetType = UNSET
    ubinary: list[int] | UnsetType = UNSET


class EmbeddingItem(msgspec.Struct, tag_field="object", tag="embedding"):
    index: int
    embedding: list[float] | str | VectorByType
    page: int | UnsetType = UNSET  # of a PDF, counted from 1


class MultiVectorItem(msgspec.Struct, tag_field="object", tag="embeddings"):
    """A vector for each token."""

    index: int
    embeddings: list[list[float] | str] | RowsByType
    page: int | UnsetType = UNSET  # of a PDF, counted from 1


class Embeddings(ListAnswer):
    data: list[EmbeddingItem | MultiVectorItem]


class MultiVectors(ListAnswer):
    data: list[MultiVectorItem]


# --- embeddings -----------------------------------------------------------------------------------------------

# With late chunking the document's chunks are the inputs.
_NAMES = {"inputs": "input", "documents": "input", "spans": "input", "late": "late_chunking"}


@ROUTES.post(
    "/v1/embeddings",
    "/embeddings",
    computes="documents",
    answer=Embeddings,
    summary="Embed texts, or the chunks of one text in the context of all of it",
    example={
        "model": EXAMPLE_MODEL,
        "task": "retrieval.passage",
        "late_chunking": True,
        "embedding_type": "float",
        "input": ["Berlin is the capital of Germany.", "Its more than 3.8 million inhabitants make it large."],
    },
    names=_NAMES,
)
def parse_embeddings(body: EmbeddingsBody, incoming: Incoming) -> Call:
    kind: InputKind | None = agreed(
        task=read_task(body.task, body.model, incoming.models), input_type=read_kind(body.input_type)
    )
    late = body.late_chunking
    multivector = body.return_multivector
    if late and multivector:
        raise InvalidField("`late_chunking` and `return_multivector` exclude each other.", field="late_chunking")
    if late:
        if isinstance(body.input, list):
            check_count(len(body.input), incoming.guards.max_inputs, unit="chunk")
        return _chunks(body, kind)
    if multivector or only_multivectors(body.model, incoming.models):
        return _multivectors(body, kind)
    types = _types(body)
    request = EmbedRequest(
        inputs=_inputs(body),
        model=body.model or None,
        text=_text_options(body, kind),
        normalize=body.normalized is not False,
        dimensions=body.dimensions or None,
        force_dimensions=body.force_dimensions is True,
        precisions=precisions_of(_listed(types)),
    )
    return Call(request, partial(render_embeddings, types))


@ROUTES.post(
    "/v1/multi-vector",
    "/multi-vector",
    answer=MultiVectors,
    summary="Embed each token of texts",
    example={"input_type": "document", "input": ["a happy person"]},
    names=_NAMES,
)
def parse_multivectors(body: MultiVectorBody, incoming: Incoming) -> Call:
    return _multivectors(body, read_kind(body.input_type))


def _multivectors(body: MultiVectorBody, kind: InputKind | None) -> Call:
    types = _types(body)
    precision, *further = precisions_of(_listed(types))
    if further:
        raise InvalidField("{field} of multi-vectors must be one type, or float and base64.", field="embedding_type")
    if isinstance(body, EmbeddingsBody) and body.normalized is False:
        raise InvalidField("{field} cannot be false for multi-vectors: they have a length of 1.", field="normalized")
    request = EmbedRequest(
        inputs=_inputs(body),
        model=body.model or None,
        text=_text_options(body, kind),
        outputs=frozenset({"colbert"}),
        colbert=MultiVectorOptions(precision=precision),
    )
    render = partial(render_multivectors, types, precision, body.dimensions or None)
    return Call(request, render, binary=not body.dimensions)


def _chunks(body: EmbeddingsBody, kind: InputKind | None) -> Call:
    types = _types(body)
    chunks = []
    for index, text in enumerate(_inputs(body)):
        if not isinstance(text, str):
            raise InvalidField("`late_chunking` takes texts, not ids.", field="inputs", index=index)
        if not text.strip():  # it has no tokens for a vector
            raise EmptyInput("{field} must not be blank with `late_chunking`.", field="inputs", index=index)
        chunks.append(text)
    document, spans = join_chunks(chunks)
    request = DocumentsRequest(
        documents=[document],
        chunks=None,
        spans=[spans],
        model=body.model or None,
        text=_text_options(body, kind),
        late=True,
        normalize=body.normalized is not False,
        dimensions=body.dimensions or None,
        force_dimensions=body.force_dimensions is True,
        precisions=precisions_of(_listed(types)),
    )
    return Call(request, partial(render_embeddings, types))


def _text_options(body: MultiVectorBody, kind: InputKind | None) -> TextOptions:
    truncate, side = read_truncate(body.truncate)
    task = body.task if isinstance(body, EmbeddingsBody) else None
    return TextOptions(
        truncate=truncate,
        truncate_by_default=True,
        truncate_side=side or "right",
        prompt_name=body.prompt_name,
        prompt=body.prompt if isinstance(body, EmbeddingsBody) else None,
        kind=kind,
        task=task or None,
    )


def _inputs(body: MultiVectorBody) -> Sequence[Input]:
    return with_images(read_inputs([body.input] if isinstance(body.input, JinaItem) else body.input))


def _types(body: MultiVectorBody) -> EmbeddingTypes:
    """Raises InvalidField for two fields that contradict each other."""
    types: EmbeddingTypes | None = agreed(
        embedding_type=body.embedding_type or None, encoding_type=body.encoding_type or None
    )
    match body.encoding_format, types:
        case "base64", None | "float" | "base64":  # the format of OpenAI's SDK
            return "base64"
        case "base64", _:
            template = "{field} base64 is of float vectors; set it to 'float' for other types."
            raise InvalidField(template, field="encoding_format")
        case "float", "base64":
            raise InvalidField("{field} contradicts `embedding_type`; leave one of them out.", field="encoding_format")
    return types or "float"


def _listed(types: EmbeddingTypes) -> Sequence[EmbeddingType]:
    return [types] if isinstance(types, str) else types


def render_embeddings(types: EmbeddingTypes, result: EmbedResult | DocumentsResult) -> Rendered:
    """One vector for each input, or with late chunking for each chunk of the one document.

    Bits are lists of numbers, which Jina's clients unpack: binary -128 to 127, ubinary 0 to 255.
    """
    dense = result.dense if isinstance(result, EmbedResult) else result.documents[0].vectors
    return _list("embedding", _in_types(types, partial(rows_of_type, dense)), result)


def render_multivectors(
    types: EmbeddingTypes, precision: Precision, dimensions: int | None, result: EmbedResult
) -> Rendered:
    """dimensions: the body's. Raises InvalidField if the vectors, whose width is known only now, have others."""
    matrices = result.colbert
    assert matrices is not None
    in_column = 8 if precision in ("binary", "ubinary") else 1  # signs or numbers
    width = matrices[0].shape[1] * in_column
    if dimensions is not None and not width - in_column < dimensions <= width:
        template = "{field} must be {limit}: multi-vectors are not cut."
        raise InvalidField(template, field="dimensions", limit=width, given=dimensions)
    vectors = _in_types(types, lambda kind: [rows_of_type({precision: matrix}, kind) for matrix in matrices])
    return _list("embeddings", vectors, result)


def _in_types(types: EmbeddingTypes, rows: Callable[[EmbeddingType], list[Any]]) -> list[Any]:
    """Each input's vector in one type, or, for a list of types, as an object with all of them."""
    if isinstance(types, str):
        return rows(types)
    columns = {kind: rows(kind) for kind in types}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _list(key: str, vectors: Sequence[Any], result: EmbedResult | DocumentsResult) -> Rendered:
    """key: the vector's key, which is also the item's `object`."""
    data = [{"object": key, "index": index, key: vector} for index, vector in enumerate(vectors)]
    for item, place in zip(data, result.pages if isinstance(result, EmbedResult) else (), strict=False):
        if place.page is not None:
            item["page"] = place.page
    return list_answer(result, data)


# --- rerank ---------------------------------------------------------------------------------------------------


class RerankBody(RerankFields):
    query: Query
    documents: Documents
    model: str | None = None
    top_n: TopN = None
    return_documents: OnSwitch = None
    truncation: OnSwitch = None
    max_doc_length: Annotated[PositiveCount | None, about("most tokens of a document; null: the model's limit")] = None
    max_query_length: Annotated[PositiveCount | None, about("most tokens of the query; null: the model's limit")] = None
    return_embeddings: Annotated[Any, refused("a ranking has no vectors; use /v1/embeddings", False, "false")] = None
    return_len: Annotated[Any, about("`meta` has the number of tokens, whatever the value")] = None
    max_chunks_per_doc: Annotated[
        Any, refused("long documents are truncated, not split; use `chunk` of /vectord/rerank", 1)
    ] = None


class RankedDocument(RankedItem):
    """`score` and `text` repeat `relevance_score` and `document.text` for clients of Semantic Explorer."""

    text: str | UnsetType | None = UNSET  # unless return_documents is false
    document: ShownDocument | UnsetType = UNSET


class RankingTokens(msgspec.Struct):
    input_tokens: int
    output_tokens: int


class RankingMeta(msgspec.Struct):
    """Xinference's clients read the usage here."""

    tokens: RankingTokens


class Ranking(ListAnswer):
    results: list[RankedDocument]
    id: str
    meta: RankingMeta


@ROUTES.post(
    "/v1/rerank",
    "/rerank",
    computes="rerank",
    answer=Ranking,
    summary="Rank documents by how well they answer a query",
    example={"model": EXAMPLE_MODEL, **EXAMPLE, "top_n": 1},
    names={"passages": "documents", "max_passage_tokens": "max_doc_length", "max_query_tokens": "max_query_length"},
)
def parse_rerank(body: RerankBody, incoming: Incoming) -> Call:
    refuse_none(body.documents, "passages")
    documents = read_documents(body.documents)
    request = rerank_request(
        body,
        read_query(body.query),
        documents,
        body.model,
        TextOptions(truncate=body.truncation, truncate_by_default=True),
        max_passage_tokens=body.max_doc_length,
        max_query_tokens=body.max_query_length,
    )
    shown = None if body.return_documents is False else shown_documents(body.documents, documents)
    texts = None if shown is None else [document["text"] for document in shown]

    def render(result: RerankResult) -> Rendered:
        return json_answer(
            object="list",
            results=ranked(result, body.top_n, *SCORES, text=texts, document=shown),
            model=result.model,
            usage=token_usage(result.usage),
            id=f"rerank-{random_id()}",
            meta={"tokens": {"input_tokens": result.usage.tokens, "output_tokens": 0}},
        )

    return Call(request, render)


DIALECT = Dialect(name="jina", title="Jina", routes=tuple(ROUTES), render_error=render_message("detail", ERRORS))
