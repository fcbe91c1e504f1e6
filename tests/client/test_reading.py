"""reading.py: vectors are read bit by bit, and invalid ones are refused."""

from __future__ import annotations

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.fakes import answer
from tests.products.results import route_of

from vectord.client.errors import ServerFailed
from vectord.client.reading import read_vectors
from vectord.client.requests import HttpReply
from vectord.products.common.dialect import Incoming, Rendered
from vectord.products.vectord import DIALECT
from vectord.schema import EmbedRequest, EmbedResult, Sparse
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


BROKEN = {
    "no colbert vectors": msgspec.structs.replace(embedded(), colbert=None),
    "no dense vectors": msgspec.structs.replace(embedded(), dense={}),
    "ids below 0": msgspec.structs.replace(
        embedded(), sparse=[Sparse(np.array([-1], np.int32), np.ones(1, np.float32))] * 3
    ),
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
def test_any_bytes_give_server_failed(body):
    """Never another exception."""
    with pytest.raises(ServerFailed):
        read_vectors(HttpReply(200, {}, body), ["dense"], 1)
