"""Vectors in responses: JSON numbers, base64, or one binary matrix; and OpenAI's list and `usage`."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
from msgspec.structs import asdict

from vectord.errors import InvalidField, NotAcceptable
from vectord.products.common.dialect import Rendered
from vectord.schema import (
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    Precision,
    RerankResult,
    Usage,
)

T = TypeVar("T")
Encoding: TypeAlias = Literal["float", "base64"]
EmbeddingType: TypeAlias = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
Vector: TypeAlias = npt.NDArray[np.generic]  # (D,) float32, or int8 and uint8 in other precisions

# --- JSON -----------------------------------------------------------------------------------------------------

_LITTLE_ENDIAN = frozenset(map(np.dtype, ("<f4", "<f2", "i1", "u1")))
_row_by_row: ContextVar[bool] = ContextVar("_row_by_row", default=False)


def dump_json(answer: object) -> bytes:
    """`answer` as JSON, with the shortest float32 digits that read back to the same number.

    It may contain C-contiguous arrays of numbers; the engine has checked that they are finite.
    """
    if _row_by_row.get():
        return orjson.dumps(answer, default=_dump_part)
    return orjson.dumps(answer, default=asdict, option=orjson.OPT_SERIALIZE_NUMPY)


def json_answer(**fields: object) -> Rendered:
    """A response with these fields as one JSON object, in this order."""
    return Rendered(body=dump_json(fields))


class TokenUsage(msgspec.Struct):
    """Processed tokens."""

    prompt_tokens: int
    total_tokens: int  # the same: nothing is generated
    truncated_inputs: list[int] | msgspec.UnsetType = msgspec.UNSET  # only if an input was truncated


def token_usage(usage: Usage) -> dict[str, Any]:
    """`prompt_tokens` and `total_tokens`, and the indices of truncated inputs if there are any."""
    tokens = usage.tokens
    shown: dict[str, Any] = {"prompt_tokens": tokens, "total_tokens": tokens}
    truncated = usage.lengths.truncated
    if truncated:
        shown["truncated_inputs"] = truncated
    return shown


def list_answer(
    result: EmbedResult | DocumentsResult | RerankResult,
    data: Sequence[Any],
    *,
    headers: Mapping[str, str] = MappingProxyType({}),
    **further: object,
) -> Rendered:
    """OpenAI's list of `data`, with the model, its usage, and the `further` fields."""
    shown = {"object": "list", "data": data, "model": result.model, "usage": token_usage(result.usage), **further}
    return Rendered(body=dump_json(shown), headers=headers)


def render_row_by_row(render: Callable[[], T]) -> T:
    """The result of `render`, for a thread other than the event loop's.

    orjson holds the interpreter lock while it dumps an array, or a list of tokens. Here it dumps arrays row by row, and
    each token alone, so that other threads run in between. For arrays this takes a tenth longer.
    """
    mark = _row_by_row.set(True)
    try:
        return render()
    finally:
        _row_by_row.reset(mark)


def _dump_part(part: Any) -> object:
    """orjson calls this for numpy's arrays and numbers, and for structs."""
    if isinstance(part, np.ndarray) and part.ndim > 1:
        return list(part)
    return orjson.Fragment(orjson.dumps(part, default=asdict, option=orjson.OPT_SERIALIZE_NUMPY))


def read_encoding(name: str | None) -> Encoding:
    """OpenAI's `encoding_format`; null is "float". Raises InvalidField for any other value."""
    if name not in (None, "float", "base64"):
        raise InvalidField("{field} must be 'float' or 'base64'.", field="encoding_format")
    return "base64" if name == "base64" else "float"


class EmbeddingItem(msgspec.Struct):
    """An item of `embedding_items`; `embedding` is base64 if it is a string."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class ListAnswer(msgspec.Struct):
    """The keys of every `list_answer`."""

    object: Literal["list"]
    model: str
    usage: TokenUsage


class EmbeddingList(ListAnswer):
    """`list_answer` of `embedding_items`."""

    data: list[EmbeddingItem]


def embedding_items(vectors: Vector | Sequence[Vector], encoding: Encoding) -> list[dict[str, object]]:
    """OpenAI's `data`: one item for each vector (D,), in order."""
    rows = encoded_rows(vectors, encoding)
    return [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]


def encoded_rows(vectors: Vector | Sequence[Vector], encoding: Encoding) -> list[Any]:
    """Each row as an array, which dump_json writes as numbers, or as base64."""
    if encoding == "float":
        return list(vectors)
    if isinstance(vectors, np.ndarray):  # converting and checking row by row takes longer
        return [b2a_base64(row.data, newline=False).decode("ascii") for row in _little_endian(vectors)]
    return [to_base64(vector) for vector in vectors]


class RowsByType(msgspec.Struct):
    """The requested types, each with all rows. Rows of binary and ubinary have a number for eight dimensions."""

    floats: list[list[float]] | msgspec.UnsetType = msgspec.field(name="float", default=msgspec.UNSET)
    int8: list[list[int]] | msgspec.UnsetType = msgspec.UNSET
    uint8: list[list[int]] | msgspec.UnsetType = msgspec.UNSET
    binary: list[list[int]] | msgspec.UnsetType = msgspec.UNSET
    ubinary: list[list[int]] | msgspec.UnsetType = msgspec.UNSET
    base64: list[str] | msgspec.UnsetType = msgspec.UNSET


def rows_of_type(dense: Mapping[Precision, Vector], kind: EmbeddingType) -> list[Any]:
    """The rows of one of Cohere's and Jina's embedding types, in which base64 is an encoding of float."""
    return encoded_rows(dense["float"], "base64") if kind == "base64" else encoded_rows(dense[kind], "float")


def precisions_of(kinds: Iterable[EmbeddingType]) -> tuple[Precision, ...]:
    """The precisions of these embedding types, each once."""
    precisions: list[Precision] = ["float" if kind == "base64" else kind for kind in kinds]
    return tuple(dict.fromkeys(precisions))


def to_base64(vector: Vector) -> str:
    """vector (D,) -> base64 of its little-endian bytes, without line breaks."""
    return b2a_base64(_little_endian(vector).data, newline=False).decode("ascii")


def _little_endian(array: Vector) -> Vector:
    """The same numbers in a contiguous little-endian array; `array` itself if it is one."""
    if array.flags.c_contiguous and array.dtype in _LITTLE_ENDIAN:
        return array
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


# --- one binary matrix ----------------------------------------------------------------------------------------
#
#     content-type           application/octet-stream
#     x-vectord-dtype        float32, float16, int8 or ubinary (eight bits to a byte, most significant bit first)
#     x-vectord-shape        rows,columns of the matrix: 2,384; for ubinary the columns are bytes
#     x-vectord-rows         the number of rows of each text, if texts have one vector for each token: 7,12
#     x-vectord-model        the model's name, percent-encoded where a header cannot contain it
#
# A matrix is copied at most once and its numbers are not printed, which takes most of the time of a JSON response.

OCTETS = "application/octet-stream"
MAX_ROWS_SHOWN = 500  # texts in x-vectord-rows: the header stays below the 4 kB that proxies allow

_UNQUOTED = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")

Dtype: TypeAlias = Literal["float32", "float16", "int8", "ubinary"]

PRECISIONS: Mapping[Dtype, Precision] = {
    "float32": "float",
    "float16": "float",
    "int8": "int8",
    "ubinary": "ubinary",
}


def check_octets(request: EmbedRequest | DocumentsRequest, dtype: Dtype) -> None:
    """Raises NotAcceptable, before anything is computed, if one matrix cannot hold the result."""
    if isinstance(request, DocumentsRequest):
        if request.mean or not request.vectors:
            raise NotAcceptable(f"{OCTETS} has the vectors of chunks, without a mean; ask for JSON.")
        if len(request.documents) > MAX_ROWS_SHOWN:
            raise NotAcceptable(f"{OCTETS} has at most {MAX_ROWS_SHOWN} documents; ask for JSON.")
        return
    if len(request.outputs) != 1 or "sparse" in request.outputs:
        raise NotAcceptable(f"{OCTETS} has one kind of dense, colbert or token vectors; ask for JSON.")
    if request.colbert.muvera is not None:
        raise NotAcceptable(f"{OCTETS} has the vectors of tokens, without `muvera`; ask for JSON.")
    if "dense" not in request.outputs:
        if PRECISIONS[dtype] != "float" and "colbert" not in request.outputs:
            raise NotAcceptable("Vectors of the last layer's tokens are available as float32 or float16.")
        if len(request.inputs) > MAX_ROWS_SHOWN:
            raise NotAcceptable(f"{OCTETS} has the vectors of tokens of at most {MAX_ROWS_SHOWN} inputs; ask for JSON.")
    if request.partial:
        raise NotAcceptable(f"{OCTETS} cannot contain the errors of single inputs; ask for JSON.")


def render_octets(dtype: Dtype, result: EmbedResult | DocumentsResult) -> Rendered:
    """The vectors of `result` as one matrix. Raises NotAcceptable for a number that is too large for the dtype."""
    texts: Sequence[Vector] | None = None  # each (rows, D); None: one row for each text
    if isinstance(result, DocumentsResult):
        texts = [document.vectors[PRECISIONS[dtype]] for document in result.documents]
        matrix = np.concatenate(texts)
    elif result.dense:
        matrix = result.dense[PRECISIONS[dtype]]
    else:
        texts = result.colbert if result.colbert is not None else result.tokens
        assert texts is not None
        matrix = np.concatenate(texts)
    headers = {
        "x-vectord-dtype": dtype,
        "x-vectord-shape": ",".join(map(str, matrix.shape)),
        "x-vectord-model": quote(result.model, safe=_UNQUOTED),
    }
    if texts is not None:
        headers["x-vectord-rows"] = ",".join(str(len(rows)) for rows in texts)
    little_endian = np.dtype("<f2") if dtype == "float16" else matrix.dtype.newbyteorder("<")
    with np.errstate(over="ignore"):
        shown = np.ascontiguousarray(matrix, dtype=little_endian)
    if not np.isfinite(shown).all():
        raise NotAcceptable(f"These vectors have numbers too large for {dtype}; ask for float32.", field="accept")
    return Rendered(body=shown.tobytes(), headers=headers, content_type=OCTETS)
