"""The grammar of `input` that OpenAI and TEI share: one text, one list of token ids, or a list of either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, overload

import msgspec

from vectord.errors import EmptyInput, InvalidField, TooManyInputs
from vectord.products.common.body import TokenId
from vectord.schema import Input


class TextItem(msgspec.Struct):
    """A text in an object, as Jina's clients send it; other keys are ignored."""

    text: str


TextsOrIds: TypeAlias = str | list[str | TokenId | list[TokenId]]
TextsIdsOrItems: TypeAlias = str | list[str | TokenId | list[TokenId] | TextItem]


@overload
def read_inputs(value: Sequence[int | list[int]], field: str) -> Sequence[Sequence[int]]: ...


@overload
def read_inputs(value: str | Sequence[str | int | list[int] | TextItem], field: str) -> Sequence[Input]: ...


def read_inputs(value: str | Sequence[str | int | list[int] | TextItem], field: str) -> Sequence[Input]:
    """What `value` asks for, one entry an input: a string and a flat list of integers are one input each.

    Raises EmptyInput for an empty list, also as one of several inputs, and InvalidField for integers among other items.
    Empty strings pass: whether they count as empty is the dialect's own rule.
    """
    if isinstance(value, str):
        return (value,)
    if not value:
        raise EmptyInput(f"`{field}` cannot be empty", field=field)
    if isinstance(value[0], int):
        return (_ids(value, field),)
    return [_one(item, index, field) for index, item in enumerate(value)]


def check_count(given: int, limit: int | None, field: str, what: str = "input") -> None:
    """Raises TooManyInputs, in the engine's words: for who would make much of a body before the engine sees it."""
    if limit is not None and given > limit:
        message = f"`{field}` may hold at most {limit} {what}s; got {given}."
        raise TooManyInputs(message, field=field, limit=limit, given=given)


def _ids(value: Sequence[str | int | list[int] | TextItem], field: str) -> list[int]:
    ids = [item for item in value if isinstance(item, int)]
    if len(ids) < len(value):
        index = next(index for index, item in enumerate(value) if not isinstance(item, int))
        raise _mixed(index, field)
    return ids


def _one(item: str | int | list[int] | TextItem, index: int, field: str) -> Input:
    if isinstance(item, str):
        return item
    if isinstance(item, TextItem):
        return item.text
    if isinstance(item, int):
        raise _mixed(index, field)
    if not item:
        raise EmptyInput(f"`{field}` cannot be empty", field=field, index=index)
    return item


def _mixed(index: int, field: str) -> InvalidField:
    return InvalidField(
        f"`{field}[{index}]`: a list of integers is one input and holds nothing else; give ids a list of their own.",
        field=field,
        index=index,
    )
