"""Compression of responses."""

from __future__ import annotations

import gzip
from typing import cast

import pytest
import zstandard

from vectord.server.http.response import COMPRESS_ON_LOOP_BYTES, Coding, coding_for, compressed


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (None, None),
        ("", None),
        ("gzip", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("zstd;q=0, gzip", "gzip"),
        ("deflate, GZIP;q=0.5", "gzip"),
        ("*", "gzip"),
        ("gzip;q=0", None),
        ("gzip; q=0.000", None),
        ("*;q=0", None),
        ("gzip;q=0, *", None),
        ("*;q=0, gzip", "gzip"),
        ("identity", None),
        ("xgzip", None),
        ("gzip;q=zero", "gzip"),
        ("gzip;q=0.01", "gzip"),
        ("gzip," * 1000, None),
    ],
)
def test_the_coding_follows_accept_encoding(header: str | None, coding: str | None) -> None:
    """By name, gzip also by *, and not at quality zero; a very long header is ignored."""
    assert coding_for(header) == coding


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [1, COMPRESS_ON_LOOP_BYTES, COMPRESS_ON_LOOP_BYTES + 1])
async def test_compression_is_lossless(size: int, coding: str) -> None:
    """On the loop or in a thread."""
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    sent = await compressed(body, cast("Coding", coding))
    assert (gzip.decompress(sent) if coding == "gzip" else zstandard.decompress(sent)) == body
