"""/vectord/embed and /vectord/documents: the vectors of texts and of their chunks."""

from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, cast

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from vectord.errors import InvalidField
from vectord.products.common.body import TokenId
from vectord.products.common.dialect import Call, Incoming, Rendered, Routes
from vectord.products.common.fields import about
from vectord.products.common.inputs import read_chunks, read_fingerprint, read_inputs
from vectord.products.common.media import read_image, read_pdf
from vectord.products.common.vectors import Encoding, Vector, encoded_rows
from vectord.products.vectord.fields import (
    ChunkFields,
    EncodedVector,
    ResultAnswer,
    TruncationAnswer,
    VectorFields,
    error_object,
    result_answer,
    text_options,
    truncated,
)
from vectord.schema import (
    COLBERT_ROWS,
    ChunkedDocument,
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    Float32,
    Input,
    Media,
    MultiVectorOptions,
    Precision,
    VectorKind,
    item_of,
)

ROUTES = Routes()


class MediaItem(msgspec.Struct, forbid_unknown_fields=True):
    image: Annotated[str | None, about("a data URI, or base64")] = None
    pdf: Annotated[str | None, about("the same, of a PDF: each of its pages gets an entry in `data`")] = None

    def read(self, index: int) -> Media:
        """Raises InvalidField unless there is one file."""
        if (self.image is None) == (self.pdf is None):
            raise InvalidField("{field} must have an `image` or a `pdf`.", field="inputs", index=index)
        return read_pdf(self.pdf, index=index) if self.pdf is not None else read_image(self.image, index=index)


class EmbedBody(VectorFields, kw_only=True):
    """`dimensions`, `normalize` and `precisions` apply to dense vectors; `encoding` applies to all but sparse ones."""

    inputs: Annotated[
        str | list[str | TokenId | list[TokenId | str | MediaItem] | MediaItem] | MediaItem,
        about("texts, token ids, objects with an `image` or a `pdf`, or lists of texts and images, each one input"),
    ]
    outputs: Annotated[list[VectorKind], Meta(min_length=1, max_length=4)] | None = None  # null: dense
    precisions: Annotated[list[Precision], Meta(min_length=1, max_length=5)] | None = None  # null: float
    colbert: MultiVectorOptions | None = None
    patches: bool | None = False  # also the part of the image that each ColBERT vector belongs to
    pictures: Annotated[bool | None, about("also a JPEG of each page of a PDF, of at most 1000 pixels")] = False
    partial_results: bool | None = False  # an input that cannot be embedded gets an error of its own


class SparseAnswer(msgspec.Struct):
    indices: list[int]
    values: list[float]


class ErrorAnswer(msgspec.Struct):
    """Why an input has no vectors. The message names the unit of `limit` and `given`."""

    type: str
    message: str
    field: str | None
    index: int | None
    limit: int | None
    given: int | None


class EmbeddedInput(msgspec.Struct):
    """The requested vectors of one input. If several precisions are requested, `dense` is an object by precision."""

    index: int  # of the input
    page: int | UnsetType = UNSET  # of a PDF, counted from 1
    picture: str | UnsetType = UNSET  # with `pictures`: of the page, in base64
    dense: EncodedVector | dict[Precision, EncodedVector] | UnsetType = UNSET
    sparse: SparseAnswer | UnsetType = UNSET
    colbert: list[EncodedVector] | UnsetType = UNSET  # one vector per token
    muvera: EncodedVector | UnsetType = UNSET  # with `colbert.muvera`
    # With `patches`: left, top, right and bottom for each ColBERT vector, in fractions of the image; null: of words.
    patches: list[tuple[float, float, float, float] | None] | UnsetType = UNSET
    tokens: list[EncodedVector] | UnsetType = UNSET  # one vector per token
    truncated: list[TruncationAnswer] | UnsetType = UNSET  # only if the text was truncated
    error: ErrorAnswer | UnsetType = UNSET  # instead of vectors; only with partial_results


class EmbedAnswer(ResultAnswer):
    data: list[EmbeddedInput]
    sources: dict[VectorKind, str]  # the model that made each kind


@ROUTES.post(
    "/vectord/embed",
    answer=EmbedAnswer,
    summary="Turn texts into dense, sparse, ColBERT and token vectors at once",
    example={"inputs": ["a happy person"], "dimensions": 384},
)
def parse_embed(body: EmbedBody, incoming: Incoming) -> Call:
    precisions = tuple(dict.fromkeys(body.precisions or ("float",)))
    outputs = frozenset(body.outputs or ("dense",))
    if body.normalize is False and "dense" not in outputs:
        raise InvalidField("{field} applies to dense vectors only.", field="normalize")
    request = EmbedRequest(
        inputs=_inputs(body.inputs),
        model=body.model or None,
        text=text_options(body),
        outputs=outputs,
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        force_dimensions=body.force_dimensions is True,
        precisions=precisions,
        colbert=body.colbert or COLBERT_ROWS,
        patches=body.patches is True,
        pictures=body.pictures is True,
        expect_fingerprint=read_fingerprint(body.expect_fingerprint),
        partial=body.partial_results is True,
    )
    return Call(request, partial(render_embed, precisions, body.encoding or "float"))


def _inputs(given: str | list[str | int | list[int | str | MediaItem] | MediaItem] | MediaItem) -> Sequence[Input]:
    items = [given] if isinstance(given, str | MediaItem) else given
    return read_inputs([_input(one, index) for index, one in enumerate(items)])


def _input(one: str | int | list[int | str | MediaItem] | MediaItem, index: int) -> Any:
    """A text, an id, a list of ids, or texts and images."""
    if isinstance(one, MediaItem):
        return one.read(index)
    if not isinstance(one, list) or all(isinstance(part, int) for part in one):
        return one
    parts = [part.read(index) if isinstance(part, MediaItem) else part for part in one]
    kinds = {type(part) for part in parts}
    if kinds - {str, Media} or Media not in kinds or any(isinstance(part, Media) and part.has_pages for part in parts):
        template = "{field} must hold token ids, or texts and images."
        raise InvalidField(template, field="inputs", index=index)
    return item_of(cast("list[str | Media]", parts))


def render_embed(precisions: Sequence[Precision], encoding: Encoding, result: EmbedResult) -> Rendered:
    dense = {precision: encoded_rows(rows, encoding) for precision, rows in result.dense.items()}
    muvera = None if result.muvera is None else encoded_rows(result.muvera, encoding)
    data = []
    for index in range(len(result.usage.lengths)):
        item: dict[str, Any] = {"index": index}
        if result.pages:
            place = result.pages[index]
            item = {"index": place.index} if place.page is None else {"index": place.index, "page": place.page}
        if result.pictures and result.pictures[index]:
            item["picture"] = b64encode(result.pictures[index]).decode()
        if index in result.failures:
            data.append(item | {"error": error_object(result.failures[index])})
            continue
        if dense:
            by_precision = {precision: rows[index] for precision, rows in dense.items()}
            item["dense"] = by_precision if len(precisions) > 1 else by_precision[precisions[0]]
        if result.sparse is not None:
            sparse = result.sparse[index]
            item["sparse"] = {"indices": sparse.indices, "values": sparse.values}
        if result.colbert is not None:
            item["colbert"] = _token_vectors(result.colbert[index], encoding)
            if result.patches is not None:
                item["patches"] = _boxes(result.patches[index], len(result.colbert[index]))
        if muvera is not None:
            item["muvera"] = muvera[index]
        if result.tokens is not None:
            item["tokens"] = _token_vectors(result.tokens[index], encoding)
        data.append(item | truncated(result.lengths, result.limits, index))
    return result_answer(result, data=data, sources=dict(result.sources))


def _boxes(boxes: Float32 | None, count: int) -> list[list[float] | None]:
    if boxes is None:
        return [None] * count
    words = np.isnan(boxes[:, 0]).tolist()
    shown = np.round(boxes.astype(np.float64), 5).tolist()
    return [None if is_word else box for is_word, box in zip(words, shown, strict=True)]


def _token_vectors(rows: Vector, encoding: Encoding) -> Any:
    """One vector for each token, rows (n, C). Each is base64 of its own, so that the answer shows their number."""
    return encoded_rows(rows, encoding) if encoding == "base64" else np.ascontiguousarray(rows)


class DocumentsBody(VectorFields, kw_only=True):
    documents: list[str]
    chunk: ChunkFields
    vectors: bool | None = True
    late: bool | None = False
    mean: bool | None = False


class ChunkAnswer(msgspec.Struct):
    """document[start:stop], in characters."""

    start: int
    stop: int
    tokens: int
    vector: EncodedVector | UnsetType = UNSET


class DocumentAnswer(msgspec.Struct):
    index: int
    chunks: list[ChunkAnswer]
    mean: EncodedVector | UnsetType = UNSET


class DocumentsAnswer(ResultAnswer):
    data: list[DocumentAnswer]


@ROUTES.post(
    "/vectord/documents",
    computes="documents",
    answer=DocumentsAnswer,
    summary="Cut documents into chunks and embed each",
    example={
        "documents": ["The river rose after two days of rain. The bridge was closed by noon."],
        "chunk": {"max_tokens": 20, "by": "sentences"},
        "late": True,
    },
)
def parse_documents(body: DocumentsBody, incoming: Incoming) -> Call:
    for field, is_set in (("late", body.late), ("mean", body.mean)):
        if is_set and body.vectors is False:
            raise InvalidField("{field} contradicts {body.vectors}, which is false.", field=field)
    request = DocumentsRequest(
        documents=body.documents,
        chunks=read_chunks(body.chunk.max_tokens, body.chunk.overlap_tokens, body.chunk.by),
        model=body.model or None,
        text=text_options(body),
        vectors=body.vectors is not False,
        late=body.late is True,
        mean=body.mean is True,
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        force_dimensions=body.force_dimensions is True,
        expect_fingerprint=read_fingerprint(body.expect_fingerprint),
    )
    encoding: Encoding = body.encoding or "float"

    def render(result: DocumentsResult) -> Rendered:
        data = [_document(index, document, encoding) for index, document in enumerate(result.documents)]
        return result_answer(result, data=data)

    return Call(request, render)


def _document(index: int, document: ChunkedDocument, encoding: Encoding) -> dict[str, Any]:
    chunks: list[dict[str, Any]] = [
        {"start": chunk.span.start, "stop": chunk.span.stop, "tokens": chunk.tokens} for chunk in document.chunks
    ]
    if document.vectors:
        for chunk, vector in zip(chunks, encoded_rows(document.vectors["float"], encoding), strict=True):
            chunk["vector"] = vector
    shown: dict[str, Any] = {"index": index, "chunks": chunks}
    if document.mean is not None:
        (shown["mean"],) = encoded_rows([document.mean], encoding)
    return shown
