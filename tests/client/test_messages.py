"""A request as it goes over the wire."""

from __future__ import annotations

import gzip
import json

import pytest

from vectord.client.requests import GZIP_MIN_BYTES, Part, Reply, Template, get, post
from vectord.server.admission.caller import request_id

TEMPLATE = Template(path="/vectord/embed", key="inputs", body={}, accept="application/x")


def test_a_part_is_posted_as_json():
    """In the form it asks for, and never compressed on the way back: numbers do not get smaller by it."""
    request = post(Part(TEMPLATE, 0, ["a"]), None)
    assert (request.method, request.path, request.content) == ("POST", "/vectord/embed", b'{"inputs":["a"]}')
    assert request.headers == {
        "accept": "application/x",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "x-request-id": request.headers["x-request-id"],
    }


def test_a_request_id_is_one_that_the_server_keeps():
    """Each request has its own."""
    first, second = get("/"), get("/")
    assert request_id(first.headers) == first.headers["x-request-id"] != second.headers["x-request-id"]


def test_lane_and_expected_space_are_headers():
    """Which every route reads."""
    template = Template(path="/", key="inputs", body={}, expect_fingerprint="f00d")
    headers = post(Part(template, 0, ["a"]), "bulk").headers
    assert (headers["x-vectord-lane"], headers["x-vectord-expect-fingerprint"]) == ("bulk", "f00d")


@pytest.mark.parametrize(("length", "packed"), [(GZIP_MIN_BYTES - 16, False), (GZIP_MIN_BYTES - 15, True)])
def test_a_large_body_goes_compressed(length, packed):
    """From 16 KiB."""
    request = post(Part(TEMPLATE, 0, ["a" * length]), None)
    assert ("content-encoding" in request.headers) == packed
    content = gzip.decompress(request.content) if packed else request.content
    assert json.loads(content) == {"inputs": ["a" * length]}


@pytest.mark.parametrize(("told", "tokens"), [("12", 12), ("", 0), ("many", 0), ("9" * 5000, 0), ("-1", 0)])
def test_tokens_read_is_a_number_whatever_the_header_says(told, tokens):
    """It is shown, not computed with."""
    assert Reply(200, {"x-vectord-tokens-kept": told}, b"").tokens_read == tokens
