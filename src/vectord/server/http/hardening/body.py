"""Reads a request's body within limits: bytes per body and of all bodies together, upload rate, number of JSON values.

Also cancels the work of a request whose client disconnects after its body. handler.py calls this on the event loop,
once per request, and routing.py calls `check_shape`, also in threads and for the lines of batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from vectord.budget import Budget
from vectord.errors import Overloaded, PayloadTooLarge, UnsupportedMediaType, UploadTooSlow
from vectord.products.common.body import Content
from vectord.server.http.hardening.decompression import decompress, encoding_of, too_large

Receive = Callable[[], Awaitable[Any]]

MIN_BYTES = 16_384  # of an unfinished body must arrive
MIN_BYTES_S = 10.0  # within this time

MAX_BODIES = 8  # body limits that all bodies may hold together
GRACE_S = 10.0  # age at which an upload may be aborted to make room

TOO_SLOW = "Fewer than {limit} bytes of the body arrived within {seconds} s."
NO_ROOM = "Too many request bodies are being received at once; try again."

# "": many hand-written clients. Form: curl -d sends it for any body. text/plain: fetch() sends it for a string.
# octet-stream: libraries send it for bytes. The parser still requires JSON.
_MEDIA_TYPES = frozenset(
    {"", "application/json", "text/json", "application/x-www-form-urlencoded", "text/plain", "application/octet-stream"}
)


class ClientDisconnected(Exception):
    """There is no client left to answer."""


@lru_cache(maxsize=256)
def check_media_type(content_type: str) -> None:
    """Raises UnsupportedMediaType for a Content-Type that cannot be JSON, such as multipart."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in _MEDIA_TYPES and not kind.endswith("+json"):
        raise UnsupportedMediaType("Bodies are read as JSON only; send Content-Type: application/json.")


class BodyRoom:
    """Bytes that all bodies in progress hold together, from their arrival until they are parsed.

    `hold` may be called on any thread, everything else on the event loop.
    """

    def __init__(self, limit_bytes: int, large: asyncio.Semaphore | None = None) -> None:
        """limit_bytes: of one body. large: see RequestPipeline; None: this room's own."""
        self.limit_bytes = limit_bytes
        self.budget = Budget(MAX_BODIES * limit_bytes)
        self.large = large or asyncio.Semaphore(1)
        self.uploads: dict[Body, None] = {}  # bodies that have not arrived completely, oldest first

    def hold(self, n_bytes: int) -> None:
        """Raises Overloaded if there is no room."""
        if not self.budget.hold(n_bytes):
            raise Overloaded(NO_ROOM, retry_after_s=1.0)

    def make_room(self, n_bytes: int, now_s: float) -> None:
        """Abort the oldest uploads above GRACE_S until there is room, so that slow uploads do not block others."""
        for upload in list(self.uploads):
            if self.budget.fits(n_bytes) or now_s - upload.began_s <= GRACE_S:
                return
            del self.uploads[upload]
            upload.abort()


class Body:
    """One request's body. Holds its bytes in the room until `release`.

    content: the result of `read`, until `release`. finished: the whole body was read from the connection. began_s: of
    the read, by the event loop's clock. declared_bytes: Content-Length, 0 without one.
    """

    def __init__(self, receive: Receive, headers: Mapping[str, str]) -> None:
        length = headers.get("content-length", "0")  # the HTTP parser accepts digits only, and one value
        self.declared_bytes = int(length) if length.isdecimal() and len(length) < 20 else 0
        self.finished = "transfer-encoding" not in headers and length == "0"
        self.began_s = 0.0
        self.content: Content = b""
        self._receive = receive
        self._headers = headers
        self._held_bytes = 0
        self._room: BodyRoom | None = None
        self._scope: asyncio.Timeout | None = None

    async def read(self, room: BodyRoom) -> Content:
        """The whole body, decompressed.

        Raises PayloadTooLarge, UnsupportedMediaType (unknown Content-Encoding), MalformedBody (invalid in its
        Content-Encoding), Overloaded (no room), UploadTooSlow, ClientDisconnected.
        """
        encoding = encoding_of(self._headers) if "content-encoding" in self._headers else None
        if self.declared_bytes > room.limit_bytes:
            raise too_large(room.limit_bytes)
        self._room = room
        self.began_s = asyncio.get_running_loop().time()
        received: Content = await self._next()
        if len(received) == self.declared_bytes > 0:
            self.finished = True
        if not self.finished:  # a body that arrives in one piece holds no room
            received = await self._rest(bytes(received), room)
        if len(received) > room.limit_bytes:
            raise too_large(room.limit_bytes)
        if encoding is not None:
            received = await decompress(received, encoding, room.limit_bytes, self._hold, room.large)
        self.content = received
        return received

    def release(self) -> None:
        """The body is parsed or refused. Repeated calls have no effect."""
        self.content = b""
        if self._room is not None and self._held_bytes:
            self._room.budget.release(self._held_bytes)
            self._held_bytes = 0

    def abort(self) -> None:
        """Release its bytes; the reader raises UploadTooSlow."""
        self.release()
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def discard(self, limit_bytes: int) -> None:
        """Read and drop the rest of the body, up to `limit_bytes` or the client's disconnect."""
        read_bytes = 0
        while not self.finished and read_bytes < limit_bytes:
            try:
                read_bytes += len(await self._next())
            except ClientDisconnected:
                return

    def may_exceed(self, limit_bytes: int) -> bool:
        """Whether the rest may be more than `limit_bytes`: then closing the connection is cheaper than reading it."""
        return "transfer-encoding" in self._headers or self.declared_bytes > limit_bytes

    async def _rest(self, part: bytes, room: BodyRoom) -> bytearray:
        """`part` and everything after it. Each MIN_BYTES extend the deadline.

        The result is no `bytes`: a copy of 32 MiB would stop the event loop for 30 ms.
        """
        whole = bytearray()
        loop = asyncio.get_running_loop()
        since_bytes = 0
        room.uploads[self] = None
        try:
            async with asyncio.timeout(MIN_BYTES_S) as self._scope:
                while True:
                    if not room.budget.hold(len(part)):
                        room.make_room(len(part), loop.time())
                        room.hold(len(part))
                    self._held_bytes += len(part)
                    whole += part
                    if len(whole) > room.limit_bytes:
                        raise too_large(room.limit_bytes)
                    if self.finished:
                        return whole
                    since_bytes += len(part)
                    if since_bytes >= MIN_BYTES:
                        self._scope.reschedule(loop.time() + MIN_BYTES_S)
                        since_bytes = 0
                    part = await self._next()
        except TimeoutError:
            self.release()
            raise UploadTooSlow(TOO_SLOW, limit=MIN_BYTES, seconds=f"{MIN_BYTES_S:g}") from None
        except BaseException:
            self.release()
            raise
        finally:
            room.uploads.pop(self, None)

    def _hold(self, n_bytes: int) -> None:
        """Count bytes against the room. Called on any thread."""
        assert self._room is not None
        self._room.hold(n_bytes)
        self._held_bytes += n_bytes

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        self.finished = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body


# --- the number of values -------------------------------------------------------------------------------------

# Bytes alone do not bound a body: 32 kB of gzip become 33 MB of `[1],[1],...`, for which a parser needs six seconds
# and 850 MB. So strings are counted before they are parsed, and separators and brackets outside strings.
UNCHECKED_BYTES = 65_536  # parsed in 10 ms in the worst case
MAX_STRINGS = 250_000  # texts and keys
MAX_CONTAINERS = 200_000  # lists and objects; the garbage collector needs 137 ms for these, during which nothing runs
CONTAINERS_PER_INPUT = 16  # {"content": [{"type": "text"}]} has three
MAX_VALUES = 1_000_000  # of any kind; token ids are the smallest
# Counted in one call: no other thread runs Python meanwhile.
PIECE_BYTES = 2**18

TOO_MANY_STRINGS = "The body has about {given} strings; the limit is {limit}."
TOO_MANY_VALUES = "The body has {values} values in {given} lists and objects; the limits are {max_values} and {limit}."

_QUOTE, _COMMA, _BRACKET, _BRACE = b'",[{'
_OTHER_BYTES = bytes(set(range(256)) - {_QUOTE, _COMMA, _BRACKET, _BRACE})


def check_shape(body: Content, max_inputs: int | None = None) -> None:
    """Raises PayloadTooLarge for too many values. Invalid JSON passes; the parser rejects it.

    max_inputs: the limit of a request, which lowers the limit of containers; None: no limit.
    """
    if len(body) <= UNCHECKED_BYTES:
        return
    strings, commas, containers = _counts(body)
    if strings > MAX_STRINGS:
        raise PayloadTooLarge(TOO_MANY_STRINGS, given=strings, limit=MAX_STRINGS)
    max_containers = MAX_CONTAINERS if max_inputs is None else min(MAX_CONTAINERS, CONTAINERS_PER_INPUT * max_inputs)
    if commas >= MAX_VALUES or containers > max_containers:
        raise PayloadTooLarge(
            TOO_MANY_VALUES, values=commas + 1, given=containers, max_values=MAX_VALUES, limit=max_containers
        )


def _counts(body: Content) -> tuple[int, int, int]:
    """The numbers of strings, and of commas and opening brackets outside strings."""
    quotes = commas = containers = 0
    is_inside = False
    begun = b""  # an escape sequence that continues in the next piece
    for start in range(0, len(body), PIECE_BYTES):
        # Pairs of backslashes first: then each backslash before a quote belongs to the quote.
        piece = (begun + body[start : start + PIECE_BYTES]).replace(rb"\\", b"").replace(rb"\"", b"")
        begun = piece[-1:] if piece.endswith(b"\\") else b""
        marks = np.frombuffer(piece.translate(None, _OTHER_BYTES), np.uint8)
        is_quote = marks == _QUOTE
        inside = np.logical_xor.accumulate(is_quote) ^ is_inside
        outside = marks[~inside]  # and closing quotes
        quotes += int(np.count_nonzero(is_quote))
        commas += int(np.count_nonzero(outside == _COMMA))
        containers += int(np.count_nonzero(outside >= _BRACKET))
        is_inside = bool(inside[-1]) if len(inside) else is_inside
    return quotes // 2, commas, containers


# --- disconnects -----------------------------------------------------------------------------------------------

# Watching needs a task, and most results are quick, so it starts late; an earlier disconnect is noticed then.
WATCH_AFTER_S = 0.25


class WatchingDisconnect:
    """`with`: cancels the block, in the caller's task, if the client disconnects; then raises ClientDisconnected."""

    def __init__(self, receive: Receive) -> None:
        self.disconnected = False
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._begin)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None  # its exception refers to this object: a cycle, which would keep the request's body
        if self.disconnected:
            self._task.uncancel()
            if kind is asyncio.CancelledError:
                raise ClientDisconnected from None

    def _begin(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.disconnected = True
        self._task.cancel()
