"""Gzips answers for clients that take it. Called by handler.py on the event loop; large ones are done in a thread."""

from __future__ import annotations

import asyncio
import functools
import zlib

LEVEL = 1  # JSON of floats: half the bytes at 6 us a kB; higher levels gain 3 % for three times the work
COMPRESS_ON_LOOP_BYTES = 65_536  # under half a millisecond

GZIP = 16 + zlib.MAX_WBITS  # zlib's code for a gzip header and trailer


def accepts_gzip(accept_encoding: str | None) -> bool:
    """Whether an Accept-Encoding header admits gzip: named, or by *, and not with q=0."""
    return accept_encoding is not None and len(accept_encoding) <= 1024 and _accepts_gzip(accept_encoding)


@functools.lru_cache(maxsize=256)
def _accepts_gzip(accept_encoding: str) -> bool:
    admitted: dict[str, bool] = {}
    for part in accept_encoding.lower().split(","):
        coding, *parameters = (piece.strip() for piece in part.split(";"))
        admitted[coding] = not any(_is_zero(parameter) for parameter in parameters)
    return admitted.get("gzip", admitted.get("*", False))


def _is_zero(parameter: str) -> bool:
    """Whether it is q=0, q=0.0 and so on."""
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip().rstrip("0") in ("", "0.", ".")


async def gzipped(body: bytes) -> bytes:
    if len(body) <= COMPRESS_ON_LOOP_BYTES:
        return zlib.compress(body, LEVEL, GZIP)
    return await asyncio.to_thread(zlib.compress, body, LEVEL, GZIP)
