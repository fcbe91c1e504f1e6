"""Renders, compresses and sends the response of one HTTP request. Called by handler.py, on the event loop.

negotiation.py selects the format and the compression, server/results.py makes the headers of the result.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import msgspec
import zstandard
from msgspec.structs import replace

from vectord.errors import MalformedHead, NoSuchRoute
from vectord.observability.tracing import TRACEPARENT
from vectord.products.common.batches import NO_SUCH_FILE, BatchResult, StoredContent
from vectord.products.common.dialect import Call, Rendered, RenderError
from vectord.products.common.vectors import render_row_by_row
from vectord.schema import Result
from vectord.server.admission.gate import REQUEST_ID
from vectord.server.http.hardening.body import Body, Receive
from vectord.server.http.hardening.decompression import GZIP
from vectord.server.http.hardening.http_protocol import WRITE_BUFFER_BYTES
from vectord.server.http.hardening.write_backpressure import WriteBackpressure
from vectord.server.http.negotiation import Coding, coding_for
from vectord.server.http.routing import Found
from vectord.server.pipeline import RequestRecord, Shutdown
from vectord.server.results import (
    RENDERING_THREADS,
    SERVER_TIMING,
    SMALL_NUMBERS,
    count_numbers,
    result_headers,
    server_timing,
)

Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

RENDER_ON_LOOP_NUMBERS = 2**18  # 7 ms
BYTES_PER_NUMBER = 16  # a float32 in JSON with its comma (12; 1 in 1,000 has more), and in its array (4)
NO_BODY = (204, 304)  # statuses whose responses have neither body nor Content-Length
# How much of a refused upload is still read, so that its client sees the response and not a connection reset.
LINGER_BODIES = 4  # times the body limit
LINGER_S = 2.0
LEVEL = 1  # for JSON numbers: half the bytes at 6 us per kB; higher levels gain 3 % for three times the work
FILE_PIECE_BYTES = 2**16  # of a download, in memory until its client has read it
FILE_THREADS = 2  # that read pieces; each takes the GIL several times per piece, and more would delay the event loop
COMPRESS_ON_LOOP_BYTES = 65_536  # less than half a millisecond

log = logging.getLogger("vectord.server")


class HttpCall(msgspec.Struct):
    """One HTTP request while it is answered. render_error: of the path, then of the product that the body selects."""

    scope: Mapping[str, Any]
    headers: Sequence[tuple[str, str]]  # one by one; `record.headers` has them by name
    found: Found
    record: RequestRecord
    body: Body
    receive: Receive
    render_error: RenderError
    result: Result | BatchResult | None = None  # None before it, and for an error or a page


class Responder:
    """Renders and sends responses; one per process.

    Results of usual size are rendered on the event loop, large ones in a thread and only if there is room.
    """

    def __init__(
        self, compress_min_bytes: int, body_limit_bytes: int, shutdown: Shutdown, backpressure: WriteBackpressure
    ) -> None:
        self._compress_min_bytes = compress_min_bytes
        self._body_limit_bytes = body_limit_bytes
        self._shutdown = shutdown
        self._backpressure = backpressure
        self._threads = asyncio.Semaphore(RENDERING_THREADS)
        self._file_threads = asyncio.Semaphore(FILE_THREADS)

    async def render(self, call: Call, result: Result | BatchResult) -> Rendered:
        """The response. The caller must call `send`, which releases its memory in WriteBackpressure.

        Raises Overloaded for a large one while clients have too many unread bytes, and the errors of `call`.
        """
        numbers = count_numbers(result)
        if numbers <= SMALL_NUMBERS:
            rendered = call.answered(result)
            if rendered.file is not None:
                try:  # its beginning is the body, so that an unreadable file is an error and not a broken response
                    return replace(rendered, body=await self._piece(rendered.file, 0))
                except FileNotFoundError:  # deleted meanwhile
                    raise NoSuchRoute(NO_SUCH_FILE, field="file_id") from None
            if len(rendered.body) > WRITE_BUFFER_BYTES:  # such as the texts that a rerank returns
                self._backpressure.budget.add(len(rendered.body))
            return rendered
        async with self._backpressure.room(numbers * BYTES_PER_NUMBER):
            if numbers <= RENDER_ON_LOOP_NUMBERS:
                rendered = call.answered(result)
            else:
                # Row by row, because serializing all rows in one call would hold the GIL for half a second.
                async with self._threads:
                    rendered = await asyncio.to_thread(render_row_by_row, partial(call.answered, result))
            self._backpressure.budget.add(len(rendered.body))  # some products write twice as many digits
        return rendered

    async def send(self, call: HttpCall, rendered: Rendered, send: Send) -> None:
        """A client that disconnects is not an error."""
        is_large = (
            call.result is not None
            and rendered.file is None
            and (len(rendered.body) > WRITE_BUFFER_BYTES or count_numbers(call.result) > SMALL_NUMBERS)
        )
        try:
            with suppress(OSError):
                await self._send(call, rendered, send, waits=is_large)
        finally:
            if is_large:
                self._backpressure.budget.release(len(rendered.body))

    async def _send(self, call: HttpCall, rendered: Rendered, send: Send, *, waits: bool) -> None:
        """waits: until the client has read the response."""
        record = call.record
        headers = {REQUEST_ID: record.exchange.request_id, **rendered.headers}
        if call.result is not None:
            headers.update(result_headers(call.result))
            if record.exchange.steps is not None:
                headers[SERVER_TIMING] = server_timing(record.exchange.steps, record.exchange.timings)
        if record.span is not None:
            headers[TRACEPARENT] = record.span.traceparent
        content = rendered.body
        # Binary vectors are not compressed: it saves 8 % for ten times the cost of copying them.
        is_text = rendered.content_type.startswith(("application/json", "text/"))
        if is_text and 0 < self._compress_min_bytes <= len(content) and "content-encoding" not in headers:
            headers["vary"] = "accept-encoding"
            if (coding := coding_for(record.headers.get("accept-encoding"))) is not None:
                headers["content-encoding"] = coding
                content = await compressed(content, coding)
        n_bytes = len(content) if rendered.file is None else rendered.file.n_bytes
        if n_bytes:
            headers["content-type"] = rendered.content_type
        if rendered.status not in NO_BODY:
            headers["content-length"] = str(n_bytes)
        lingers = self._closing_headers(call, headers)
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": rendered.status, "headers": encoded})
        content = b"" if record.exchange.method == "HEAD" else content
        file = rendered.file if record.exchange.method != "HEAD" else None
        if lingers or file is not None or waits:
            await send({"type": "http.response.body", "body": content, "more_body": True})
            content = b""
        if lingers:
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await call.body.discard(LINGER_BODIES * self._body_limit_bytes)
        sent_bytes = len(rendered.body)
        while file is not None and sent_bytes < file.n_bytes:
            try:
                piece = await self._piece(file, sent_bytes)
                if not piece:
                    raise OSError(errno.EIO, "The file is shorter than its record.")
            except OSError as error:
                fields = {"id": record.exchange.request_id, "file": file.path.name, "cause": error.strerror}
                log.warning("download cut off", extra={"fields": fields})
                return  # the server closes the connection, because the response is incomplete
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            sent_bytes += len(piece)
        await send({"type": "http.response.body", "body": content})

    async def _piece(self, file: StoredContent, start: int) -> bytes:
        async with self._file_threads:
            return await asyncio.to_thread(file.read, start, FILE_PIECE_BYTES)

    def _closing_headers(self, call: HttpCall, headers: dict[str, str]) -> bool:
        """Add `connection: close` if the connection must end. Return whether to read the rest of an upload first."""
        version, body = call.scope.get("http_version", "1.1"), call.body
        if not version.startswith("1"):  # HTTP/2 refuses responses with that header
            return False
        is_draining = self._shutdown.begun
        client_closes = version == "1.0" or call.record.headers.get("connection", "").lower() == "close"
        # A client that waited for 100 Continue may leave its body out, so that the next request follows at once.
        lingers = not body.finished and (
            client_closes or is_draining or body.may_exceed(self._body_limit_bytes) or "expect" in call.record.headers
        )
        # Under uvicorn, httptools would read the body of a request that offers an upgrade as the next request.
        is_ambiguous = "upgrade" in call.record.headers or call.record.exchange.error == MalformedHead.__name__
        if lingers or is_draining or is_ambiguous:
            headers["connection"] = "close"
        return lingers


# --- compression -----------------------------------------------------------------------------------------------


async def compressed(body: bytes, coding: Coding) -> bytes:
    if coding == "gzip":
        compress = partial(zlib.compress, body, LEVEL, GZIP)
    else:  # a compressor must not be shared between threads
        compress = partial(zstandard.ZstdCompressor(level=LEVEL).compress, body)
    return compress() if len(body) <= COMPRESS_ON_LOOP_BYTES else await asyncio.to_thread(compress)
