"""One HTTP request as it is sent, any number of times alike, and what was answered. No I/O."""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from dataclasses import dataclass

from vectord.client.options import Lane
from vectord.client.splitting import Part

GZIP_MIN_BYTES = 16_384  # below, a network carries it faster than two processors pack and unpack it
GZIP_LEVEL = 1
OK = frozenset({200})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str = "POST"
    path: str
    headers: Mapping[str, str]
    content: bytes | None = None
    statuses: frozenset[int] = OK  # those of an answer; any other is a refusal
    repeats: bool = True  # whether it is sent again where that may help


@dataclass(frozen=True, slots=True)
class Reply:
    """headers: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def tokens_read(self) -> int:
        """0 where nothing was read. One that is no number is no reason to fail a call."""
        told = self.headers.get("x-vectord-tokens-kept", "0")
        return int(told) if told.isdecimal() and len(told) < 20 else 0

    @property
    def fingerprint(self) -> str:
        """ "" of an answer that has neither vectors nor scores."""
        return self.headers.get("x-vectord-fingerprint", "")


def get(path: str, *, statuses: frozenset[int] = OK, repeats: bool = True) -> Request:
    return Request(method="GET", path=path, headers=_headers(), statuses=statuses, repeats=repeats)


def post(part: Part, lane: Lane | None) -> Request:
    """Raises BadRequest for a text that cannot be sent."""
    headers = _headers() | {"accept": part.ask.accept, "content-type": "application/json"}
    if lane is not None:
        headers["x-vectord-lane"] = lane
    if part.ask.expect_fingerprint is not None:
        headers["x-vectord-expect-fingerprint"] = part.ask.expect_fingerprint
    content = part.body()
    if len(content) >= GZIP_MIN_BYTES:
        content = gzip.compress(content, GZIP_LEVEL, mtime=0)
        headers["content-encoding"] = "gzip"
    return Request(path=part.ask.path, headers=headers, content=content)


def _headers() -> dict[str, str]:
    """accept-encoding: numbers in base64 give back a quarter for more time than a local network takes to carry them."""
    return {"x-request-id": os.urandom(16).hex(), "accept-encoding": "identity"}
