"""A body without its Content-Encoding, never more of it than the limits allow. Called by body_limit.py.

What is large is inflated in a thread. Whatever a few bytes may stand for, it is held before it is kept.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from typing import TypeAlias

import zstandard

from vectord.errors import InvalidRequest, MalformedBody, PayloadTooLarge, UnsupportedMediaType
from vectord.server.http.compression import GZIP

Hold: TypeAlias = Callable[[int], None]

ON_LOOP_BYTES = 16_384  # what so few become is done in a millisecond, or else in a thread
ON_LOOP_INFLATED_BYTES = 65_536
STEP_BYTES = 2**20

MAX_ZSTD_WINDOW_BYTES = 8 * 2**20  # what RFC 8878 asks every reader to take
ZSTD_STEP_BYTES = 256  # at most 64 blocks, 8 MiB
MAX_GZIP_MEMBERS = 16  # each one copies what follows it, so that many small ones would cost their number squared


async def inflate(body: bytes, encoding: str, limit_bytes: int, hold: Hold) -> bytes:
    """hold: told of every byte before it is kept, on any thread; may refuse by an exception.

    Raises PayloadTooLarge above `limit_bytes`, MalformedBody if it is not `encoding` ("gzip", "deflate" or "zstd").
    """
    if len(body) <= ON_LOOP_BYTES:
        try:
            return _inflate(body, encoding, min(ON_LOOP_INFLATED_BYTES, limit_bytes), lambda n_bytes: None)
        except PayloadTooLarge:
            if limit_bytes <= ON_LOOP_INFLATED_BYTES:
                raise
    return await asyncio.to_thread(_inflate, body, encoding, limit_bytes, hold)


def encoding_of(headers: Mapping[str, str]) -> str | None:
    """Raises UnsupportedMediaType."""
    value = headers.get("content-encoding", "").strip().lower()
    if value in ("", "identity"):
        return None
    if value in ("gzip", "x-gzip"):
        return "gzip"
    if value in ("deflate", "zstd"):
        return value
    raise UnsupportedMediaType("Content-Encoding must be zstd, gzip, deflate or identity.")


def too_large(limit_bytes: int) -> InvalidRequest:
    return PayloadTooLarge(f"The body is larger than {limit_bytes} bytes, the most that one request may have.")


class _Whole:
    """What has come out so far."""

    def __init__(self, limit_bytes: int, hold: Hold) -> None:
        self.bytes = bytearray()
        self._limit_bytes = limit_bytes
        self._hold = hold

    @property
    def room(self) -> int:
        """How much a step may give: one byte more than the limit shows that it is passed."""
        return min(STEP_BYTES, self._limit_bytes + 1 - len(self.bytes))

    def add(self, part: bytes) -> None:
        if len(self.bytes) + len(part) > self._limit_bytes:
            raise too_large(self._limit_bytes)
        self._hold(len(part))
        self.bytes += part


def _inflate(body: bytes, encoding: str, limit_bytes: int, hold: Hold) -> bytes:
    whole = _Whole(limit_bytes, hold)
    if encoding == "zstd":
        _zstd(body, whole)
    else:
        _zlib(body, encoding, whole)
    return bytes(whole.bytes)


def _zstd(body: bytes, whole: _Whole) -> None:
    """One frame. Fed in small steps: a few bytes may stand for a block of 128 KiB."""
    frame = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES).decompressobj()
    for start in range(0, len(body), ZSTD_STEP_BYTES):
        try:
            part = frame.decompress(body[start : start + ZSTD_STEP_BYTES])
        except zstandard.ZstdError:
            raise MalformedBody("The body is not zstd, as its Content-Encoding says, or more than one frame.") from None
        whole.add(part)
    if not frame.eof or frame.unused_data:
        raise MalformedBody("The zstd body must be one frame, and whole.")


def _zlib(body: bytes, encoding: str, whole: _Whole) -> None:
    window = GZIP if encoding == "gzip" else _deflate_window(body)
    rest = body
    for _ in range(MAX_GZIP_MEMBERS):
        rest = _member(rest, encoding, window, whole)
        if not rest:
            return
    raise MalformedBody(f"The {encoding} body has more than {MAX_GZIP_MEMBERS} members.")


def _member(rest: bytes, encoding: str, window: int, whole: _Whole) -> bytes:
    """Adds what one member holds; returns what follows it."""
    member = zlib.decompressobj(window)
    while not member.eof:
        try:
            part = member.decompress(rest, whole.room)
        except zlib.error:
            raise MalformedBody(f"The body is not {encoding}, as its Content-Encoding says.") from None
        whole.add(part)
        rest = member.unconsumed_tail
        if not rest and not part and not member.eof:
            raise MalformedBody(f"The {encoding} body ends before its end.")
    return member.unused_data


def _deflate_window(body: bytes) -> int:
    """RFC 9110 means the zlib format by "deflate"; some clients send the bare stream. The header tells."""
    is_zlib = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS
