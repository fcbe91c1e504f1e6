"""What pyarrow reads from a stream is what the engine gave."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from tests.products.results import VECTORS, usage

from vectord.errors import InputTooLong
from vectord.products.common.vectors import render_arrow
from vectord.schema import EmbedResult, Sparse

COLBERT = [np.array([[1, 0]], np.float32), np.array([[0, 1], [0.6, 0.8]], np.float32)]
SPARSE = Sparse(np.array([9, 2], np.int32), np.array([0.5, 3], np.float32))


def table(**facts):
    rendered = render_arrow(EmbedResult(model="served", fingerprint="f00d", usage=usage(), **facts))
    assert rendered.content_type == "application/vnd.apache.arrow.stream"
    return pa.ipc.open_stream(rendered.body).read_all()


def test_all_kinds_stand_side_by_side():
    """A row an input; what a text lacks is an empty list."""
    sparse = [SPARSE, Sparse(np.zeros(0, np.int32), np.zeros(0, np.float32))]
    read = table(dense={"float": VECTORS}, sparse=sparse, colbert=COLBERT, tokens=COLBERT)
    assert read.column_names == ["dense", "sparse", "colbert", "tokens", "tokens_seen", "tokens_kept", "error"]
    assert np.array(read["dense"].to_pylist(), np.float32).tobytes() == VECTORS.tobytes()
    assert read["sparse"].to_pylist() == [{"indices": [9, 2], "values": [0.5, 3.0]}, {"indices": [], "values": []}]
    assert read["colbert"].to_pylist() == read["tokens"].to_pylist() == [rows.tolist() for rows in COLBERT]
    assert read["tokens_seen"].to_pylist() == [3, 9]
    assert read["tokens_kept"].to_pylist() == [3, 4]
    assert read.schema.metadata == {b"model": b"served", b"fingerprint": b"f00d"}


def test_types_are_those_of_the_numbers():
    """float32 stays that, int8 is int8, and each precision has a column."""
    read = table(dense={"float": VECTORS, "int8": np.zeros((2, 3), np.int8)})
    assert read.schema.field("dense").type == pa.list_(pa.float32(), 3)
    assert read.schema.field("dense_int8").type == pa.list_(pa.int8(), 3)


def test_a_failed_input_says_why():
    """In its own row; the others are null."""
    read = table(dense={"float": VECTORS}, failures={1: InputTooLong("Too long.", index=1)})
    assert read["error"].to_pylist() == [None, "Too long."]
