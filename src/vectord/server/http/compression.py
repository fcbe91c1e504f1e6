"""Compresses answers for clients that take it, zstd before gzip. Called by handler.py; large ones go to a thread."""

from __future__ import annotations

import asyncio
import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import zstandard

Coding: TypeAlias = Literal["zstd", "gzip"]

LEVEL = 1  # JSON of floats: half the bytes at 6 us a kB; higher levels gain 3 % for three times the work
COMPRESS_ON_LOOP_BYTES = 65_536  # under half a millisecond

MAX_HEADER_LENGTH = 1024

GZIP = 16 + zlib.MAX_WBITS  # zlib's code for a gzip header and trailer


def coding_for(accept_encoding: str | None) -> Coding | None:
    """The best coding that an Accept-Encoding header admits: named, or by *, and not with q=0."""
    admitted = _admitted(accept_encoding or "")
    if admitted.get("zstd", False):  # * means whatever is usual, and zstd is not yet
        return "zstd"
    return "gzip" if admitted.get("gzip", admitted.get("*", False)) else None


def accepts_gzip(accept_encoding: str | None) -> bool:
    admitted = _admitted(accept_encoding or "")
    return admitted.get("gzip", admitted.get("*", False))


@functools.lru_cache(maxsize=256)
def _admitted(accept_encoding: str) -> Mapping[str, bool]:
    """Each coding that the header names, and whether it may be used; nothing of a header too long to be meant."""
    admitted: dict[str, bool] = {}
    if len(accept_encoding) > MAX_HEADER_LENGTH:
        return admitted
    for part in accept_encoding.lower().split(","):
        coding, *parameters = (piece.strip() for piece in part.split(";"))
        admitted[coding] = not any(_is_zero(parameter) for parameter in parameters)
    return admitted


def _is_zero(parameter: str) -> bool:
    """Whether it is q=0, q=0.0 and so on."""
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip().rstrip("0") in ("", "0.", ".")


async def compressed(body: bytes, coding: Coding) -> bytes:
    compress = _COMPRESS[coding]
    return compress(body) if len(body) <= COMPRESS_ON_LOOP_BYTES else await asyncio.to_thread(compress, body)


def _gzip(body: bytes) -> bytes:
    return zlib.compress(body, LEVEL, GZIP)


def _zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL).compress(body)  # one each: they may not be shared between threads


_COMPRESS: Mapping[Coding, Callable[[bytes], bytes]] = {"zstd": _zstd, "gzip": _gzip}
