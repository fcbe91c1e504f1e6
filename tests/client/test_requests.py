"""requests.py: a list becomes requests that together contain the list, and each is posted as JSON."""

from __future__ import annotations

import gzip
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord.client.errors import BadRequest
from vectord.client.requests import (
    GZIP_MIN_BYTES,
    HttpReply,
    RequestPart,
    RequestTemplate,
    get,
    post,
    split,
    text_size,
)
from vectord.server.admission.gate import request_id

TEMPLATE = RequestTemplate(path="/vectord/embed", key="inputs", body={"model": "m"})
TEXTS = st.lists(st.text(max_size=20), max_size=30)


@given(TEXTS, st.integers(1, 8), st.integers(1, 40))
def test_a_part_ends_only_where_the_next_text_does_not_fit(texts, most, characters):
    """So the number of requests is minimal for this order. A text that exceeds the limit is alone."""
    for one, other in itertools.pairwise(split(TEMPLATE, texts, text_size, most, characters)):
        fits = sum(map(len, one.items)) + len(other.items[0]) <= characters
        assert len(one.items) == most or not fits
        assert len(one.items) <= most
        assert sum(map(len, one.items)) <= characters or len(one.items) == 1


def test_the_body_has_the_options_and_the_items():
    """Strings and numbers of numpy become plain ones."""
    template = RequestTemplate(path="/", key="inputs", body={"dimensions": np.int64(3)})
    body = RequestPart(template, 0, [np.str_("a"), "ü"]).body()
    assert json.loads(body) == {"dimensions": 3, "inputs": ["a", "ü"]}


def test_half_a_surrogate_pair_is_refused_by_its_index_in_the_list():
    """UTF-8 cannot encode it. The message does not show the text."""
    with pytest.raises(BadRequest, match=r"^`inputs\[41\]`: half") as refused:
        RequestPart(TEMPLATE, 40, ["fine", "secret \ud800"]).body()
    assert (refused.value.field, refused.value.index) == ("inputs", 41)
    assert "secret" not in str(refused.value)
    with pytest.raises(BadRequest, match=r"^half of a surrogate"):
        RequestPart(RequestTemplate(path="/", key="passages", body={"query": "\ud800"}), 0, ["a"]).body()


@pytest.mark.parametrize(
    ("field", "index", "message", "shown"),
    [
        (
            "inputs",
            2,
            "`inputs[2]` must have at most 5 tokens; got 9",
            "`inputs[66]` must have at most 5 tokens; got 9",
        ),
        ("inputs", 2, "`inputs[2][1]` must be a string", "`inputs[66][1]` must be a string"),
        ("inputs", 2, "`inputs` must have at most 5 tokens; got 9", "`inputs[66]` must have at most 5 tokens; got 9"),
        *(
            (field, index, "`query` is too long", None)
            for field, index in (("query", 0), ("inputs", None), (None, None))
        ),
    ],
    ids=["item", "within an item", "the only item of its request", "another field", "no index", "no field"],
)
def test_an_error_refers_to_the_whole_list(field, index, message, shown):
    """The server knows only the index in its request. An error about another field is unchanged."""
    error = BadRequest(message)
    error.field, error.index = field, index
    RequestPart(TEMPLATE, 64, ["a"] * 3).place(error)
    assert (str(error), error.index) == ((shown, 66) if shown else (message, index))


# --- one request ----------------------------------------------------------------------------------------------


POSTED = RequestTemplate(path="/vectord/embed", key="inputs", body={})


def test_a_part_is_posted_as_json():
    """Responses are not compressed: numbers do not shrink."""
    request = post(RequestPart(POSTED, 0, ["a"]), None)
    assert (request.method, request.path, request.content) == ("POST", "/vectord/embed", b'{"inputs":["a"]}')
    assert request.headers == {
        "accept": "application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "x-request-id": request.headers["x-request-id"],
    }


def test_the_server_accepts_the_request_id():
    """Each request has its own."""
    first, second = get("/"), get("/")
    assert request_id(first.headers) == first.headers["x-request-id"] != second.headers["x-request-id"]


@pytest.mark.parametrize(("length", "packed"), [(GZIP_MIN_BYTES - 16, False), (GZIP_MIN_BYTES - 15, True)])
def test_a_large_body_is_compressed(length, packed):
    """From 16 KiB."""
    request = post(RequestPart(POSTED, 0, ["a" * length]), None)
    assert ("content-encoding" in request.headers) == packed
    content = gzip.decompress(request.content) if packed else request.content
    assert json.loads(content) == {"inputs": ["a" * length]}


@pytest.mark.parametrize(("told", "tokens"), [("12", 12), ("", 0), ("many", 0), ("9" * 5000, 0), ("-1", 0)])
def test_an_invalid_token_count_is_zero(told, tokens):
    """It is only displayed."""
    assert HttpReply(200, {"x-vectord-tokens-kept": told}, b"").tokens_read == tokens
