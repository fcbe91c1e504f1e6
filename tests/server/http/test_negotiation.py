"""Which format and which compression the headers of a request select."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.products.results import embed_result

from vectord.errors import NotAcceptable
from vectord.products.common.dialect import Call, Rendered
from vectord.schema import (
    ChunkOptions,
    DocumentsRequest,
    EmbedRequest,
    RerankRequest,
    Result,
)
from vectord.server.http.negotiation import coding_for, negotiated

OCTETS = "application/octet-stream"


def own(result: Result) -> Rendered:
    return Rendered(body=b"{}")


def asked(accept: str | None, **facts: Any) -> Call:
    call = Call(EmbedRequest(inputs=["a", "b"], **facts), own)
    return negotiated(call, {} if accept is None else {"accept": accept})


@pytest.mark.parametrize(
    "accept",
    [
        None,
        "",
        "*/*",
        "application/json",
        "application/json, application/octet-stream",
        "application/octet-stream;q=0.5, application/json",
        "application/octet-stream;q=0",
        "text/html, */*;q=0.1",
        "," * 2000,
    ],
)
def test_json_is_the_default(accept: str | None) -> None:
    """Unless bytes have the highest quality."""
    assert asked(accept).render is own


@pytest.mark.parametrize(
    ("accept", "dtype", "precision"),
    [
        ("application/octet-stream", "float32", "float"),
        ("Application/Octet-Stream, */*;q=0.8", "float32", "float"),
        ('application/octet-stream; dtype="float16"', "float16", "float"),
        ("application/octet-stream;dtype=int8;q=1", "int8", "int8"),
        ("application/json;q=0.1, application/octet-stream;dtype=ubinary;q=0.9", "ubinary", "ubinary"),
    ],
)
def test_bytes_are_sent_if_named(accept: str, dtype: str, precision: str) -> None:
    """In the requested type."""
    call = asked(accept)
    assert isinstance(call.request, EmbedRequest)
    assert call.request.precisions == (precision,)
    dense = {precision: np.zeros((2, 3), np.float32 if precision == "float" else np.uint8)}
    rendered = call.render(replace(embed_result(), dense=dense))
    assert rendered.headers["x-vectord-dtype"] == dtype


@pytest.mark.parametrize(
    ("accept", "facts"),
    [
        pytest.param("application/octet-stream;dtype=float64", {}, id="an unknown type"),
        pytest.param("application/octet-stream", {"outputs": frozenset({"dense", "sparse"})}, id="two kinds"),
        pytest.param("application/octet-stream", {"outputs": frozenset({"sparse"})}, id="sparse"),
        pytest.param("application/octet-stream", {"partial": True}, id="errors of single inputs"),
        pytest.param("application/octet-stream;dtype=int8", {"outputs": frozenset({"tokens"})}, id="int8 of tokens"),
    ],
)
def test_results_of_several_matrices_are_refused(accept: str, facts: dict[str, Any]) -> None:
    """Before anything is computed."""
    with pytest.raises(NotAcceptable):
        asked(accept, **facts)


def test_only_vectors_are_sent_as_bytes() -> None:
    """A ranking is always JSON."""
    call = Call(RerankRequest(query="q", passages=["a"]), own)
    assert negotiated(call, {"accept": "application/octet-stream"}) is call


def test_documents_are_one_matrix() -> None:
    """One row per chunk."""
    call = Call(DocumentsRequest(documents=["a"], chunks=ChunkOptions(max_tokens=8)), own)
    assert negotiated(call, {"accept": "application/octet-stream"}).render is not own
    bytes_ = negotiated(call, {"accept": "application/octet-stream;dtype=int8"})
    assert bytes_.request.precisions == ("int8",)
    with pytest.raises(NotAcceptable):
        negotiated(replace(call, request=replace(call.request, mean=True)), {"accept": "application/octet-stream"})


def test_bytes_have_the_type_of_the_body() -> None:
    """Unless the header names one; other types are refused."""
    call = Call(EmbedRequest(inputs=["a"], precisions=("int8",)), own)
    assert negotiated(call, {"accept": OCTETS}).request.precisions == ("int8",)
    assert negotiated(call, {"accept": f"{OCTETS};dtype=float16"}).request.precisions == ("float",)
    for precisions in (("float", "int8"), ("uint8",), ("binary",)):
        other = replace(call, request=EmbedRequest(inputs=["a"], precisions=precisions))
        with pytest.raises(NotAcceptable, match="dtype="):
            negotiated(other, {"accept": OCTETS})
        assert negotiated(other, {"accept": f"{OCTETS};dtype=ubinary"}).request.precisions == ("ubinary",)


def test_vectors_scaled_by_a_renderer_are_never_bytes() -> None:
    """They would differ from its JSON."""
    with pytest.raises(NotAcceptable, match="JSON only"):
        negotiated(Call(EmbedRequest(inputs=["a"]), own, binary=False), {"accept": OCTETS})


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (None, None),
        ("", None),
        ("gzip", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("zstd;q=0, gzip", "gzip"),
        ("deflate, GZIP;q=0.5", "gzip"),
        ("*", "gzip"),
        ("gzip;q=0", None),
        ("gzip; q=0.000", None),
        ("*;q=0", None),
        ("gzip;q=0, *", None),
        ("*;q=0, gzip", "gzip"),
        ("identity", None),
        ("xgzip", None),
        ("gzip;q=zero", "gzip"),
        ("gzip;q=0.01", "gzip"),
        ("gzip," * 1000, None),
    ],
)
def test_the_coding_follows_accept_encoding(header: str | None, coding: str | None) -> None:
    """By name, gzip also by *, and not at quality zero; a very long header is ignored."""
    assert coding_for(header) == coding
