"""A body is decoded into a struct, or rejected with an error that names the field and does not repeat the value."""

from __future__ import annotations

import contextlib
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord.errors import InvalidField, MalformedBody, WrongType
from vectord.products.common.body import Count, TokenId, decode


class Inner(msgspec.Struct):
    name: str
    sizes: list[Count] = []


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    name: str | None = None


class Body(msgspec.Struct):
    input: str | list[str | TokenId | list[TokenId] | Inner]
    flag: bool | None = None
    number: Count | None = None
    ratio: float | None = None
    inner: Inner | None = None
    share: Annotated[float, msgspec.Meta(ge=0, le=0.5)] | None = None
    word: Annotated[str, msgspec.Meta(max_length=6)] | None = None
    kinds: Annotated[list[Literal["a", "b"]], msgspec.Meta(min_length=1)] | None = None
    pairs: list[tuple[str, str]] | None = None
    strict: Strict | None = None


DECODER = msgspec.json.Decoder(Body)
DEEP = 200_000


@pytest.mark.parametrize(
    ("body", "message_part"),
    [
        pytest.param(b"", "it is empty", id="empty"),
        pytest.param(b'{"input": "hello', "cut off", id="cut off in a string"),
        pytest.param(b'{"input": ["a",', "cut off", id="cut off in a list"),
        pytest.param(b'{"input": "a"} tail', "trailing characters at byte", id="trailing"),
        pytest.param(b'{"input": NaN}', "invalid character at byte 10", id="NaN"),
        pytest.param(b'{"input": "a", "else": Infinity}', "invalid character", id="Infinity in an unknown key"),
        pytest.param(b'{"input": [[01]]}', "invalid number", id="leading zero"),
        pytest.param(b'{"input" "a"}', "expected ':'", id="no colon"),
        pytest.param(b"{'input': 'a'}", "keys must be strings", id="single quotes"),
        pytest.param(b'{"input": "\\ud800 and more text"}', "surrogate", id="lone high surrogate"),
        pytest.param(b'{"input": "\\ud800"}', "surrogate", id="lone high surrogate at the end"),
        pytest.param(b'{"input": "\\udc00 and more text"}', "surrogate", id="lone low surrogate"),
        pytest.param(b'{"input": "\xff"}', "UTF-8", id="not UTF-8"),
        pytest.param(b'{"input": "\xed\xa0\x80"}', "UTF-8", id="surrogate in UTF-8"),
        pytest.param(b'\xef\xbb\xbf{"input": "a"}', "invalid character", id="byte order mark"),
        pytest.param(b'{"input": "a", "else": ' + b"[" * DEEP, "nested too deeply", id="deep lists"),
        pytest.param(b'{"input": "a", "else": ' + b'{"a":' * DEEP, "nested too deeply", id="deep objects"),
    ],
)
def test_a_body_that_is_not_json_is_malformed(body, message_part):
    """The message has the fault and its position."""
    with pytest.raises(MalformedBody) as caught:
        decode(DECODER, body)
    assert message_part in caught.value.message
    assert caught.value.field is None


@pytest.mark.parametrize(
    ("body", "message", "field", "index"),
    [
        pytest.param(b"{}", "`input` is required.", "input", None, id="missing"),
        pytest.param(
            b'{"input": "a", "strict": {"size": 1}}',
            "There is no field `strict.size`.",
            "strict.size",
            None,
            id="unknown",
        ),
        pytest.param(
            b'{"input": "a", "strict": {"a b": 1}}',
            "`strict` has a wrong type or value.",
            "strict",
            None,
            id="an unknown name that is not shown",
        ),
        pytest.param(b"[1]", "The request body must be an object, not an array.", None, None, id="not an object"),
        pytest.param(b"null", "The request body must be an object, not null.", None, None, id="null"),
        pytest.param(b'{"input": 7}', "`input` must be a string or an array, not an integer.", "input", None, id="int"),
        pytest.param(
            b'{"input": ["a", [1, "x"]]}',
            "`input[1][1]` must be an integer, not a string.",
            "input",
            1,
            id="text among ids",
        ),
        pytest.param(
            b'{"input": [[true]]}', "`input[0][0]` must be an integer, not a boolean.", "input", 0, id="bool as id"
        ),
        pytest.param(
            b'{"input": [[1.5]]}', "`input[0][0]` must be an integer, not a number.", "input", 0, id="float as id"
        ),
        pytest.param(b'{"input": [[1e400]]}', "`input[0][0]` is out of range.", "input", 0, id="1e400 as id"),
        pytest.param(b'{"input": [[-1]]}', "`input[0][0]` must be an integer >= 0.", "input", 0, id="negative id"),
        pytest.param(
            b'{"input": [{"sizes": [1]}]}', "`input[0].name` is required.", "input", 0, id="missing in an item"
        ),
        pytest.param(
            b'{"input": "a", "inner": {"name": "x", "sizes": [1, null]}}',
            "`inner.sizes[1]` must be an integer, not null.",
            "inner.sizes",
            1,
            id="nested path",
        ),
        pytest.param(
            b'{"input": "a", "flag": "yes"}',
            "`flag` must be a boolean or null, not a string.",
            "flag",
            None,
            id="string as bool",
        ),
        pytest.param(b'{"input": "a", "ratio": 1e999}', "`ratio` is out of range.", "ratio", None, id="1e999"),
        pytest.param(b'{"input": "a", "share": -1}', "`share` must be a number >= 0.0.", "share", None, id="too low"),
        pytest.param(b'{"input": "a", "share": 1}', "`share` must be a number <= 0.5.", "share", None, id="too high"),
        pytest.param(
            b'{"input": "a", "word": "zqzqzqz"}', "`word` must have a length of at most 6.", "word", None, id="too long"
        ),
        pytest.param(
            b'{"input": "a", "kinds": []}', "`kinds` must have a length of at least 1.", "kinds", None, id="too short"
        ),
        pytest.param(
            b'{"input": "a", "pairs": [["a", "b"], ["a"]]}',
            "`pairs[1]` must have a length of 2.",
            "pairs",
            1,
            id="half a pair",
        ),
        pytest.param(
            b'{"input": "a", "kinds": ["a", "zq"]}',
            "`kinds[1]` must be one of 'a', 'b'.",
            "kinds",
            1,
            id="another word",
        ),
    ],
)
def test_a_wrong_type_names_the_field_and_the_expected_type(body, message, field, index):
    """The message has the path, and the expected and the received type in JSON's terms."""
    with pytest.raises(WrongType) as caught:
        decode(DECODER, body)
    assert (caught.value.message, caught.value.field, caught.value.index) == (message, field, index)


@pytest.mark.parametrize("digits", [10, 25, 400, 5000])
@pytest.mark.parametrize("template", ['{"input": [[%s]]}', '{"input": "a", "number": %s}'], ids=["id", "number"])
def test_a_huge_integer_is_rejected(template, digits):
    """The message does not repeat its digits."""
    with pytest.raises(InvalidField) as caught:
        decode(DECODER, (template % ("7" * digits)).encode())
    assert "777" not in caught.value.message


def test_an_error_does_not_reference_the_body():
    """The library's exception may contain the whole body, so it is not chained."""
    with pytest.raises(MalformedBody) as caught:
        decode(DECODER, b'{"input": "\xff"}')
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_unknown_keys_are_ignored():
    """Their values may be any JSON."""
    assert decode(DECODER, b'{"x": [{"y": 1e999}], "input": "a"}').input == "a"


MARK = "zq"  # in every string of the bodies, and in none of our messages
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5).map(lambda text: MARK + text),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(Body.__struct_fields__), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(Body.__struct_fields__), JSON))
def test_any_json_is_decoded_or_rejected_without_repeating_it(value):
    """The result is a struct or an error of this server, and no message contains a string of the body."""
    try:
        decode(DECODER, msgspec.json.encode(value))
    except (MalformedBody, WrongType) as error:
        assert MARK not in error.message


@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,\\/ue01-.input', max_size=40).map(str.encode))
def test_any_bytes_are_decoded_or_rejected(body):
    """Other bytes raise errors of this server only."""
    with contextlib.suppress(MalformedBody, WrongType):
        decode(DECODER, body)
