"""A call's list of items -> the HTTP requests for it, in order; and the reply to one. No I/O."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from .errors import BadRequest
from .options import Lane

JSON = "application/json"
GZIP_MIN_BYTES = 16_384  # a smaller body is sent faster than it is compressed
GZIP_LEVEL = 1
FILE_CHARACTERS = 6000  # of an image or a PDF, in the limit of a request
OK = frozenset({200})


Item: TypeAlias = str | bytes | Path  # a text; or the bytes or the path of an image or a PDF


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    method: str = "POST"
    path: str
    headers: Mapping[str, str]
    content: bytes | None = None
    statuses: frozenset[int] | None = OK  # any other status is an error; None: none is
    part: RequestPart | None = None  # the items that it sends
    retries: bool = True


@dataclass(frozen=True, slots=True)
class HttpReply:
    """headers: with lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def tokens_read(self) -> int:
        """The processed tokens, from a header; 0 if it is missing or invalid, which does not fail the call."""
        value = self.headers.get("x-vectord-tokens-kept", "0")
        return int(value) if value.isdecimal() and len(value) < 20 else 0

    @property
    def fingerprint(self) -> str:
        """The vector space; "" for a reply without vectors and scores."""
        return self.headers.get("x-vectord-fingerprint", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTemplate:
    """The parts that all requests of a call share."""

    path: str
    key: str  # of the list in the body
    body: Mapping[str, object]  # the other fields
    expect_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class RequestPart:
    """One request of a call: `items`, which begin at index `start` of the caller's list."""

    template: RequestTemplate
    start: int
    items: Sequence[Any]

    def body(self) -> bytes:
        """The JSON body, with the content of files. Raises BadRequest for a text that UTF-8 cannot encode, OSError."""
        try:
            return _encode({**self.template.body, self.template.key: [*map(sent, self.items)]})
        except UnicodeEncodeError:
            error = BadRequest("half of a surrogate pair cannot be sent as text.")
        for index, item in enumerate(self.items, self.start):
            try:
                _encode(sent(item))
            except UnicodeEncodeError:
                error = BadRequest(f"`{self.template.key}[{index}]`: half of a surrogate pair cannot be sent as text.")
                error.field, error.index = self.template.key, index
                break
        raise error

    def place(self, error: BadRequest) -> None:
        """Make an error about one of these items refer to the caller's list instead of this request."""
        key = self.template.key
        if error.field != key or error.index is None:
            return
        index = self.start + error.index
        (message,) = error.args
        message = message.replace(f"`{key}[{error.index}]", f"`{key}[{index}]")
        error.args = (message.replace(f"`{key}`", f"`{key}[{index}]`"),)
        error.index = index


def split(
    template: RequestTemplate,
    items: Iterable[Any],
    size: Callable[[Any, int], int],
    max_items: int,
    max_characters: int,
) -> Iterator[RequestPart]:
    """The requests for `items`, made lazily. An item beyond the limit of characters gets a request of its own.

    size: (item, index) -> the item's number of characters.
    """
    start = characters = 0
    held: list[Any] = []
    for index, item in enumerate(items):
        more = size(item, index)
        if held and (len(held) == max_items or characters + more > max_characters):
            yield RequestPart(template, start, held)
            start, held, characters = index, [], 0
        held.append(item)
        characters += more
    if held:
        yield RequestPart(template, start, held)


def item_size(item: object, index: int) -> int:
    """The number of characters of a text; of an image or a PDF, what lets a request have 16 of them or 8 MB.

    Of a list of texts and images, the sum.
    """
    if isinstance(item, list):
        return sum(item_size(part, index) for part in item)
    if isinstance(item, bytes | Path):
        return FILE_CHARACTERS + (len(item) if isinstance(item, bytes) else item.stat().st_size) // 80
    return text_size(item, index)


def is_pdf(item: Item) -> bool:
    """By the beginning of the file."""
    if isinstance(item, Path):
        with item.open("rb") as file:
            item = file.read(1024)
    return isinstance(item, bytes) and b"%PDF-" in item[:1024]


def text_size(text: object, index: int) -> int:
    if not isinstance(text, str):
        raise TypeError(f"item {index} must be a string, not {type(text).__name__}")
    return len(text)


def pair_size(item: object, index: int) -> int:
    """The number of characters of a text, or of a pair of texts."""
    if isinstance(item, str):
        return len(item)
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise TypeError(f"item {index} must be a string or a pair of strings, not {type(item).__name__}")
    return sum(text_size(text, index) for text in item)


def ids_size(ids: Sequence[int], index: int) -> int:
    return len(ids)


def get(path: str, *, statuses: frozenset[int] = OK, retries: bool = True) -> HttpRequest:
    return HttpRequest(method="GET", path=path, headers=request_headers(), statuses=statuses, retries=retries)


def post(part: RequestPart, lane: Lane | None) -> HttpRequest:
    """Raises BadRequest for a text that cannot be sent."""
    headers = request_headers() | {"accept": JSON, "content-type": JSON}
    if lane is not None:
        headers["x-vectord-lane"] = lane
    if part.template.expect_fingerprint is not None:
        headers["x-vectord-expect-fingerprint"] = part.template.expect_fingerprint
    content = part.body()
    if len(content) >= GZIP_MIN_BYTES:
        content = gzip.compress(content, GZIP_LEVEL, mtime=0)
        headers["content-encoding"] = "gzip"
    return HttpRequest(path=part.template.path, headers=headers, content=content, part=part)


def request_headers() -> dict[str, str]:
    """Those of every request: an id of its own, and no compression of the response."""
    # A compressed response of numbers is a quarter smaller, and takes longer to pack than a local network to carry.
    return {"x-request-id": os.urandom(16).hex(), "accept-encoding": "identity"}


def sent(item: object) -> object:
    """As the server reads it: an image or a PDF in an object."""
    if isinstance(item, list):
        return [sent(part) for part in item]
    if not isinstance(item, bytes | Path):
        return item
    data = item if isinstance(item, bytes) else item.read_bytes()
    return {"pdf" if is_pdf(data) else "image": data}  # encoded as base64


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: object) -> object:
    """Strings and numbers of numpy, as columns of tables contain them."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot be sent: {type(value).__name__}")
