"""Vectors keep their bits on the wire."""

from __future__ import annotations

import base64
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vectord.errors import InvalidField
from vectord.products.common.vectors import dump_json, embedding_items, read_encoding, render_row_by_row, to_base64

FINITE = arrays.arrays(
    np.float32, st.integers(1, 20), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)


def test_base64_is_little_endian_float32():
    """The very bytes that OpenAI's clients read: 1.0 is 00 00 80 3f, -2.5 is 00 00 20 c0."""
    assert to_base64(np.array([1.0, -2.5], dtype=np.float32)) == "AACAPwAAIMA="


@settings(max_examples=100, deadline=None)
@given(FINITE)
def test_both_encodings_keep_every_bit(vector):
    """JSON numbers and base64 both read back to the same float32, bit for bit."""
    numbers = np.array(json.loads(dump_json(vector)), dtype=np.float32)
    unpacked = struct.unpack(f"<{len(vector)}f", base64.b64decode(to_base64(vector)))
    assert numbers.tobytes() == vector.tobytes() == np.array(unpacked, dtype=np.float32).tobytes()


def test_numbers_are_the_shortest_that_read_back():
    """0.1 is not written as the float64 that lies under it."""
    assert dump_json(np.array([0.1, 1 / 3], dtype=np.float32)) == b"[0.1,0.33333334]"


def test_a_strided_vector_is_packed_in_order():
    """A row cut out of a wider array is encoded as its own numbers."""
    wide = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert base64.b64decode(to_base64(wide[:, 1])) == struct.pack("<3f", 1, 5, 9)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_bytes_stay_bytes(kind):
    """Vectors of one byte a number are as many bytes in base64 and whole numbers in JSON."""
    vector = np.array([1, 100, 127], kind)
    assert base64.b64decode(to_base64(vector)) == bytes([1, 100, 127])
    assert dump_json([vector]) == b"[[1,100,127]]"


def test_items_are_in_input_order():
    """Item i carries index i and vector i, in both encodings."""
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    floats = json.loads(dump_json(embedding_items(vectors, "float")))
    coded = json.loads(dump_json(embedding_items(vectors, "base64")))
    assert [item["index"] for item in floats] == [item["index"] for item in coded] == [0, 1, 2]
    assert [item["embedding"] for item in floats] == vectors.tolist()
    assert [item["embedding"] for item in coded] == [to_base64(vector) for vector in vectors]


@pytest.mark.parametrize(("name", "encoding"), [(None, "float"), ("float", "float"), ("base64", "base64")])
def test_known_encodings(name, encoding):
    """null is sent by some clients and means float."""
    assert read_encoding(name) == encoding


@pytest.mark.parametrize("name", ["", "int7", "FLOAT", "base64 "])
def test_unknown_encodings_are_refused(name):
    """Anything else is refused by name of the field."""
    with pytest.raises(InvalidField) as caught:
        read_encoding(name)
    assert caught.value.field == "encoding_format"


def test_an_answer_in_pieces_is_the_same_answer() -> None:
    """Byte for byte, whatever arrays it holds and wherever; and the next one is dumped at once again."""
    answer = {
        "matrix": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
        "cube": np.arange(8, dtype=np.int8).reshape(2, 2, 2),
        "rows": [np.arange(3, dtype=np.uint8), np.zeros(0, np.float32)],
        "none": np.zeros((0, 4), np.float32),
        "number": np.float32(0.1),
        "text": 'a "b"',
    }
    whole = dump_json(answer)
    assert render_row_by_row(lambda: dump_json(answer)) == whole == dump_json(answer)
