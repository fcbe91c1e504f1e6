"""Decompresses a body, never beyond its limit. Called by body.py; large bodies are decompressed in a thread.

The caller reserves room for the output of large bodies, part by part, before it is kept.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TypeAlias

import zstandard

from vectord.errors import InvalidRequest, MalformedBody, PayloadTooLarge, UnsupportedMediaType
from vectord.products.common.body import Content

Hold: TypeAlias = Callable[[int], None]

GZIP = 16 + zlib.MAX_WBITS  # zlib's code for a gzip header and trailer

ON_LOOP_BYTES = 16_384  # decompressed in a millisecond if the output is small, too
ON_LOOP_INFLATED_BYTES = 65_536
STEP_BYTES = 2**20

MAX_ZSTD_WINDOW_BYTES = 8 * 2**20  # the minimum that RFC 8878 requires of every decoder
ZSTD_STEP_BYTES = 256  # at most 64 blocks, 8 MiB
INPUT_STEP_BYTES = 65_536  # of gzip and deflate; copying the rest of a large body would hold the interpreter's lock
MAX_GZIP_MEMBERS = 16  # each needs a decompressor of its own, and may have only 20 bytes

TOO_LARGE = "The body is larger than {limit} bytes, the limit of one request."


async def decompress(body: Content, encoding: str, limit_bytes: int, hold: Hold, large: asyncio.Semaphore) -> Content:
    """Return the decompressed body.

    hold: called with the size of each part before it is kept, on any thread; may raise. Not called for a body of up
    to ON_LOOP_BYTES that has up to ON_LOOP_INFLATED_BYTES. large: bounds the threads.

    Raises PayloadTooLarge above `limit_bytes`, MalformedBody if it is not `encoding` ("gzip", "deflate" or "zstd").
    """
    if encoding == "zstd":
        with suppress(zstandard.ZstdError):  # no frame; -1: it does not state its size
            if zstandard.frame_content_size(body) > limit_bytes:
                raise too_large(limit_bytes)
    if len(body) <= ON_LOOP_BYTES:
        try:
            return _decompress(body, encoding, min(ON_LOOP_INFLATED_BYTES, limit_bytes), lambda n_bytes: None)
        except PayloadTooLarge:
            if limit_bytes <= ON_LOOP_INFLATED_BYTES:
                raise
    async with large:
        return await asyncio.to_thread(_decompress, body, encoding, limit_bytes, hold)


def encoding_of(headers: Mapping[str, str]) -> str | None:
    value = headers.get("content-encoding", "").strip().lower()
    if value in ("", "identity"):
        return None
    if value in ("gzip", "x-gzip"):
        return "gzip"
    if value in ("deflate", "zstd"):
        return value
    raise UnsupportedMediaType("Content-Encoding must be zstd, gzip, deflate or identity.")


def too_large(limit_bytes: int) -> InvalidRequest:
    return PayloadTooLarge(TOO_LARGE, limit=limit_bytes)


def _decompress(body: Content, encoding: str, limit_bytes: int, hold: Hold) -> Content:
    output = bytearray()  # a copy of 32 MiB as bytes would stop the event loop for 30 ms
    try:
        for part in _parts(body, encoding, min(STEP_BYTES, limit_bytes + 1)):
            if len(output) + len(part) > limit_bytes:
                raise too_large(limit_bytes)
            hold(len(part))
            output += part
    except (zlib.error, zstandard.ZstdError):
        raise MalformedBody("The body is not valid {encoding}, its Content-Encoding.", encoding=encoding) from None
    return output


def _parts(body: Content, encoding: str, step_bytes: int) -> Iterator[bytes]:
    """The decompressed body, in parts of at most `step_bytes`, or 8 MiB of zstd."""
    if encoding == "zstd":
        frame = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES).decompressobj()
        for start in range(0, len(body), ZSTD_STEP_BYTES):  # in small steps: a few bytes may become a block of 128 KiB
            yield frame.decompress(body[start : start + ZSTD_STEP_BYTES])
        if not frame.eof or frame.unused_data:
            raise MalformedBody("A zstd body must be one complete frame.")
        return
    window = GZIP
    if encoding != "gzip":
        # RFC 9110 defines "deflate" as the zlib format; some clients send the bare stream. The first bytes decide.
        is_zlib = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
        window = zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS
    end = 0
    for _ in range(MAX_GZIP_MEMBERS):
        member = zlib.decompressobj(window)
        piece: Content = b""
        while not member.eof:
            if not piece:
                piece = body[end : end + INPUT_STEP_BYTES]
                end += len(piece)
            yield (part := member.decompress(piece, step_bytes))
            piece = member.unconsumed_tail
            if end == len(body) and not (piece or part or member.eof):
                raise MalformedBody("The {encoding} body is incomplete.", encoding=encoding)
        end -= len(member.unused_data)
        if end == len(body):
            return
    raise MalformedBody("The {encoding} body has more than {limit} members.", encoding=encoding, limit=MAX_GZIP_MEMBERS)
