"""Builds and sends the response of one request: content negotiation, headers, rendering, compression.

Called by handler.py; gRPC sends the same `result_headers` as metadata.

The Accept header can select one of these formats for vectors. Otherwise the response has the product's own format:

    application/octet-stream             one matrix; a parameter such as `;dtype=float16` selects float32, float16, int8
                                         or ubinary; the default is the body's int8 or ubinary, else float32
    application/vnd.apache.arrow.stream  one column per kind of vector

These headers describe a result, the same for every product:

    x-vectord-tokens-seen       tokens of all inputs together
    x-vectord-tokens-kept       tokens after truncation, which the model processed
    x-vectord-truncated         number of truncated inputs
    x-vectord-truncated-inputs  their indexes from 0, comma separated, the first 100; absent if there are none
    x-vectord-fingerprint       the vector space; vectors of different spaces cannot be compared
    x-vectord-score-kind        logit, probability, cosine, maxsim, dot or weighted
    x-vectord-query-truncated   "true" if a rerank query was truncated; absent otherwise
    server-timing               milliseconds per step: `parse` (body to request), `tokenize`, `queue` (until the first
                                forward pass), `inference` (from there to the end of the last one), `render` (result
                                to body)

If several models read the same inputs, each with its own tokenizer, tokens are summed over the models, and an input
counts as truncated if any model truncated it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import zstandard

from vectord.errors import NotAcceptable, Overloaded, VectordError
from vectord.observability.exchange import Steps
from vectord.observability.tracing import TRACEPARENT
from vectord.products.common.batches import BatchRequest, BatchResult
from vectord.products.common.dialect import Call, Rendered, RenderError
from vectord.products.common.vectors import (
    ARROW,
    OCTETS,
    PRECISIONS,
    Dtype,
    check_arrow,
    check_octets,
    render_arrow,
    render_octets,
    render_row_by_row,
)
from vectord.schema import (
    ClassifyResult,
    DecodeResult,
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    ModelList,
    MultiResult,
    Request,
    RerankResult,
    Result,
    SimilarityResult,
    Statistics,
    TextLength,
    Timings,
)
from vectord.server.admission.gate import REQUEST_ID
from vectord.server.http.hardening.body import Body
from vectord.server.http.hardening.decompression import GZIP
from vectord.server.http.hardening.write_backpressure import WriteBackpressure
from vectord.server.pipeline import RequestRecord, Shutdown

Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
Coding: TypeAlias = Literal["zstd", "gzip"]

MAX_ACCEPT_LENGTH = 1024  # of Accept and Accept-Encoding; a longer header counts as absent

JSON_ONLY = "This response is JSON only, because its vectors are scaled for JSON."
NOT_AS_ARROW = f"Documents are returned as JSON or as {OCTETS}."
UNKNOWN_DTYPE = f"The dtype of {OCTETS} must be one of {', '.join(PRECISIONS)}."
SEVERAL_PRECISIONS = (
    f"{OCTETS} has one of {', '.join(PRECISIONS)}; select it with Accept: {OCTETS};dtype=..., or accept JSON."
)

TOKENS_SEEN = "x-vectord-tokens-seen"
TOKENS_KEPT = "x-vectord-tokens-kept"
TRUNCATED = "x-vectord-truncated"
TRUNCATED_INPUTS = "x-vectord-truncated-inputs"
FINGERPRINT = "x-vectord-fingerprint"
SCORE_KIND = "x-vectord-score-kind"
QUERY_TRUNCATED = "x-vectord-query-truncated"
SERVER_TIMING = "server-timing"

MAX_REFUSALS = 1024  # rendered ones that are kept, of at most a few kB each
MAX_INDICES = 100  # about 700 bytes; proxies commonly refuse responses with more than 4 kB of headers
NO_LENGTH = TextLength(0, 0)

SMALL_NUMBERS = 2**14  # 180 kB of JSON; such responses are not counted in WriteBackpressure
RENDER_ON_LOOP_NUMBERS = 2**18  # 7 ms
BYTES_PER_NUMBER = 16  # a float32 in JSON with its comma (12; 1 in 1,000 has more), and in its array (4)
THREADS = 2  # more would not be faster, because of the GIL

NO_BODY = (204, 304)  # statuses whose responses have neither body nor Content-Length
# How much of a refused upload is still read, so that its client sees the response and not a connection reset.
LINGER_BODIES = 4  # times the body limit
LINGER_S = 2.0
LEVEL = 1  # for JSON numbers: half the bytes at 6 us per kB; higher levels gain 3 % for three times the work
FILE_PIECE_BYTES = 2**18
COMPRESS_ON_LOOP_BYTES = 65_536  # less than half a millisecond


# --- content negotiation -----------------------------------------------------------------------------------


def negotiated(call: Call, headers: Mapping[str, str]) -> Call:
    """`call`, rendered in the format that the client prefers.

    Raises NotAcceptable, before anything is computed, if that format cannot represent the vectors.
    """
    if not isinstance(call.request, EmbedRequest | DocumentsRequest):
        return call
    # `max` returns the first of several entries with the same quality.
    preferred = max(accepted(headers.get("accept")), key=lambda entry: entry.quality, default=None)
    if preferred is None or not preferred.quality or preferred.name not in (OCTETS, ARROW):
        return call
    if not call.binary:
        raise NotAcceptable(JSON_ONLY, field="accept")
    return _as_arrow(call) if preferred.name == ARROW else _as_octets(call, preferred.parameters.get("dtype"))


def _as_arrow(call: Call) -> Call:
    if isinstance(call.request, DocumentsRequest):
        raise NotAcceptable(NOT_AS_ARROW, field="accept")
    check_arrow()
    return replace(call, render=render_arrow)


def _as_octets(call: Call, named: str | None) -> Call:
    """named: the dtype in the header; None: as in the body."""
    dtype = named or _dtype_of(call.request)
    if dtype not in PRECISIONS:
        raise NotAcceptable(UNKNOWN_DTYPE, field="accept")
    precision = cast("Dtype", dtype)
    request = call.request
    assert isinstance(request, EmbedRequest | DocumentsRequest)
    check_octets(request, precision)
    request = replace(request, precisions=(PRECISIONS[precision],))
    return replace(call, request=request, render=partial(render_octets, precision))


def _dtype_of(request: Request | BatchRequest) -> str:
    """The dtype of the precision in the body. Raises NotAcceptable for several precisions, or an unsupported one."""
    requested = getattr(request, "precisions", ("float",))
    for name, precision in PRECISIONS.items():
        if (precision,) == requested:
            return name
    raise NotAcceptable(SEVERAL_PRECISIONS, field="accept")


class Accepted(NamedTuple):
    """One entry of an Accept or Accept-Encoding header, in lower case. quality: from 0 to 1."""

    name: str
    quality: float
    parameters: Mapping[str, str]


def accepted(header: str | None) -> Sequence[Accepted]:
    """The entries of an Accept or Accept-Encoding header, in order."""
    return _entries(header) if header and len(header) <= MAX_ACCEPT_LENGTH else ()


@functools.lru_cache(maxsize=256)
def _entries(header: str) -> Sequence[Accepted]:
    entries = []
    for part in header.lower().split(","):
        name, *pieces = (piece.strip() for piece in part.split(";"))
        parameters = dict(map(_parameter, pieces))
        entries.append(Accepted(name, _quality(parameters.get("q", "1")), parameters))
    return entries


def quality_of(name: str, header: str | None, default: float = 0.0) -> float:
    """The quality of a media type or coding in its header, 0 to 1; `default` if the header does not name it."""
    return next((entry.quality for entry in accepted(header) if entry.name == name), default)


def _parameter(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip().strip('"')


def _quality(text: str) -> float:
    """The quality as a number; an invalid one counts as 1."""
    try:
        quality = float(text)
    except ValueError:
        return 1.0
    return quality if 0 <= quality <= 1 else 1.0


# --- headers ---------------------------------------------------------------------------------------------------


def result_headers(result: Result | BatchResult) -> dict[str, str]:
    headers = _lengths_of(result)
    if isinstance(result, EmbedResult | DocumentsResult | RerankResult | ClassifyResult | SimilarityResult):
        headers[FINGERPRINT] = result.fingerprint
    if isinstance(result, RerankResult | ClassifyResult):
        headers[SCORE_KIND] = result.kind
    if isinstance(result, RerankResult) and result.query.truncated:
        headers[QUERY_TRUNCATED] = "true"
    return headers


def _lengths_of(result: Result | BatchResult) -> dict[str, str]:
    if isinstance(result, ModelList | DecodeResult | Statistics | BatchResult):
        return {}
    if isinstance(result, EmbedResult) and result.lengths:
        return length_headers(*result.lengths.values())
    if isinstance(result, RerankResult) and result.usage.further_tokens:  # a query that is not part of every pair
        return length_headers(result.usage.lengths, query=result.query)
    return length_headers(result.usage.lengths)


def length_headers(*by_model: Sequence[TextLength], query: TextLength = NO_LENGTH) -> dict[str, str]:
    """by_model: for each model, the lengths of all inputs; query: of a query that is not part of every pair."""
    seen, kept = query.seen, query.kept
    truncated = set()
    for lengths in by_model:
        for index, length in enumerate(lengths):
            seen += length.seen
            kept += length.kept
            if length.truncated:
                truncated.add(index)
    headers = {TOKENS_SEEN: str(seen), TOKENS_KEPT: str(kept), TRUNCATED: str(len(truncated))}
    if truncated:
        headers[TRUNCATED_INPUTS] = ",".join(map(str, sorted(truncated)[:MAX_INDICES]))
    return headers


def server_timing(steps: Steps, timings: Timings | None) -> str:
    """timings: None for a result without a forward pass, such as a list of models."""
    parse = f"parse;dur={steps.parse_s * 1000:.3f}"
    render = f"render;dur={steps.render_s * 1000:.3f}"
    if timings is None:
        return f"{parse}, {render}"
    return (
        f"{parse}, tokenize;dur={timings.tokenizing_s * 1000:.3f}, queue;dur={timings.waiting_s * 1000:.3f}, "
        f"inference;dur={timings.computing_s * 1000:.3f}, {render}"
    )


# --- rendering and sending -------------------------------------------------------------------------------------


class RefusalResponses:
    """The responses of a flood: one for each client, product and limit is rendered in a second. Event loop only."""

    def __init__(self) -> None:
        self._second = 0
        self._rendered: dict[tuple[object, ...], Rendered] = {}

    def render(self, error: VectordError, render: RenderError, client: str) -> Rendered:
        """The response for `error`; of a refusal, that of an earlier one of the same second, with its numbers."""
        if not isinstance(error, Overloaded):
            return render(error)
        second = int(time.monotonic())
        if second != self._second or len(self._rendered) >= MAX_REFUSALS:
            self._second = second
            self._rendered.clear()
        key = client, render, type(error), error.template, error.limit
        if (rendered := self._rendered.get(key)) is None:
            rendered = self._rendered[key] = render(error)
        return rendered


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
        self._threads = asyncio.Semaphore(THREADS)

    async def render(self, call: Call, result: Result | BatchResult) -> Rendered:
        """The response. The caller must call `send`, which releases its memory in WriteBackpressure.

        Raises Overloaded for a large one while clients have too many unread bytes, and the errors of `call`.
        """
        numbers = count_numbers(result)
        if numbers <= SMALL_NUMBERS:
            return call.answered(result)
        async with self._backpressure.room(numbers * BYTES_PER_NUMBER):
            if numbers <= RENDER_ON_LOOP_NUMBERS:
                rendered = call.answered(result)
            else:
                # Row by row, because serializing all rows in one call would hold the GIL for half a second.
                async with self._threads:
                    rendered = await asyncio.to_thread(render_row_by_row, partial(call.answered, result))
            self._backpressure.hold(len(rendered.body))  # some products write twice as many digits
        return rendered

    async def send(
        self,
        scope: Mapping[str, Any],
        record: RequestRecord,
        rendered: Rendered,
        result: Result | BatchResult | None,
        body: Body,
        send: Send,
    ) -> None:
        """result: None for an error or a page; body: the request's. A client that disconnects is not an error."""
        try:
            with suppress(OSError):
                await self._send(scope, record, rendered, result, body, send)
        finally:
            if rendered.file is not None:
                rendered.file.close()
            if result is not None and count_numbers(result) > SMALL_NUMBERS:
                self._backpressure.give_back(len(rendered.body))

    async def _send(
        self,
        scope: Mapping[str, Any],
        record: RequestRecord,
        rendered: Rendered,
        result: Result | BatchResult | None,
        body: Body,
        send: Send,
    ) -> None:
        headers = {REQUEST_ID: record.request_id, **rendered.headers}
        if result is not None:
            headers.update(result_headers(result))
        if record.steps is not None and result is not None:
            headers[SERVER_TIMING] = server_timing(record.steps, record.timings)
        if record.span is not None:
            headers[TRACEPARENT] = record.span.traceparent
        content = await self._compressed(rendered, headers, record.headers.get("accept-encoding"))
        n_bytes = len(content) if rendered.file is None else os.fstat(rendered.file.fileno()).st_size
        if n_bytes:
            headers["content-type"] = rendered.content_type
        if rendered.status not in NO_BODY:
            headers["content-length"] = str(n_bytes)
        lingers = self._closing_headers(scope, record, body, headers)
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": rendered.status, "headers": encoded})
        content = b"" if record.method == "HEAD" else content
        if lingers:
            await send({"type": "http.response.body", "body": content, "more_body": True})
            await _linger(body, LINGER_BODIES * self._body_limit_bytes)
            content = b""
        if rendered.file is not None and record.method != "HEAD":
            while piece := await asyncio.to_thread(rendered.file.read, FILE_PIECE_BYTES):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": content})

    async def _compressed(self, rendered: Rendered, headers: dict[str, str], accept: str | None) -> bytes:
        """The body to send, compressed if that is worthwhile and accepted; adds the headers of its coding."""
        # Binary vectors are not compressed: it saves 8 % for ten times the cost of copying them.
        is_text = rendered.content_type.startswith(("application/json", "text/"))
        is_worthwhile = is_text and 0 < self._compress_min_bytes <= len(rendered.body)
        if not is_worthwhile or "content-encoding" in headers:
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
        """Add `connection: close` if the connection must end. Return whether to read the rest of an upload first."""
        version = scope.get("http_version", "1.1")
        if not version.startswith("1"):  # HTTP/2 refuses responses with that header
            return False
        is_draining = self._shutdown.begun
        client_closes = version == "1.0" or record.headers.get("connection", "").lower() == "close"
        lingers = not body.finished and (client_closes or is_draining or body.may_exceed(self._body_limit_bytes))
        if lingers or is_draining:
            headers["connection"] = "close"
        return lingers


async def _linger(body: Body, limit_bytes: int) -> None:
    """Read and discard the rest of a refused upload, up to `limit_bytes` and LINGER_S."""
    try:
        async with asyncio.timeout(LINGER_S):
            await body.discard(limit_bytes)
    except TimeoutError:
        return


def count_numbers(result: Result | BatchResult) -> int:
    """How many numbers the vectors of a result have. Scores and sparse vectors are always small and count as 0."""
    if isinstance(result, EmbedResult):
        matrices = [*result.dense.values(), *(result.tokens or ()), *(result.colbert or ())]
        return sum(matrix.size for matrix in matrices)
    if isinstance(result, DocumentsResult):
        return sum(rows.size for document in result.documents for rows in document.vectors.values())
    if isinstance(result, MultiResult):
        return sum(map(count_numbers, result.results))
    return 0


# --- compression -----------------------------------------------------------------------------------------------


def coding_for(accept_encoding: str | None) -> Coding | None:
    """The preferred coding that an Accept-Encoding header accepts, by name or by `*`; None if it accepts neither."""
    if quality_of("zstd", accept_encoding):  # only by name: a client that sends * may not support zstd
        return "zstd"
    return "gzip" if accepts_gzip(accept_encoding) else None


def accepts_gzip(accept_encoding: str | None) -> bool:
    return quality_of("gzip", accept_encoding, default=quality_of("*", accept_encoding)) > 0


async def compressed(body: bytes, coding: Coding) -> bytes:
    compress = _COMPRESS[coding]
    return compress(body) if len(body) <= COMPRESS_ON_LOOP_BYTES else await asyncio.to_thread(compress, body)


def _gzip(body: bytes) -> bytes:
    return zlib.compress(body, LEVEL, GZIP)


def _zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL).compress(body)  # a compressor must not be shared between threads


_COMPRESS: Mapping[Coding, Callable[[bytes], bytes]] = {"zstd": _zstd, "gzip": _gzip}
