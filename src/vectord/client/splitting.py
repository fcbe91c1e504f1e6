"""A long list -> the requests that carry it, in order. Pure; calls.py says what a request holds beside the list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from vectord.client.errors import BadRequest

JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one request. What has more characters by itself goes alone."""

    texts: int
    characters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What all requests of one call have in common."""

    path: str
    key: str  # of the list in the body
    said: Mapping[str, object]  # the rest of the body
    accept: str = JSON
    expect_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One request: some of the caller's items, the first of which is their item `start`."""

    ask: Ask
    start: int
    items: Sequence[Any]

    def body(self) -> bytes:
        """JSON. Raises BadRequest for what UTF-8 has no bytes for."""
        try:
            return _encode({**self.ask.said, self.ask.key: self.items})
        except UnicodeEncodeError:
            raise self._half_surrogate() from None

    def place(self, error: BadRequest) -> None:
        """Let an error about one of these items speak of the caller's list."""
        key = self.ask.key
        if error.field != key or error.index is None:
            return
        place = self.start + error.index
        (message,) = error.args
        message = message.replace(f"`{key}[{error.index}]", f"`{key}[{place}]")
        error.args = (message.replace(f"`{key}`", f"`{key}[{place}]`"),)
        error.index = place

    def _half_surrogate(self) -> BadRequest:
        index = next((index for index, item in enumerate(self.items) if not _is_encodable(item)), None)
        where = "" if index is None else f"`{self.ask.key}[{self.start + index}]`: "
        error = BadRequest(f"{where}half of a surrogate pair is no text that can be sent.")
        if index is not None:
            error.field, error.index = self.ask.key, self.start + index
        return error


def split(ask: Ask, items: Iterable[Any], size: Callable[[Any, int], int], limits: Limits) -> Iterator[Part]:
    """Requests of `ask` for `items`, as they come. size: an item's characters, by the item and its place."""
    start = characters = 0
    held: list[Any] = []
    for place, item in enumerate(items):
        more = size(item, place)
        if held and (len(held) == limits.texts or characters + more > limits.characters):
            yield Part(ask, start, held)
            start, held, characters = place, [], 0
        held.append(item)
        characters += more
    if held:
        yield Part(ask, start, held)


def text_size(text: object, place: int) -> int:
    if not isinstance(text, str):
        raise TypeError(f"item {place} must be a string, not {type(text).__name__}")
    return len(text)


def pair_size(item: object, place: int) -> int:
    """A text, or two."""
    if isinstance(item, str):
        return len(item)
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise TypeError(f"item {place} must be a string or a pair of strings, not {type(item).__name__}")
    return sum(text_size(text, place) for text in item)


def ids_size(ids: Sequence[int], place: int) -> int:
    return len(ids)


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: object) -> object:
    """numpy's strings and numbers, as columns of tables hold them."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot be sent: {type(value).__name__}")


def _is_encodable(item: object) -> bool:
    try:
        _encode(item)
    except UnicodeEncodeError:
        return False
    return True
