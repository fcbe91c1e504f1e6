"""Request ids, lengths in headers, and the Content-Types of bodies."""

from __future__ import annotations

import re

import pytest

from vectord.errors import UnsupportedMediaType
from vectord.schema import TextLength
from vectord.server.admission.caller import request_id
from vectord.server.http.hardening.body import check_media_type
from vectord.server.http.result_headers import MAX_INDICES, length_headers


@pytest.mark.parametrize("given", ["a", "req-1/2:3", "~" * 128])
def test_a_clients_own_id_is_kept(given: str) -> None:
    """1 to 128 letters, digits and the marks of common ids."""
    assert request_id({"x-request-id": given}) == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "\xe9", "a\tb", "a\n", 'x"status=200'], ids=repr)
def test_any_other_id_is_replaced(given: str) -> None:
    """Text that could break a log line or a header."""
    assert re.fullmatch("[0-9a-f]{32}", request_id({"x-request-id": given}))


def test_generated_ids_differ() -> None:
    assert len({request_id({}) for _ in range(100)}) == 100


def test_lengths_are_summed_and_truncated_inputs_listed() -> None:
    lengths = [TextLength(5, 5), TextLength(9, 4), TextLength(3, 3, characters_cut=7)]
    assert length_headers(lengths) == {
        "x-vectord-tokens-seen": "17",
        "x-vectord-tokens-kept": "12",
        "x-vectord-truncated": "2",
        "x-vectord-truncated-inputs": "1,2",
    }


def test_tokens_are_summed_over_models() -> None:
    """An input that two models truncated counts once."""
    one = [TextLength(5, 5), TextLength(9, 4), TextLength(9, 4)]
    other = [TextLength(6, 2), TextLength(8, 4), TextLength(7, 7)]
    assert length_headers(one, other) == {
        "x-vectord-tokens-seen": "44",
        "x-vectord-tokens-kept": "26",
        "x-vectord-truncated": "3",
        "x-vectord-truncated-inputs": "0,1,2",
    }


def test_without_truncation_there_is_no_list() -> None:
    headers = length_headers([TextLength(5, 5)])
    assert headers["x-vectord-truncated"] == "0"
    assert "x-vectord-truncated-inputs" not in headers


def test_the_list_of_truncated_inputs_is_bounded() -> None:
    """The count is complete."""
    headers = length_headers([TextLength(2, 1)] * 2048)
    assert headers["x-vectord-truncated"] == "2048"
    assert headers["x-vectord-truncated-inputs"].count(",") == MAX_INDICES - 1


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/vnd.api+json",
        "application/x-www-form-urlencoded",
        "text/plain;charset=UTF-8",
        "application/octet-stream",
    ],
)
def test_content_types_of_possible_json_are_accepted(kind: str | None) -> None:
    """Also none, and those that common clients send for any body."""
    check_media_type({} if kind is None else {"content-type": kind})


@pytest.mark.parametrize(
    "kind", ["multipart/form-data; boundary=x", "application/xml", "image/png", "application/jsonp"]
)
def test_other_content_types_are_refused(kind: str) -> None:
    """Forms and files."""
    with pytest.raises(UnsupportedMediaType, match="application/json"):
        check_media_type({"content-type": kind})
