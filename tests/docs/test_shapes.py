"""Descriptions of the fields of bodies in docs/apis/."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from docs.shapes import Row, rows
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


class Unknown(msgspec.Struct):
    content: bytes


def test_a_type_without_a_description_is_an_error() -> None:
    """An unknown type never gets a wrong description."""
    with pytest.raises(TypeError, match="no description"):
        rows(Unknown)
