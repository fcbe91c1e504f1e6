"""Cohere's API, v1 and v2: embed, rerank, tokenize and detokenize.

v1 and v2 share the types of their bodies, so each version reads the few fields that only the other documents.
"""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from vectord.errors import EmptyInput, InvalidField
from vectord.products.common.body import PositiveCount, TokenId
from vectord.products.common.dialect import EXAMPLE_MODEL, Call, Dialect, Incoming, Rendered, Routes
from vectord.products.common.errors import STATUSES, render_message
from vectord.products.common.fields import about, no_effect, refused
from vectord.products.common.inputs import Force, Image, ProbabilitiesOnly, Switch, TopN, Width, kind_of_task
from vectord.products.common.media import read_image
from vectord.products.common.ranking import (
    EXAMPLE,
    SCORES,
    DocumentItem,
    Query,
    RankedItem,
    RerankFields,
    as_object,
    ranked,
    read_query,
    rerank_request,
)
from vectord.products.common.vectors import (
    EmbeddingType,
    RowsByType,
    TokenUsage,
    json_answer,
    precisions_of,
    rows_of_type,
    token_usage,
)
from vectord.schema import (
    DecodeRequest,
    DecodeResult,
    EmbedRequest,
    EmbedResult,
    Input,
    Item,
    Media,
    RerankResult,
    TextLengths,
    TextOptions,
    TokenizeRequest,
    TokenizeResult,
    Usage,
    item_of,
)

ROUTES = Routes({"truncate_side": "truncate"})
ERRORS = STATUSES  # the SDK expects 400 for every fault of a body

Version: TypeAlias = Literal["1", "2"]
Truncate: TypeAlias = Literal["END", "START", "NONE"]
Priority = Annotated[int, msgspec.Meta(ge=0, le=999), no_effect("the header x-vectord-lane selects the priority")]


class ApiVersion(msgspec.Struct):
    version: Version


class BilledUnits(msgspec.Struct):
    """Embedding bills tokens, reranking one search."""

    input_tokens: int | UnsetType = UNSET
    images: int | UnsetType = UNSET
    image_tokens: int | UnsetType = UNSET  # of `input_tokens`
    search_units: int | UnsetType = UNSET


class ReadTokens(msgspec.Struct):
    input_tokens: int
    output_tokens: Literal[0]


class Meta(msgspec.Struct):
    api_version: ApiVersion
    billed_units: BilledUnits | UnsetType = UNSET  # not for tokenize and detokenize
    tokens: ReadTokens | UnsetType = UNSET  # not for tokenize and detokenize
    warnings: list[str] | UnsetType = UNSET  # only if a text was truncated


# --- embed ----------------------------------------------------------------------------------------------------


class ContentPart(msgspec.Struct):
    type: Annotated[str, about('"text" or "image_url"')]
    text: str | None = None
    image_url: Image = None


class EmbedInput(msgspec.Struct):
    content: list[ContentPart]

    def read(self, index: int) -> Input:
        if not self.content:
            raise EmptyInput("`inputs[{index}].content` cannot be empty.", field="inputs", index=index)
        parts: list[str | Media] = []
        for part in self.content:
            if part.type not in ("text", "image_url"):
                template = "`inputs[{index}].content` may contain parts of type 'text' and 'image_url' only."
                raise InvalidField(template, field="inputs", index=index)
            if part.type == "text" and part.text is None:
                template = "`inputs[{index}].content`: a part of type 'text' needs a `text`."
                raise InvalidField(template, field="inputs", index=index)
            parts.append((part.text or "") if part.type == "text" else read_image(part.image_url, index=index))
        return item_of(parts)


class EmbedBody(msgspec.Struct):
    """Requires one of `texts`, `images` and `inputs`."""

    texts: list[str] | None = None
    inputs: Annotated[
        list[EmbedInput] | None,
        about("the text parts of each are one text, with one line for each part"),
    ] = None
    images: Annotated[list[str] | None, about("data URIs")] = None
    model: str | None = None
    input_type: Annotated[
        str | None, about('"search_query", "search_document", "classification" or "clustering"; "image" has no effect')
    ] = None
    embedding_types: Annotated[
        list[EmbeddingType] | None, about("base64 is little-endian float32; null: float, in v1 as plain lists")
    ] = None
    truncate: Truncate | None = None
    max_tokens: Annotated[PositiveCount | None, about("of an input, special tokens included")] = None
    output_dimension: Width = None
    force_dimensions: Force = None
    priority: Priority | None = None


class ImageAnswer(msgspec.Struct):
    """An image that was sent."""

    width: int
    height: int
    format: str
    bit_depth: int


class EmbedAnswer(msgspec.Struct):
    id: str
    response_type: Literal["embeddings_floats", "embeddings_by_type"]  # v1's SDK selects the type of the rest by it
    embeddings: list[list[float]] | RowsByType
    texts: list[str]
    meta: Meta
    images: list[ImageAnswer] | UnsetType = UNSET  # only if an input has images; a PDF's page is one


PLAIN_TYPES = (None, "", "image")  # input types without a prompt
_TEXTS = {"texts": ["a happy person", "a rainy day"], "input_type": "search_document"}
_embed_v1 = partial(
    ROUTES.post,
    answer=EmbedAnswer,
    summary="Embed texts, as Cohere's v1 does",
    example={**_TEXTS, "truncate": "END"},
    names={"dimensions": "output_dimension"},
)


# The SDK appends v1/... and v2/... to its base URL, which may end in /v1.
@_embed_v1("/embed", one_of=["texts"])  # other products have the path, with other keys
@_embed_v1("/v1/embed", "/v1/v1/embed", one_of=["texts", "images"])
def parse_embed_v1(body: EmbedBody, incoming: Incoming) -> Call:
    return _embed(body, "1", tuple(dict.fromkeys(body.embedding_types or ())))


@ROUTES.post(
    "/v2/embed",
    "/v1/v2/embed",
    answer=EmbedAnswer,
    summary="Embed texts, as Cohere's v2 does",
    example={"model": EXAMPLE_MODEL, **_TEXTS, "embedding_types": ["float", "ubinary"]},
    one_of=["texts", "inputs", "images"],
    names={"dimensions": "output_dimension"},
)
def parse_embed_v2(body: EmbedBody, incoming: Incoming) -> Call:
    return _embed(body, "2", tuple(dict.fromkeys(body.embedding_types or ("float",))))


def _embed(body: EmbedBody, version: Version, types: Sequence[EmbeddingType]) -> Call:
    """types: none for v1's list of floats without a type."""
    inputs, field = _inputs(body)
    kind = kind_of_task(body.input_type)
    if kind is None and body.input_type not in PLAIN_TYPES:
        template = (
            "Unsupported input_type: {field} must be search_query, search_document, classification or clustering."
        )
        raise InvalidField(template, field="input_type")
    request = EmbedRequest(
        inputs=inputs,
        model=body.model or None,
        text=TextOptions(
            truncate=None if body.truncate is None else body.truncate != "NONE",
            truncate_by_default=True,
            truncate_side="left" if body.truncate == "START" else "right",
            kind=kind,
            max_tokens=body.max_tokens,
        ),
        dimensions=body.output_dimension or None,
        force_dimensions=body.force_dimensions is True,
        precisions=precisions_of(types or ("float",)),
    )

    def render(result: EmbedResult) -> Rendered:
        rows, usage = {kind: rows_of_type(result.dense, kind) for kind in types or ("float",)}, result.usage
        images = [asdict(image) for length in usage.lengths.details.values() for image in length.images]
        billed = {"images": len(images), "image_tokens": usage.image_tokens} if images else {}
        return json_answer(
            id=str(uuid.uuid4()),  # a string on every response: v1's SDK embeds in pages and joins their ids
            response_type="embeddings_by_type" if types else "embeddings_floats",
            embeddings=rows if types else rows["float"],
            texts=[one for one in inputs if isinstance(one, str)],
            meta=_meta(version, usage, _truncated(field, usage.lengths), input_tokens=usage.tokens, **billed),
            **({"images": images} if images else {}),
        )

    return Call(request, render, {"inputs": field})


def _inputs(body: EmbedBody) -> tuple[Sequence[Input], str]:
    """The inputs to embed, and their field in the body."""
    if body.texts is not None and body.inputs is not None:
        raise InvalidField("Give either `texts` or `inputs`, not both.", field="inputs")
    if body.images and (body.texts is not None or body.inputs is not None):
        raise InvalidField("Give either `images` or other inputs, not both.", field="images")
    if body.images:
        return [read_image(image, "images", index) for index, image in enumerate(body.images)], "images"
    if body.texts is not None:
        return body.texts, "texts"
    if body.inputs is not None:
        return [item.read(index) for index, item in enumerate(body.inputs)], "inputs"
    raise EmptyInput("`texts` or `inputs` is required.", field="texts")


# --- rerank ---------------------------------------------------------------------------------------------------


DEFAULT_CHUNKS = 10  # of a document, in v1


class RerankBody(RerankFields):
    """Only the string fields of a document's object are read, as in Cohere's schema, or its image."""

    query: Query
    documents: list[str | dict[str, Any]]
    model: str | None = None
    top_n: TopN = None
    rank_fields: Annotated[
        list[str] | None,
        about("ranked fields of objects, in this order, with one line `name: value` for each; null: `text`"),
    ] = None
    return_documents: Annotated[Switch, about("null: true in v1, as in other APIs of the path, and false in v2")] = None
    max_chunks_per_doc: Annotated[
        Any, refused("long documents are truncated, not split; use `chunk` of /vectord/rerank", 1, DEFAULT_CHUNKS)
    ] = None
    max_tokens_per_doc: Annotated[
        PositiveCount | None, about("longer documents are truncated; null: 4096 in v2, and no limit in v1")
    ] = None
    normalize: ProbabilitiesOnly = None
    relevant_spans: Annotated[
        Any, refused("a ranking has no spans; use `chunk` of /vectord/rerank", False, {"mode": "disabled"})
    ] = None
    priority: Priority | None = None


class RankedDocument(RankedItem):
    document: dict[str, str] | UnsetType = UNSET


class RankingUsage(TokenUsage, kw_only=True):
    completion_tokens: Literal[0]  # Together's clients require it


class RerankAnswer(msgspec.Struct):
    """`object`, `model`, `usage` and `score` are for the clients of other APIs that share the path."""

    id: str
    object: Literal["rerank"]
    model: str
    results: list[RankedDocument]
    usage: RankingUsage
    meta: Meta


MAX_TOKENS_PER_DOC = 4096  # v2's default
_rerank = partial(
    ROUTES.post,
    computes="rerank",
    answer=RerankAnswer,
    names={"passages": "documents", "max_passage_tokens": "max_tokens_per_doc"},
)


@_rerank(
    "/v1/rerank",
    "/v1/v1/rerank",
    summary="Rank documents by how well they answer a query, as Cohere's v1 does",
    example={**EXAMPLE, "return_documents": True},
)
def parse_rerank_v1(body: RerankBody, incoming: Incoming) -> Call:
    return _rank(body, "1", shows_documents=True, max_tokens_per_doc=None)


@_rerank(
    "/v2/rerank",
    "/v1/v2/rerank",
    summary="Rank documents by how well they answer a query, as Cohere's v2 does",
    example={"model": EXAMPLE_MODEL, **EXAMPLE, "top_n": 1},
)
def parse_rerank_v2(body: RerankBody, incoming: Incoming) -> Call:
    return _rank(body, "2", shows_documents=False, max_tokens_per_doc=MAX_TOKENS_PER_DOC)


def _rank(body: RerankBody, version: Version, *, shows_documents: bool, max_tokens_per_doc: int | None) -> Call:
    """shows_documents, max_tokens_per_doc: the version's defaults, the latter of texts alone: no image is cut."""
    if isinstance(body.query, str) and not body.query.strip():
        raise EmptyInput("{field} must not be empty or only whitespace.", field="query")
    for index, name in enumerate(body.rank_fields or ()):
        if not any(isinstance(document, dict) and isinstance(document.get(name), str) for document in body.documents):
            raise InvalidField("{field} is a string of no document.", field="rank_fields", index=index)
    if body.return_documents is not None:
        shows_documents = body.return_documents
    shown = [_shown(document) for document in body.documents] if shows_documents else None
    passages = [_passage(document, body.rank_fields, index) for index, document in enumerate(body.documents)]
    only_texts = all(isinstance(passage, str) for passage in passages)
    most = body.max_tokens_per_doc or (max_tokens_per_doc if only_texts else None)
    text = TextOptions(truncate_by_default=True)
    request = rerank_request(body, read_query(body.query), passages, body.model, text, max_passage_tokens=most)

    def render(result: RerankResult) -> Rendered:
        warnings = _truncated("query", TextLengths.of([result.query])) + _truncated("documents", result.passages)
        return json_answer(
            id=str(uuid.uuid4()),
            object="rerank",
            model=result.model,
            results=ranked(result, body.top_n, *SCORES, document=shown),
            usage=token_usage(result.usage) | {"completion_tokens": 0},
            meta=_meta(version, result.usage, warnings, search_units=1),
        )

    return Call(request, render)


IMAGE_KEYS = {"image", "content"}  # of Jina's and vLLM's documents, whose clients send the same body


def _passage(document: str | dict[str, Any], rank_fields: Sequence[str] | None, index: int) -> Item:
    """What is ranked of a document. Source: Cohere's Rerank guide, "Example with Semi-structured Data"."""
    if isinstance(document, str):
        return document
    if not rank_fields:
        text = document.get("text")
        if isinstance(text, str):
            return text
        if document.keys() & IMAGE_KEYS:
            with suppress(msgspec.ValidationError):
                return msgspec.convert(document, DocumentItem).read_item("passages", index)
        raise InvalidField("{field} needs a string `text`.", field="passages", index=index)
    lines = [f"{name}: {document[name]}" for name in rank_fields if isinstance(document.get(name), str)]
    if not lines:
        raise InvalidField("{field} has no string under any of the `rank_fields`.", field="passages", index=index)
    return "\n".join(lines)


def _shown(document: str | dict[str, Any]) -> dict[str, str]:
    """A document as an object of its string fields, which are all that Cohere's schema allows."""
    if isinstance(document, str):
        return as_object(document)
    return {name: value for name, value in document.items() if isinstance(value, str)}


# --- tokens ---------------------------------------------------------------------------------------------------


class TokenizeBody(msgspec.Struct):
    text: str
    model: str | None = None


class TokenizeAnswer(msgspec.Struct):
    tokens: list[int]
    token_strings: list[str]
    meta: Meta


class DetokenizeBody(msgspec.Struct):
    tokens: list[TokenId]
    model: str | None = None


class DetokenizeAnswer(msgspec.Struct):
    text: str
    meta: Meta


@ROUTES.post(
    "/v1/tokenize",
    "/v1/v1/tokenize",
    computes=None,
    answer=TokenizeAnswer,
    summary="Tokenize a text, without special tokens",
    example={"model": EXAMPLE_MODEL, "text": "a happy person"},
    names={"inputs": "text"},
)
def parse_tokenize(body: TokenizeBody, incoming: Incoming) -> Call:
    def render(result: TokenizeResult) -> Rendered:
        (tokens,) = result.tokens
        ids, strings = [token.id for token in tokens], [token.text for token in tokens]
        return json_answer(tokens=ids, token_strings=strings, meta=_meta("1"))

    return Call(TokenizeRequest(inputs=[body.text], model=body.model or None, add_special_tokens=False), render)


@ROUTES.post(
    "/v1/detokenize",
    "/v1/v1/detokenize",
    computes=None,
    answer=DetokenizeAnswer,
    summary="Turn token ids back into a text",
    example={"model": EXAMPLE_MODEL, "tokens": [1037, 3407, 2711]},
    names={"ids": "tokens"},
)
def parse_detokenize(body: DetokenizeBody, incoming: Incoming) -> Call:
    def render(result: DecodeResult) -> Rendered:
        (text,) = result.texts
        return json_answer(text=text, meta=_meta("1"))

    return Call(DecodeRequest(ids=[body.tokens], model=body.model or None), render)


# --- all responses --------------------------------------------------------------------------------------------


def _meta(version: Version, usage: Usage | None = None, warnings: Sequence[str] = (), **billed_units: int) -> Any:
    """A body of Meta. usage: None for tokenize and detokenize."""
    meta: dict[str, Any] = {"api_version": {"version": version}}
    if usage is not None:
        meta["billed_units"] = billed_units
        meta["tokens"] = {"input_tokens": usage.tokens, "output_tokens": 0}
    if warnings:
        meta["warnings"] = warnings
    return meta


def _truncated(field: str, lengths: TextLengths) -> list[str]:
    """A warning with the indices of truncated texts; none if there are none."""
    indices = ", ".join(map(str, lengths.truncated))
    return [f"`{field}` truncated: {indices}."] if indices else []


DIALECT = Dialect(name="cohere", title="Cohere", routes=tuple(ROUTES), render_error=render_message("message", ERRORS))
