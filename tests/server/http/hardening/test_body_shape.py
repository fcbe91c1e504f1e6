"""Bodies that would cost far more than their bytes are refused before anything is made of them."""

from __future__ import annotations

import pytest

from vectord.errors import PayloadTooLarge
from vectord.server.http.hardening.body import (
    CONTAINERS_PER_INPUT,
    MAX_CONTAINERS,
    MAX_STRINGS,
    MAX_VALUES,
    check_shape,
)


def many(value: str, count: int) -> bytes:
    return f'{{"input": [{",".join([value] * count)}]}}'.encode()


@pytest.mark.parametrize(
    "body",
    [
        many("1", MAX_VALUES + 1),
        many('"a"', MAX_STRINGS + 1),
        many(r'"\\"', MAX_STRINGS * 2 + 1),
        many("[1]", MAX_CONTAINERS),
        many("{}", MAX_CONTAINERS),
    ],
    ids=["ids", "texts", "backslashes", "lists", "objects"],
)
def test_too_many_values_are_refused(body: bytes) -> None:
    """Numbers, strings, lists and objects alike, with what came and the limit in the message."""
    with pytest.raises(PayloadTooLarge, match=f"{MAX_STRINGS}|{MAX_VALUES} and {MAX_CONTAINERS}"):
        check_shape(body)


@pytest.mark.parametrize(
    "text", [",[{" * 1_500_000, '\\",' * 1_500_000, "\\\\" * 1_500_000 + ","], ids=["brackets", "quotes", "backslashes"]
)
def test_what_stands_in_a_text_does_not_count(text: str) -> None:
    """A long text may hold any number of commas and brackets, whatever is escaped in it."""
    check_shape(many(f'"{text}"', 2))


def test_as_many_as_allowed_pass() -> None:
    """The limits themselves are served, and so is a body that is no JSON: the parser has the word for it."""
    check_shape(many("1", MAX_VALUES))
    check_shape(many('"a"', 100_000))
    check_shape(b'"' * 300_001)


@pytest.mark.parametrize("opening", [b",", b"["])
@pytest.mark.parametrize("end", [b"", b"\\"])
def test_a_string_without_an_end_is_looked_at_once(opening: bytes, end: bytes) -> None:
    """Not once for each of its quotes, which would take weeks for a body as large as one may be."""
    many = opening * (MAX_VALUES if opening == b"," else MAX_CONTAINERS + 1)
    with pytest.raises(PayloadTooLarge):
        check_shape(b'{"input":[' + many + b'"' + b'\\"' * 2_000_000 + end)


def test_lists_and_objects_go_by_the_inputs_that_may_come() -> None:
    """Far more than any dialect needs for them are refused, with that limit in the message."""
    body = many("[111]", CONTAINERS_PER_INPUT * 1000)  # and the two around them
    check_shape(body, 1001)
    with pytest.raises(PayloadTooLarge, match=f"limits are {MAX_VALUES} and {CONTAINERS_PER_INPUT * 1000}"):
        check_shape(body, 1000)


def test_a_few_inputs_too_many_are_left_to_the_dialect() -> None:
    """Which names its field, whatever shape its inputs have."""
    parts = '{"content":[{"type":"text","text":"a text of some words"}]}'
    for one in ("[101,102,103,104,105,106,107,108]", parts, f"[{parts},{parts}]"):
        check_shape(many(one, 2049), 2048)
