"""Who takes gzip, and what they get."""

from __future__ import annotations

import gzip

import pytest

from vectord.server.compression import COMPRESS_ON_LOOP_BYTES, accepts_gzip, gzipped


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("gzip, deflate, br, zstd", True),
        ("deflate, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("*;q=0, gzip", True),
        ("identity", False),
        ("xgzip", False),
        ("gzip;q=zero", True),
        ("gzip;q=0.01", True),
        ("gzip," * 1000, False),
    ],
)
def test_accept_encoding(header: str | None, accepted: bool) -> None:
    """gzip by name, or by *, and not at quality zero; a header too long to be meant is not read."""
    assert accepts_gzip(header) is accepted


@pytest.mark.parametrize("size", [1, COMPRESS_ON_LOOP_BYTES, COMPRESS_ON_LOOP_BYTES + 1])
async def test_what_is_gzipped_comes_back(size: int) -> None:
    """On the loop or in a thread, the client reads what was written."""
    body = bytes(range(256)) * (size // 256 + 1)
    assert gzip.decompress(await gzipped(body[:size])) == body[:size]
