"""Reads a request's body, and never more of it than the limits allow, before or after decompression.

Called by handler.py on the event loop once per request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from vectord.errors import MalformedBody, UploadTooSlow
from vectord.server.http.hardening.body_room import BodyRoom
from vectord.server.http.hardening.inflate import encoding_of, inflate, too_large

Receive = Callable[[], Awaitable[Any]]

LEAST_BYTES = 16_384  # of a body that is on its way must come in
PACE_S = 10.0  # as much time, or its end


class ClientLeft(Exception):
    """The connection is gone; there is nobody to answer."""


class Body:
    """One request's body, and what it holds of the room until `release`.

    `content`: what `read` gave, until then. `finished`: nothing of it is left on the wire, so the connection can be
    used again.
    """

    __slots__ = ("_headers", "_held_bytes", "_receive", "_room", "_scope", "began_s", "content", "finished")

    def __init__(self, receive: Receive, headers: Mapping[str, str]) -> None:
        self.finished = "transfer-encoding" not in headers and headers.get("content-length", "0") == "0"
        self.began_s = 0.0
        self.content = b""
        self._receive = receive
        self._headers = headers
        self._held_bytes = 0
        self._room: BodyRoom | None = None
        self._scope: asyncio.Timeout | None = None

    async def read(self, room: BodyRoom) -> bytes:
        """The whole body, decompressed.

        Raises PayloadTooLarge, UnsupportedMediaType (an unknown Content-Encoding), MalformedBody (cut off, or not
        what Content-Encoding says), Overloaded (no room for it now), UploadTooSlow, ClientLeft.
        """
        encoding = encoding_of(self._headers)
        if self.declared_bytes > room.limit_bytes:
            raise too_large(room.limit_bytes)
        self._room = room
        received = await self._received(room)
        if encoding is not None:
            received = await inflate(received, encoding, room.limit_bytes, self._hold)
        self.content = received
        return received

    def release(self) -> None:
        """What was read is parsed, or not wanted. Does nothing the second time."""
        self.content = b""
        if self._room is not None:
            self._room.release(self._held_bytes)
            self._held_bytes = 0

    def cut_off(self) -> None:
        """See Upload.cut_off: its reader ends in UploadTooSlow."""
        self.release()
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def discard(self, limit_bytes: int) -> None:
        """Read on to the end of the body, `limit_bytes` or the client's leaving, keeping nothing."""
        seen_bytes = 0
        while not self.finished and seen_bytes < limit_bytes:
            try:
                seen_bytes += len(await self._next())
            except ClientLeft:
                return

    def is_unbounded(self, limit_bytes: int) -> bool:
        """Whether what is left may be more than `limit_bytes`, so that reading it away is not worth a connection."""
        return "transfer-encoding" in self._headers or self.declared_bytes > limit_bytes

    @property
    def declared_bytes(self) -> int:
        """By Content-Length; 0 where there is none. The HTTP parser admits digits only, and one value."""
        value = self._headers.get("content-length", "0")
        return int(value) if value.isdecimal() and len(value) < 20 else 0

    async def _received(self, room: BodyRoom) -> bytes:
        """As it came over the wire, a transfer encoding aside. What comes in one piece holds nothing."""
        self.began_s = asyncio.get_running_loop().time()
        first = await self._next()
        if self.finished:
            self._check_length(len(first), room.limit_bytes)
            return first
        room.begin(self)
        try:
            async with asyncio.timeout(PACE_S) as self._scope:
                whole = await self._rest(first, room)
        except TimeoutError:
            self.release()
            raise UploadTooSlow(f"Less than {LEAST_BYTES} bytes of the body came in {PACE_S:g} s.") from None
        except BaseException:
            self.release()
            raise
        finally:
            room.end(self)
        self._check_length(len(whole), room.limit_bytes)
        return bytes(whole)

    async def _rest(self, part: bytes, room: BodyRoom) -> bytearray:
        """`part`, and all that follows it at a fair pace."""
        whole = bytearray()
        loop = asyncio.get_running_loop()
        since_bytes = 0
        while True:
            room.make_room(len(part), loop.time())
            self._hold(len(part))
            whole += part
            if len(whole) > room.limit_bytes:
                raise too_large(room.limit_bytes)
            if self.finished:
                return whole
            since_bytes += len(part)
            if since_bytes >= LEAST_BYTES and self._scope is not None:
                self._scope.reschedule(loop.time() + PACE_S)
                since_bytes = 0
            part = await self._next()

    def _hold(self, n_bytes: int) -> None:
        """On any thread."""
        assert self._room is not None
        self._room.hold(n_bytes)
        self._held_bytes += n_bytes

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        self.finished = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    def _check_length(self, received_bytes: int, limit_bytes: int) -> None:
        if received_bytes > limit_bytes:
            raise too_large(limit_bytes)
        if received_bytes < self.declared_bytes:
            raise MalformedBody(f"The body was cut off after {received_bytes} of {self.declared_bytes} bytes.")
