"""Bodies with too many values are refused before they are parsed."""

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
    """Numbers, strings, lists and objects, with the count and the limit in the message."""
    with pytest.raises(PayloadTooLarge, match=f"{MAX_STRINGS}|{MAX_VALUES} and {MAX_CONTAINERS}"):
        check_shape(body)


@pytest.mark.parametrize(
    "text", [",[{" * 1_500_000, '\\",' * 1_500_000, "\\\\" * 1_500_000 + ","], ids=["brackets", "quotes", "backslashes"]
)
def test_text_content_does_not_count(text: str) -> None:
    """A long text may contain any number of commas and brackets, with any escapes."""
    check_shape(many(f'"{text}"', 2))


def test_bodies_at_the_limits_pass() -> None:
    """Invalid JSON passes, too: the parser rejects it."""
    check_shape(many("1", MAX_VALUES))
    check_shape(many('"a"', 100_000))
    check_shape(b'"' * 300_001)


@pytest.mark.parametrize("opening", [b",", b"["])
@pytest.mark.parametrize("end", [b"", b"\\"])
def test_an_unterminated_string_is_scanned_once(opening: bytes, end: bytes) -> None:
    """A scan from each of its quotes would take weeks for a body of maximum size."""
    many = opening * (MAX_VALUES if opening == b"," else MAX_CONTAINERS + 1)
    with pytest.raises(PayloadTooLarge):
        check_shape(b'{"input":[' + many + b'"' + b'\\"' * 2_000_000 + end)


def test_the_limit_of_containers_follows_the_limit_of_inputs() -> None:
    body = many("[111]", CONTAINERS_PER_INPUT * 1000)  # and the two around them
    check_shape(body, 1001)
    with pytest.raises(PayloadTooLarge, match=f"limits are {MAX_VALUES} and {CONTAINERS_PER_INPUT * 1000}"):
        check_shape(body, 1000)


def test_a_few_excess_inputs_are_left_to_the_product() -> None:
    """Its error names the field."""
    parts = '{"content":[{"type":"text","text":"a text of some words"}]}'
    for one in ("[101,102,103,104,105,106,107,108]", parts, f"[{parts},{parts}]"):
        check_shape(many(one, 2049), 2048)
