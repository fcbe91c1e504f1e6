"""Vectors as bytes: one contiguous little-endian matrix, its shape and type in headers.

    content-type           application/octet-stream
    x-vectord-dtype        float32, float16, int8 or ubinary (bits, eight to a byte, the first one highest)
    x-vectord-shape        rows,columns of the matrix as it lies there: 2,384; of ubinary the columns are bytes
    x-vectord-rows         where each text has a vector a token: how many rows belong to each text, 7,12
    x-vectord-model        who made them, percent-encoded where a header cannot hold the name

A matrix of N texts by D numbers costs a copy or none and no printing of numbers, which is what most of the time of a
JSON answer goes into. Several kinds of vectors at once, and sparse ones, have their place in arrow.py. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from vectord.errors import NotAcceptable
from vectord.products.common.rendered import Rendered
from vectord.schema import DocumentsRequest, DocumentsResult, EmbedRequest, EmbedResult, Precision, Result

OCTETS = "application/octet-stream"
MAX_ROWS_SHOWN = 500  # texts of several rows each: the header stays below the 4 kB that proxies allow

_PLAIN = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")  # what stands in the header as it is

Dtype: TypeAlias = Literal["float32", "float16", "int8", "ubinary"]

PRECISIONS: Mapping[Dtype, Precision] = {
    "float32": "float",
    "float16": "float",
    "int8": "int8",
    "ubinary": "ubinary",
}


def check_octets(request: EmbedRequest | DocumentsRequest, dtype: Dtype) -> None:
    """Raises NotAcceptable before anything is computed for what one matrix cannot hold."""
    if isinstance(request, DocumentsRequest):
        _check_documents(request)
        return
    if len(request.outputs) != 1 or "sparse" in request.outputs:
        raise NotAcceptable(f"{OCTETS} holds one kind of dense, colbert or token vectors; ask for JSON or Arrow.")
    if "dense" not in request.outputs:
        if PRECISIONS[dtype] != "float":
            raise NotAcceptable("Vectors of tokens come as float32 or float16.")
        if len(request.inputs) > MAX_ROWS_SHOWN:
            raise NotAcceptable(f"Vectors of tokens come as {OCTETS} for at most {MAX_ROWS_SHOWN} inputs; use Arrow.")
    if request.partial:
        raise NotAcceptable(f"{OCTETS} has no place for the errors of single inputs; ask for JSON or Arrow.")


def _check_documents(request: DocumentsRequest) -> None:
    if request.mean:
        raise NotAcceptable(f"{OCTETS} holds the vectors of chunks, without a mean; ask for JSON.")
    if len(request.documents) > MAX_ROWS_SHOWN:
        raise NotAcceptable(f"{OCTETS} holds at most {MAX_ROWS_SHOWN} documents; ask for JSON.")


def render_octets(dtype: Dtype, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult | DocumentsResult)
    if isinstance(result, DocumentsResult):
        rows = [document.vectors[PRECISIONS[dtype]] for document in result.documents]
        return _rendered(np.concatenate(rows), dtype, result.model, rows)
    if result.dense:
        return _rendered(result.dense[PRECISIONS[dtype]], dtype, result.model)
    each = result.colbert if result.colbert is not None else result.tokens
    assert each is not None
    return _rendered(np.concatenate(each), dtype, result.model, each)


def _rendered(
    matrix: npt.NDArray[np.generic], dtype: Dtype, model: str, each: Sequence[npt.NDArray[np.generic]] | None = None
) -> Rendered:
    headers = {
        "x-vectord-dtype": dtype,
        "x-vectord-shape": ",".join(map(str, matrix.shape)),
        "x-vectord-model": quote(model, safe=_PLAIN),
    }
    if each is not None:
        headers["x-vectord-rows"] = ",".join(str(len(rows)) for rows in each)
    wanted = np.dtype("<f2") if dtype == "float16" else matrix.dtype.newbyteorder("<")
    body = np.ascontiguousarray(matrix, dtype=wanted).tobytes()
    return Rendered(body=body, headers=headers, content_type=OCTETS)
