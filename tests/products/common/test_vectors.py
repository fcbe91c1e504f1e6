"""Vectors keep their bits in every form of response: JSON, base64, and one matrix."""

from __future__ import annotations

import base64
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.products.results import VECTORS, embed_result, usage

from vectord.errors import NotAcceptable
from vectord.products.common.vectors import (
    MAX_ROWS_SHOWN,
    check_octets,
    dump_json,
    render_octets,
    render_row_by_row,
    to_base64,
)
from vectord.schema import (
    ChunkedDocument,
    DocumentChunk,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    Span,
    Token,
)

FINITE = arrays.arrays(
    np.float32, st.integers(1, 20), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)
COLBERT = [np.array([[1, 0]], np.float32), np.array([[0, 1], [0.6, 0.8]], np.float32)]

# --- JSON -----------------------------------------------------------------------------------------------------


def test_base64_is_little_endian_float32():
    """The bytes that OpenAI's clients read: 1.0 is 00 00 80 3f, -2.5 is 00 00 20 c0."""
    assert to_base64(np.array([1.0, -2.5], dtype=np.float32)) == "AACAPwAAIMA="


@given(FINITE)
def test_both_encodings_keep_every_bit(vector):
    """JSON numbers and base64 read back to the same float32."""
    numbers = np.array(json.loads(dump_json(vector)), dtype=np.float32)
    unpacked = struct.unpack(f"<{len(vector)}f", base64.b64decode(to_base64(vector)))
    assert numbers.tobytes() == vector.tobytes() == np.array(unpacked, dtype=np.float32).tobytes()


def test_a_strided_vector_is_packed_in_order():
    """A column of a wider array is encoded as its own numbers."""
    wide = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert base64.b64decode(to_base64(wide[:, 1])) == struct.pack("<3f", 1, 5, 9)


def test_an_answer_that_is_dumped_row_by_row_has_the_same_bytes() -> None:
    """For every kind of array and for tokens, at every depth. The next answer is dumped at once again."""
    answer = {
        "matrix": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
        "cube": np.arange(8, dtype=np.int8).reshape(2, 2, 2),
        "rows": [np.arange(3, dtype=np.uint8), np.zeros(0, np.float32)],
        "none": np.zeros((0, 4), np.float32),
        "number": np.float32(0.1),
        "text": 'a "b"',
        "tokens": [[Token(id=1, text='"', special=False, start=0, stop=1)], []],
    }
    whole = dump_json(answer)
    assert render_row_by_row(lambda: dump_json(answer)) == whole == dump_json(answer)


# --- one binary matrix ----------------------------------------------------------------------------------------


def matrix(rendered, dtype):
    shape = tuple(map(int, rendered.headers["x-vectord-shape"].split(",")))
    return np.frombuffer(rendered.body, dtype).reshape(shape)


def test_a_float32_matrix_keeps_every_bit():
    """Little-endian, row by row, also if it is a view of a wider matrix."""
    wide = np.concatenate([VECTORS, VECTORS], axis=1)
    rendered = render_octets("float32", embed_result(wide[:, :3]))
    assert matrix(rendered, "<f4").tobytes() == VECTORS.tobytes()
    assert rendered.content_type == "application/octet-stream"
    assert rendered.headers == {"x-vectord-dtype": "float32", "x-vectord-shape": "2,3", "x-vectord-model": "served"}


def test_a_float16_matrix_has_rounded_numbers():
    """Each rounded to the nearest."""
    rows = np.array([[0.1, -0.2, 1 / 3]], np.float32)
    assert matrix(render_octets("float16", embed_result(rows)), "<f2").tolist() == rows.astype("<f2").tolist()


def test_numbers_too_large_for_float16_are_an_error():
    """Instead of infinity."""
    for size in (65519.0, 65520.0):
        result = embed_result(np.array([[size, 1]], np.float32))
        if size < 65520:
            assert matrix(render_octets("float16", result), "<f2").tolist() == [[65504, 1]]
            continue
        with pytest.raises(NotAcceptable, match="too large for float16; ask for float32"):
            render_octets("float16", result)


@pytest.mark.parametrize(
    ("dtype", "rows"), [("int8", np.array([[-127, 3]], np.int8)), ("ubinary", np.array([[200]], np.uint8))]
)
def test_a_quantized_matrix_has_one_byte_for_each_column(dtype, rows):
    """The engine's bytes, unchanged."""
    result = EmbedResult(model="m", fingerprint="f", usage=usage(), dense={dtype: rows})
    assert matrix(render_octets(dtype, result), rows.dtype).tolist() == rows.tolist()


@pytest.mark.parametrize("kind", ["colbert", "tokens"])
def test_token_vectors_are_in_the_order_of_the_texts(kind):
    """A header has the number of rows of each text."""
    result = EmbedResult(model="m", fingerprint="f", usage=usage(), **{kind: COLBERT})
    rendered = render_octets("float32", result)
    assert matrix(rendered, "<f4").tolist() == np.concatenate(COLBERT).tolist()
    assert rendered.headers["x-vectord-rows"] == "1,2"


def test_chunks_are_in_the_order_of_the_documents():
    """A header has the number of chunks of each document."""
    chunk = DocumentChunk(span=Span(0, 1), tokens=1)
    documents = [
        ChunkedDocument(chunks=[chunk] * len(rows), vectors={"float": rows})
        for rows in (VECTORS, VECTORS[:0], VECTORS[:1])
    ]
    rendered = render_octets("float32", DocumentsResult(model="m", fingerprint="f", documents=documents, usage=usage()))
    assert rendered.headers["x-vectord-rows"] == "2,0,1"
    assert matrix(rendered, "<f4").shape == (3, 3)


def test_the_header_of_rows_is_bounded():
    """Token vectors of more texts are available as JSON."""
    inputs = ["a"] * (MAX_ROWS_SHOWN + 1)
    check_octets(EmbedRequest(inputs=inputs), "float32")
    with pytest.raises(NotAcceptable):
        check_octets(EmbedRequest(inputs=inputs, outputs=frozenset({"colbert"})), "float32")
