"""Sends one response: headers, compression, and the end of a connection whose upload was refused. Called by handler.py.

zstd is preferred to gzip. Bodies above COMPRESS_ON_LOOP_BYTES are compressed in a thread.
"""

from __future__ import annotations

import asyncio
import functools
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias

import zstandard

from vectord.observability.tracing import TRACEPARENT
from vectord.products.common.dialect import Rendered
from vectord.schema import Result
from vectord.server.admission.caller import REQUEST_ID
from vectord.server.http.hardening.body import Body
from vectord.server.http.hardening.decompression import GZIP
from vectord.server.http.result_headers import SERVER_TIMING, result_headers, server_timing
from vectord.server.pipeline import RequestRecord, Shutdown

Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
Coding: TypeAlias = Literal["zstd", "gzip"]

NO_BODY = (204, 304)  # statuses whose responses have neither body nor Content-Length
LINGER_BODIES = 4  # a refused upload is read up to this many body limits
LINGER_S = 2.0  # and this long, so that its client sees the response instead of a connection reset
LEVEL = 1  # for JSON numbers: half the bytes at 6 us per kB; higher levels gain 3 % for three times the work
COMPRESS_ON_LOOP_BYTES = 65_536  # less than half a millisecond
MAX_HEADER_LENGTH = 1024


class Responder:
    def __init__(self, compress_min_bytes: int, body_limit_bytes: int, shutdown: Shutdown) -> None:
        self._compress_min_bytes = compress_min_bytes
        self._body_limit_bytes = body_limit_bytes
        self._shutdown = shutdown

    async def send(
        self,
        scope: Mapping[str, Any],
        record: RequestRecord,
        rendered: Rendered,
        result: Result | None,
        body: Body,
        send: Send,
    ) -> None:
        """result: None for an error or a page; body: of the request."""
        headers = {REQUEST_ID: record.request_id, **rendered.headers}
        if result is not None:
            headers.update(result_headers(result))
        if record.steps is not None and result is not None:
            headers[SERVER_TIMING] = server_timing(record.steps, record.timings)
        if record.span is not None:
            headers[TRACEPARENT] = record.span.traceparent
        content = await self._compressed(rendered, headers, record.headers.get("accept-encoding"))
        if content:
            headers["content-type"] = rendered.content_type
        if rendered.status not in NO_BODY:
            headers["content-length"] = str(len(content))
        lingers = self._closing_headers(scope, record, body, headers)
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": rendered.status, "headers": encoded})
        content = b"" if record.method == "HEAD" else content
        if lingers:
            await send({"type": "http.response.body", "body": content, "more_body": True})
            await _linger(body, LINGER_BODIES * self._body_limit_bytes)
            content = b""
        await send({"type": "http.response.body", "body": content})

    async def _compressed(self, rendered: Rendered, headers: dict[str, str], accept: str | None) -> bytes:
        """The body to send; adds the headers of its coding."""
        # Vectors as bytes stay uncompressed: they shrink by 8 % for ten times the cost of copying them.
        is_text = rendered.content_type.startswith(("application/json", "text/"))
        is_worth_it = is_text and 0 < self._compress_min_bytes <= len(rendered.body)
        if not is_worth_it or "content-encoding" in headers:
            return rendered.body
        headers["vary"] = "accept-encoding"
        coding = coding_for(accept)
        if coding is None:
            return rendered.body
        headers["content-encoding"] = coding
        return await compressed(rendered.body, coding)

    def _closing_headers(
        self, scope: Mapping[str, Any], record: RequestRecord, body: Body, headers: dict[str, str]
    ) -> bool:
        """Adds `connection: close` where it applies. Returns whether to read the rest of a refused upload."""
        version = scope.get("http_version", "1.1")
        if not version.startswith("1"):  # HTTP/2 refuses responses with that header
            return False
        is_draining = self._shutdown.begun
        asked_to_close = version == "1.0" or record.headers.get("connection", "").lower() == "close"
        lingers = not body.finished and (asked_to_close or is_draining or body.may_exceed(self._body_limit_bytes))
        if lingers or is_draining:
            headers["connection"] = "close"
        return lingers


async def _linger(body: Body, limit_bytes: int) -> None:
    try:
        async with asyncio.timeout(LINGER_S):
            await body.discard(limit_bytes)
    except TimeoutError:
        return


# --- compression ----------------------------------------------------------------------------------------------


def coding_for(accept_encoding: str | None) -> Coding | None:
    """The best coding that an Accept-Encoding header accepts: by name or by *, and not with q=0."""
    accepted = _accepted(accept_encoding or "")
    if accepted.get("zstd", False):  # * means common codings, which do not include zstd yet
        return "zstd"
    return "gzip" if accepts_gzip(accept_encoding) else None


def accepts_gzip(accept_encoding: str | None) -> bool:
    accepted = _accepted(accept_encoding or "")
    return accepted.get("gzip", accepted.get("*", False))


@functools.lru_cache(maxsize=256)
def _accepted(accept_encoding: str) -> Mapping[str, bool]:
    """Each coding in the header, and whether it is accepted. A header that is too long counts as absent."""
    accepted: dict[str, bool] = {}
    if len(accept_encoding) > MAX_HEADER_LENGTH:
        return accepted
    for part in accept_encoding.lower().split(","):
        coding, *parameters = (piece.strip() for piece in part.split(";"))
        accepted[coding] = not any(_is_zero_quality(parameter) for parameter in parameters)
    return accepted


def _is_zero_quality(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip().rstrip("0") in ("", "0.", ".")


async def compressed(body: bytes, coding: Coding) -> bytes:
    compress = _COMPRESS[coding]
    return compress(body) if len(body) <= COMPRESS_ON_LOOP_BYTES else await asyncio.to_thread(compress, body)


def _gzip(body: bytes) -> bytes:
    return zlib.compress(body, LEVEL, GZIP)


def _zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL).compress(body)  # a compressor must not be shared between threads


_COMPRESS: Mapping[Coding, Callable[[bytes], bytes]] = {"zstd": _zstd, "gzip": _gzip}
