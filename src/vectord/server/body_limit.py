"""Reads a request's body, and never more of it than the limits allow, before or after decompression.

Called by handler.py on the event loop once per request. What is large to inflate is inflated in a thread.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import zstandard

from vectord.errors import InvalidRequest, MalformedBody, Overloaded, PayloadTooLarge, UnsupportedMediaType
from vectord.server.compression import GZIP

Receive = Callable[[], Awaitable[Any]]

BODIES_AT_ONCE = 8  # limits' worth of bytes that all bodies being read may hold together
INFLATE_ON_LOOP_BYTES = 65_536  # inflates in well under a millisecond

MAX_ZSTD_WINDOW_BYTES = 8 * 2**20  # what RFC 8878 asks every reader to take
ZSTD_STEP_BYTES = 256  # at most 64 blocks, 8 MiB
MAX_GZIP_MEMBERS = 16  # each one copies what follows it, so that many small ones would cost their number squared


class ClientLeft(Exception):
    """The connection is gone; there is nobody to answer."""


class BodyRoom:
    """Bytes that bodies under way hold together. Event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.room_bytes = BODIES_AT_ONCE * limit_bytes
        self.held_bytes = 0

    def hold(self, n_bytes: int) -> None:
        if self.held_bytes + n_bytes > self.room_bytes:
            raise Overloaded("Too many request bodies are being received at once; try again.", retry_after_s=1.0)
        self.held_bytes += n_bytes

    def release(self, n_bytes: int) -> None:
        self.held_bytes -= n_bytes


class Body:
    """One request's body. `finished`: nothing of it is left on the wire, so the connection can be used again."""

    __slots__ = ("_headers", "_receive", "finished")

    def __init__(self, receive: Receive, headers: Mapping[str, str]) -> None:
        self._receive = receive
        self._headers = headers
        self.finished = "transfer-encoding" not in headers and headers.get("content-length", "0") == "0"

    async def read(self, room: BodyRoom) -> bytes:
        """The whole body, decompressed.

        Raises PayloadTooLarge, UnsupportedMediaType (an unknown Content-Encoding), MalformedBody (cut off, or not
        what Content-Encoding says), Overloaded (no room for it now), ClientLeft.
        """
        encoding = _encoding(self._headers)
        if self.declared_bytes > room.limit_bytes:
            raise _too_large(room.limit_bytes)
        received = await self._received(room)
        if encoding is None:
            return received
        return await inflate(received, encoding, room.limit_bytes)

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
        """As it came over the wire, a transfer encoding aside."""
        first = await self._next()
        if self.finished:
            self._check_length(len(first), room.limit_bytes)
            return first
        whole = bytearray()
        held_bytes = 0
        try:
            part = first
            while True:
                room.hold(len(part))
                held_bytes += len(part)
                whole += part
                if len(whole) > room.limit_bytes:
                    raise _too_large(room.limit_bytes)
                if self.finished:
                    break
                part = await self._next()
        finally:
            room.release(held_bytes)
        self._check_length(len(whole), room.limit_bytes)
        return bytes(whole)

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        self.finished = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    def _check_length(self, received_bytes: int, limit_bytes: int) -> None:
        if received_bytes > limit_bytes:
            raise _too_large(limit_bytes)
        if received_bytes < self.declared_bytes:
            raise MalformedBody(f"The body was cut off after {received_bytes} of {self.declared_bytes} bytes.")


async def inflate(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """`body` without its Content-Encoding; never holds much more than `limit_bytes`, whatever it would become.

    Raises PayloadTooLarge above `limit_bytes`, MalformedBody if it is not `encoding` ("gzip", "deflate" or "zstd").
    """
    try:
        return _inflate(body, encoding, min(INFLATE_ON_LOOP_BYTES, limit_bytes))
    except PayloadTooLarge:
        if limit_bytes <= INFLATE_ON_LOOP_BYTES:
            raise
    return await asyncio.to_thread(_inflate, body, encoding, limit_bytes)


def _inflate(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    return _zstd(body, limit_bytes) if encoding == "zstd" else _zlib(body, encoding, limit_bytes)


def _zstd(body: bytes, limit_bytes: int) -> bytes:
    """One frame. Fed in small steps: a few bytes may stand for a block of 128 KiB."""
    frame = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES).decompressobj()
    whole = bytearray()
    for start in range(0, len(body), ZSTD_STEP_BYTES):
        try:
            whole += frame.decompress(body[start : start + ZSTD_STEP_BYTES])
        except zstandard.ZstdError:
            raise MalformedBody("The body is not zstd, as its Content-Encoding says, or more than one frame.") from None
        if len(whole) > limit_bytes:
            raise _too_large(limit_bytes)
    if not frame.eof or frame.unused_data:
        raise MalformedBody("The zstd body must be one frame, and whole.")
    return bytes(whole)


def _zlib(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    window = GZIP if encoding == "gzip" else _deflate_window(body)
    whole = bytearray()
    rest = body
    for _ in range(MAX_GZIP_MEMBERS):
        member = zlib.decompressobj(window)
        try:
            whole += member.decompress(rest, limit_bytes + 1 - len(whole))
        except zlib.error:
            raise MalformedBody(f"The body is not {encoding}, as its Content-Encoding says.") from None
        if len(whole) > limit_bytes:
            raise _too_large(limit_bytes)
        if not member.eof:
            raise MalformedBody(f"The {encoding} body ends before its end.")
        rest = member.unused_data
        if not rest:
            return bytes(whole)
    raise MalformedBody(f"The {encoding} body has more than {MAX_GZIP_MEMBERS} members.")


def _deflate_window(body: bytes) -> int:
    """RFC 9110 means the zlib format by "deflate"; some clients send the bare stream. The header tells."""
    is_zlib = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS


def _encoding(headers: Mapping[str, str]) -> str | None:
    value = headers.get("content-encoding", "").strip().lower()
    if value in ("", "identity"):
        return None
    if value in ("gzip", "x-gzip"):
        return "gzip"
    if value in ("deflate", "zstd"):
        return value
    raise UnsupportedMediaType("Content-Encoding must be zstd, gzip, deflate or identity.")


def _too_large(limit_bytes: int) -> InvalidRequest:
    return PayloadTooLarge(f"The body is larger than {limit_bytes} bytes, the most that one request may have.")
