"""Descriptions of wire types in docs/apis.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from docs.shapes import Row, rows, shape
from msgspec import Meta

Named = Annotated[str | None, Meta(description="a served name")]


class Chunk(msgspec.Struct):
    max_tokens: Annotated[int, Meta(ge=1, le=512)]
    by: Literal["tokens", "sentences"] | None = None


class Body(msgspec.Struct):
    inputs: str | list[str | Annotated[int, Meta(ge=0, le=2**31 - 1)]]
    chunk: Chunk
    model: Named = None
    documents: Chunk | list[Chunk] | None = None
    raw: bool | None = False


class Token(msgspec.Struct, tag_field="object", tag="token"):
    id: int
    text: str | None
    score: float | msgspec.UnsetType = msgspec.UNSET


class Answer(msgspec.Struct):
    data: list[Token | list[float]]
    the_first_of_many_names: dict[str, int]
    the_second_of_many_names: tuple[int, str]
    the_third_of_many_names: Any


def test_a_body_has_one_row_per_field() -> None:
    """A row states "required" or the default; nested fields follow with dotted names."""
    assert rows(Body) == [
        Row("inputs", "string or [string or integer >= 0]", "required", ""),
        Row("chunk", "object", "required", ""),
        Row("chunk.max_tokens", "integer from 1 to 512", "required", ""),
        Row("chunk.by", '"sentences" or "tokens"', "", ""),
        Row("model", "string", "", "a served name"),
        Row("documents", "object or [object]", "", ""),
        Row("documents[].max_tokens", "integer from 1 to 512", "required", ""),
        Row("documents[].by", '"sentences" or "tokens"', "", ""),
        Row("raw", "boolean", "false", ""),
    ]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (list[list[float]], "[[number]]"),
        (Token, '{object: "token", id: integer, text: string or null, score?: number}'),
        (dict[str, list[int]], "{string: [integer]}"),
        (tuple[int, str], "[integer, string]"),
        (Any, "any"),
    ],
    ids=str,
)
def test_a_short_response_is_on_one_line(kind: object, words: str) -> None:
    """Nullable fields name null, and optional fields have a question mark."""
    assert shape(kind) == words


def test_a_long_response_has_one_line_per_field() -> None:
    """Nested objects are expanded only if they do not fit."""
    assert shape(list[Answer]).splitlines() == [
        "[{",
        '  data: [{object: "token", id: integer, text: string or null, score?: number} or [number]],',
        "  the_first_of_many_names: {string: integer},",
        "  the_second_of_many_names: [integer, string],",
        "  the_third_of_many_names: any,",
        "}]",
    ]


def test_a_type_without_a_description_is_an_error() -> None:
    """An unknown type never gets a wrong description."""
    with pytest.raises(TypeError, match="no description"):
        shape(bytes)
