"""A matrix as bytes is the matrix."""

from __future__ import annotations

import numpy as np
import pytest
from tests.products.results import VECTORS, embed_result, usage

from vectord.errors import NotAcceptable
from vectord.products.common.vectors import MAX_ROWS_SHOWN, check_octets, render_octets
from vectord.schema import ChunkedDocument, DocumentChunk, DocumentsResult, EmbedRequest, EmbedResult, Span

COLBERT = [np.array([[1, 0]], np.float32), np.array([[0, 1], [0.6, 0.8]], np.float32)]


def matrix(rendered, dtype):
    shape = tuple(map(int, rendered.headers["x-vectord-shape"].split(",")))
    return np.frombuffer(rendered.body, dtype).reshape(shape)


def test_float32_comes_back_bit_for_bit():
    """Little-endian, row after row, also of a matrix that is cut from a wider one."""
    wide = np.concatenate([VECTORS, VECTORS], axis=1)
    rendered = render_octets("float32", embed_result(wide[:, :3]))
    assert matrix(rendered, "<f4").tobytes() == VECTORS.tobytes()
    assert rendered.content_type == "application/octet-stream"
    assert rendered.headers == {"x-vectord-dtype": "float32", "x-vectord-shape": "2,3", "x-vectord-model": "served"}


def test_float16_is_half_the_bytes():
    """Each number rounded to the nearest."""
    rows = np.array([[0.1, -0.2, 1 / 3]], np.float32)
    assert matrix(render_octets("float16", embed_result(rows)), "<f2").tolist() == rows.astype("<f2").tolist()


@pytest.mark.parametrize(
    ("dtype", "rows"), [("int8", np.array([[-127, 3]], np.int8)), ("ubinary", np.array([[200]], np.uint8))]
)
def test_quantised_rows_are_one_byte_a_column(dtype, rows):
    """As the engine made them."""
    result = EmbedResult(model="m", fingerprint="f", usage=usage(), dense={dtype: rows})
    assert matrix(render_octets(dtype, result), rows.dtype).tolist() == rows.tolist()


@pytest.mark.parametrize("kind", ["colbert", "tokens"])
def test_token_vectors_lie_text_after_text(kind):
    """A header says how many rows are whose."""
    result = EmbedResult(model="m", fingerprint="f", usage=usage(), **{kind: COLBERT})
    rendered = render_octets("float32", result)
    assert matrix(rendered, "<f4").tolist() == np.concatenate(COLBERT).tolist()
    assert rendered.headers["x-vectord-rows"] == "1,2"


def test_chunks_lie_document_after_document():
    """As token vectors do."""
    chunk = DocumentChunk(span=Span(0, 1), tokens=1)
    documents = [
        ChunkedDocument(chunks=[chunk] * len(rows), vectors={"float": rows})
        for rows in (VECTORS, VECTORS[:0], VECTORS[:1])
    ]
    rendered = render_octets("float32", DocumentsResult(model="m", fingerprint="f", documents=documents, usage=usage()))
    assert rendered.headers["x-vectord-rows"] == "2,0,1"
    assert matrix(rendered, "<f4").shape == (3, 3)


def test_the_header_of_rows_is_bounded():
    """Texts of token vectors beyond it are for Arrow."""
    inputs = ["a"] * (MAX_ROWS_SHOWN + 1)
    check_octets(EmbedRequest(inputs=inputs), "float32")
    with pytest.raises(NotAcceptable):
        check_octets(EmbedRequest(inputs=inputs, outputs=frozenset({"colbert"})), "float32")
