"""reading.py: vectors are read bit by bit, and invalid ones are refused."""

from __future__ import annotations

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.fakes import MODEL, answer, sparse_of, vector_of, vectors_of
from tests.products.results import route_of

from vectord.client.errors import ServerFailed
from vectord.client.reading import read_vectors
from vectord.client.requests import HttpReply
from vectord.products.common.dialect import Incoming, Rendered
from vectord.products.vectord import DIALECT
from vectord.schema import EmbedRequest, EmbedResult, Sparse, TextOptions
from vectord.server.results import result_headers

TEXTS = ["abba", "b", "the same the same"]
KINDS = ("dense", "sparse", "colbert", "tokens")
BODY = b'{"inputs": ["a"], "encoding": "base64", "outputs": ["dense", "sparse", "colbert", "tokens"]}'


def reply_of(rendered: Rendered, result: EmbedResult) -> HttpReply:
    headers = {**rendered.headers, **result_headers(result), "content-type": rendered.content_type}
    return HttpReply(rendered.status, httpx.Headers(headers), rendered.body)


def written(result: EmbedResult, body: bytes = BODY) -> HttpReply:
    """`result` as the server writes it."""
    return reply_of(route_of(DIALECT, "/vectord/embed").parse(Incoming(body=body)).render(result), result)


def embedded(texts: list[str] = TEXTS, **options: object) -> EmbedResult:
    result = answer(EmbedRequest(inputs=texts, outputs=frozenset(KINDS), **options))
    assert isinstance(result, EmbedResult)
    return result


@pytest.mark.parametrize(
    ("precision", "layout", "expected"),
    [
        ("float", "<f4", vectors_of(TEXTS)),
        ("int8", "i1", np.rint(vectors_of(TEXTS) * 127).astype(np.int8)),
        ("ubinary", "u1", np.packbits(vectors_of(TEXTS) > 0, axis=1)),
    ],
)
def test_a_matrix_is_read_unchanged(precision, layout, expected):
    """In each precision."""
    body = b'{"inputs": ["a"], "encoding": "base64", "precisions": ["%s"]}' % precision.encode()
    reply = written(answer(EmbedRequest(inputs=TEXTS, precisions=(precision,))), body)
    read = read_vectors(reply, ["dense"], 3, layout=layout).dense
    assert read.dtype == expected.dtype
    assert np.array_equal(read, expected)


@given(texts=st.lists(st.text(max_size=12), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_all_kinds_of_vectors_are_read_unchanged(texts):
    """Also of empty texts, which have no sparse weights."""
    piece = read_vectors(written(embedded(texts)), KINDS, len(texts))
    assert piece.model == MODEL
    assert np.array_equal(piece.dense, vectors_of(texts))
    for text, colbert, tokens in zip(texts, piece.colbert, piece.tokens, strict=True):
        assert np.array_equal(colbert, vector_of(text, rows=len(text) + 1))
        assert np.array_equal(tokens, colbert)
    for text, (ids, weights) in zip(texts, piece.sparse, strict=True):
        assert dict(zip(ids.tolist(), weights.tolist(), strict=True)) == sparse_of(text)


def test_arrays_are_writable_copies():
    """Not views of the read-only response, which would stay in memory."""
    piece = read_vectors(written(embedded()), KINDS, len(TEXTS))
    for array in (piece.dense, *piece.colbert, *piece.tokens, *piece.sparse[0]):
        assert array.flags.writeable
        assert array.flags.c_contiguous


def test_truncated_texts_are_named():
    """By their index in the request."""
    result = embedded(["a", "b" * 1001, "c", "d" * 2000], text=TextOptions(truncate=True))
    assert read_vectors(written(result), KINDS, 4).truncated == [1, 3]


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


@pytest.mark.parametrize("result", BROKEN.values(), ids=BROKEN)
def test_a_response_without_the_requested_vectors_is_an_error(result):
    """ServerFailed, not an array of the wrong length."""
    body = BODY if result.dense else BODY.replace(b'"dense", ', b"")
    with pytest.raises(ServerFailed, match="does not describe such"):
        read_vectors(written(result, body), KINDS, len(TEXTS))


def test_a_response_for_another_number_of_texts_is_an_error():
    """The vectors cannot be assigned to texts."""
    with pytest.raises(ServerFailed):
        read_vectors(written(embedded()), KINDS, 4)


@pytest.mark.parametrize("dense", ["AAAAAAAA", "AAA", "é", 7], ids=["another width", "no base64", "no ASCII", "number"])
def test_an_invalid_vector_is_an_error(dense):
    """Such as one that a proxy has changed. The error has the request id."""
    data = [{"index": 0, "dense": "AAAAAA=="}, {"index": 1, "dense": dense}]
    body = msgspec.json.encode({"model": "m", "data": data})
    with pytest.raises(ServerFailed) as failed:
        read_vectors(HttpReply(200, {"x-request-id": "id-1"}, body), ["dense"], 2)
    assert (failed.value.status, failed.value.request_id) == (200, "id-1")


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_bytes_give_server_failed(body):
    """Never another exception."""
    with pytest.raises(ServerFailed):
        read_vectors(HttpReply(200, {}, body), ["dense"], 1)
