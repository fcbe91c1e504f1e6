"""reading.py: the three formats of vectors are read bit by bit, and invalid ones are refused."""

from __future__ import annotations

from contextlib import suppress

import httpx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.fakes import MODEL, answer, sparse_of, vector_of, vectors_of
from tests.products.results import route_of

from vectord.client.errors import ServerFailed
from vectord.client.reading import ARROW, read_matrix, read_vectors
from vectord.client.requests import HttpReply
from vectord.products.common.dialect import Incoming, Rendered
from vectord.products.vectord import DIALECT
from vectord.schema import EmbedRequest, EmbedResult, Sparse, TextOptions
from vectord.server.http.negotiation import negotiated
from vectord.server.results import result_headers

TEXTS = ["abba", "b", "the same the same"]
KINDS = ("dense", "sparse", "colbert", "tokens")
FORMS = {"arrow": ARROW, "json": "application/json"}
BODY = b'{"inputs": ["a"], "encoding": "base64", "outputs": ["dense", "sparse", "colbert", "tokens"]}'


def reply_of(rendered: Rendered, result: EmbedResult) -> HttpReply:
    headers = {**rendered.headers, **result_headers(result), "content-type": rendered.content_type}
    return HttpReply(rendered.status, httpx.Headers(headers), rendered.body)


def written(accept: str, result: EmbedResult, body: bytes = BODY) -> HttpReply:
    """`result` as the server writes it for a client that accepts so."""
    call = negotiated(route_of(DIALECT, "/vectord/embed").parse(Incoming(body=body)), {"accept": accept})
    return reply_of(call.render(result), result)


def embedded(texts: list[str] = TEXTS, **options: object) -> EmbedResult:
    result = answer(EmbedRequest(inputs=texts, outputs=frozenset(KINDS), **options))
    assert isinstance(result, EmbedResult)
    return result


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", vectors_of(TEXTS)),
        ("float16", vectors_of(TEXTS).astype(np.float16)),
        ("int8", np.rint(vectors_of(TEXTS) * 127).astype(np.int8)),
        ("ubinary", np.packbits(vectors_of(TEXTS) > 0, axis=1)),
    ],
)
def test_a_matrix_is_read_unchanged(dtype, expected):
    """In each dtype."""
    result = answer(EmbedRequest(inputs=TEXTS, precisions=(dtype if dtype in ("int8", "ubinary") else "float",)))
    read = read_matrix(written(f"application/octet-stream;dtype={dtype}", result, b'{"inputs": ["a"]}'), dtype, 3)
    assert read.dtype == expected.dtype
    assert np.array_equal(read, expected)


@pytest.mark.parametrize("accept", FORMS.values(), ids=FORMS)
@given(texts=st.lists(st.text(max_size=12), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_all_kinds_of_vectors_are_read_unchanged(accept, texts):
    """Also of empty texts, which have no sparse weights."""
    piece = read_vectors(written(accept, embedded(texts)), KINDS, len(texts))
    assert piece.model == MODEL
    assert np.array_equal(piece.dense, vectors_of(texts))
    for text, colbert, tokens in zip(texts, piece.colbert, piece.tokens, strict=True):
        assert np.array_equal(colbert, vector_of(text, rows=len(text) + 1))
        assert np.array_equal(tokens, colbert)
    ends = np.cumsum(piece.sparse.lengths)[:-1]
    for text, ids, weights in zip(
        texts, np.split(piece.sparse.ids, ends), np.split(piece.sparse.weights, ends), strict=True
    ):
        assert dict(zip(ids.tolist(), weights.tolist(), strict=True)) == sparse_of(text)


@pytest.mark.parametrize("accept", FORMS.values(), ids=FORMS)
def test_arrays_are_writable_copies(accept):
    """Not views of the read-only response, which would stay in memory."""
    piece = read_vectors(written(accept, embedded()), KINDS, len(TEXTS))
    for array in (piece.dense, *piece.colbert, *piece.tokens, piece.sparse.ids, piece.sparse.weights):
        assert array.flags.writeable
        assert array.flags.c_contiguous


@pytest.mark.parametrize("accept", FORMS.values(), ids=FORMS)
def test_truncated_texts_are_named(accept):
    """By their index in the request."""
    result = embedded(["a", "b" * 1001, "c", "d" * 2000], text=TextOptions(truncate=True))
    assert read_vectors(written(accept, result), KINDS, 4).truncated == [1, 3]


def test_the_header_names_texts_that_another_model_truncated():
    """The columns have only the tokens of one model."""
    reply = written(ARROW, embedded())
    reply.headers["x-vectord-truncated-inputs"] = "2"
    assert read_vectors(reply, KINDS, len(TEXTS)).truncated == [2]


def changed(**facts: object) -> EmbedResult:
    """A result that no engine gives."""
    result = embedded()
    return EmbedResult(
        model=MODEL,
        fingerprint="f00d",
        usage=result.usage,
        dense=facts.get("dense", result.dense),
        sparse=facts.get("sparse", result.sparse),
        colbert=facts.get("colbert", result.colbert),
        tokens=facts.get("tokens", result.tokens),
    )


BROKEN = {
    "no colbert vectors": changed(colbert=None),
    "no dense vectors": changed(dense={}),
    "ids below 0": changed(sparse=[Sparse(np.array([-1], np.int32), np.ones(1, np.float32))] * 3),
}


@pytest.mark.parametrize("accept", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("result", BROKEN.values(), ids=BROKEN)
def test_a_response_without_the_requested_vectors_is_an_error(accept, result):
    """ServerFailed, not an array of the wrong length."""
    body = BODY if result.dense else BODY.replace(b'"dense", ', b"")
    with pytest.raises(ServerFailed, match="does not describe such"):
        read_vectors(written(accept, result, body), KINDS, len(TEXTS))


@pytest.mark.parametrize("accept", FORMS.values(), ids=FORMS)
def test_a_response_for_another_number_of_texts_is_an_error(accept):
    """The vectors cannot be assigned to texts."""
    with pytest.raises(ServerFailed):
        read_vectors(written(accept, embedded()), KINDS, 4)


MATRIX = written("application/octet-stream", answer(EmbedRequest(inputs=TEXTS)), b'{"inputs": ["a"]}')


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"x-vectord-dtype": "float64"}, MATRIX.body),
        ({"x-vectord-shape": "2,6"}, MATRIX.body),
        ({"x-vectord-shape": "3,5"}, MATRIX.body),
        ({"x-vectord-shape": "3"}, MATRIX.body),
        ({"x-vectord-shape": "3,-4"}, MATRIX.body),
        ({"x-vectord-shape": ""}, MATRIX.body),
        ({}, MATRIX.body[:-1]),
        ({}, b""),
    ],
    ids=["dtype", "rows", "columns", "one axis", "negative", "no shape", "cut off", "empty"],
)
def test_an_invalid_matrix_is_an_error(headers, body):
    """Such as one that a proxy has changed."""
    with pytest.raises(ServerFailed):
        read_matrix(HttpReply(200, httpx.Headers({**MATRIX.headers, **headers}), body), "float32", 3)


def test_a_page_instead_of_a_matrix_is_an_error():
    """Of another server. The error has the request id."""
    reply = HttpReply(200, {"content-type": "text/html", "x-request-id": "id-1"}, b"<html>")
    with pytest.raises(ServerFailed) as failed:
        read_matrix(reply, "float32", 3)
    assert (failed.value.status, failed.value.request_id) == (200, "id-1")


@given(st.binary(max_size=200), st.sampled_from(list(FORMS.values())))
@settings(max_examples=60, deadline=None)
def test_any_bytes_give_server_failed(body, content_type):
    """Never another exception."""
    reply = HttpReply(
        200, {"content-type": content_type, "x-vectord-dtype": "float32", "x-vectord-shape": "1,99"}, body
    )
    with pytest.raises(ServerFailed):
        read_vectors(reply, ["dense"], 1)
    with pytest.raises(ServerFailed):
        read_matrix(reply, "float32", 1)


@pytest.mark.parametrize("end", [10**6, -1, 0], ids=["beyond", "negative", "before"])
def test_invalid_arrow_offsets_are_an_error(end):
    """They would lead outside the buffer."""
    whole = written(ARROW, embedded())
    with pa.ipc.open_stream(whole.body) as stream:
        batch = stream.read_next_batch()
    rows = batch.column("colbert").values
    lists = pa.ListArray.from_arrays(pa.array([0, 1, end, len(rows)], pa.int32()), rows)
    columns = [lists if name == "colbert" else batch.column(name) for name in batch.schema.names]
    sink = pa.BufferOutputStream()
    changed_batch = pa.RecordBatch.from_arrays(columns, batch.schema.names)
    changed_batch = changed_batch.replace_schema_metadata(batch.schema.metadata)
    with pa.ipc.new_stream(sink, changed_batch.schema) as writer:
        writer.write_batch(changed_batch)
    with pytest.raises(ServerFailed):
        read_vectors(HttpReply(200, whole.headers, sink.getvalue().to_pybytes()), KINDS, len(TEXTS))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_arrow_stream_is_an_error_or_valid_vectors(data):
    """Truncated anywhere, or with one wrong byte."""
    whole = written(ARROW, embedded())
    place = data.draw(st.integers(0, len(whole.body) - 1))
    body = bytearray(whole.body)
    if data.draw(st.booleans()):
        body = body[:place]
    else:
        body[place] = data.draw(st.integers(0, 255))
    with suppress(ServerFailed):
        piece = read_vectors(HttpReply(200, whole.headers, bytes(body)), KINDS, len(TEXTS))
        assert len(piece.dense) == len(piece.sparse) == len(piece.colbert) == len(TEXTS)
