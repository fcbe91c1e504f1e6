"""One gRPC call: its metadata (the counterpart of HTTP's headers), its status, and its unread responses.

services.py creates a GrpcCall for each call, and one ResponseWriter for the process.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

from grpc import StatusCode

from vectord import errors
from vectord.errors import Overloaded, Unavailable, VectordError
from vectord.observability.tracing import TRACEPARENT
from vectord.products.common.errors import STATUSES, retry_after_s, row_of
from vectord.schema import ANYONE, Caller, Result, TokenizeResult
from vectord.server.admission.gate import REQUEST_ID
from vectord.server.grpc.requests import ParsedMessage
from vectord.server.http.hardening.head import combined
from vectord.server.http.hardening.http_protocol import MAX_HEADERS
from vectord.server.http.hardening.write_backpressure import RETRY_S, WriteBackpressure
from vectord.server.pipeline import CLIENT_LEFT_STATUS, RequestRecord
from vectord.server.results import RENDERING_THREADS, SMALL_NUMBERS, count_numbers

Context: TypeAlias = Any  # grpc.aio.ServicerContext; grpc has no types
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

BYTES_PER_NUMBER = 4
SMALL_BYTES = SMALL_NUMBERS * BYTES_PER_NUMBER
TOKENS_ON_LOOP = 1024  # serialized in 1 ms
BYTES_PER_TOKEN = 32
NO_ROOM = "Too many large responses wait for gRPC clients that do not read them; try again."

# Clients retry UNAVAILABLE, and RESOURCE_EXHAUSTED if their configuration says so.
CODES: Mapping[type[VectordError], StatusCode] = {
    errors.VectordError: StatusCode.INTERNAL,
    errors.InvalidRequest: StatusCode.INVALID_ARGUMENT,
    errors.ModelNotFound: StatusCode.NOT_FOUND,
    errors.ModelCannot: StatusCode.FAILED_PRECONDITION,
    errors.FingerprintMismatch: StatusCode.FAILED_PRECONDITION,
    errors.Unauthorized: StatusCode.UNAUTHENTICATED,
    errors.Forbidden: StatusCode.PERMISSION_DENIED,
    errors.NoSuchRoute: StatusCode.UNIMPLEMENTED,
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: StatusCode.UNAVAILABLE,
    errors.TimedOut: StatusCode.DEADLINE_EXCEEDED,
    errors.InferenceFailed: StatusCode.FAILED_PRECONDITION,
    errors.InferenceTimedOut: StatusCode.DEADLINE_EXCEEDED,
}


def code_of(error: VectordError) -> StatusCode:
    return row_of(CODES, error)


def trailers_of(error: VectordError) -> tuple[tuple[str, str], ...]:
    """The trailer with the delay for gRPC's retry policy; none for errors that a retry cannot fix."""
    if isinstance(error, Overloaded | Unavailable):
        return (("grpc-retry-pushback-ms", str(math.ceil(retry_after_s(error) * 1000))),)
    return ()


def bounded(metadata: Metadata) -> Metadata:
    """The first entries; a valid call has no more.

    grpc limits the size of a frame, not of a call: one of many frames had 169,464 entries (grpcio 1.85).
    """
    return metadata[:MAX_HEADERS]


def headers_of(metadata: Metadata) -> Mapping[str, str]:
    """Metadata as HTTP headers: names in lower case, values as latin-1, those of a repeated name joined by a comma.

    Binary metadata is left out.
    """
    return combined([(name, value.encode().decode("latin-1")) for name, value in metadata if isinstance(value, str)])


def forwarded_of(metadata: Metadata) -> list[str]:
    """The values of X-Forwarded-For, in order."""
    return [value for name, value in metadata if name == "x-forwarded-for" and isinstance(value, str)]


def address_of(peer: str) -> str:
    """The IP address of a peer such as "ipv4:127.0.0.1:50000", as HTTP has it, so that both count as one client."""
    scheme, _, rest = peer.partition(":")
    return unquote(rest).rpartition(":")[0].strip("[]") if scheme in ("ipv4", "ipv6") else peer


@dataclass(slots=True)
class GrpcCall:
    context: Context
    record: RequestRecord
    caller: Caller = ANYONE
    code: StatusCode = StatusCode.CANCELLED
    error: VectordError | None = None

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata that every response has."""
        span = self.record.span
        return {
            REQUEST_ID: self.record.exchange.request_id,
            **({} if span is None else {TRACEPARENT: span.traceparent}),
        }

    @property
    def http_status(self) -> int:
        """The equivalent HTTP status, so that one alert on 5xx covers both ports."""
        if self.error is not None:
            return row_of(STATUSES, self.error)
        return 200 if self.code is StatusCode.OK else CLIENT_LEFT_STATUS


# --- responses ------------------------------------------------------------------------------------------------


class ResponseWriter:
    """Serializes results: small ones on the event loop, large ones in a thread and only if there is room.

    HTTP and gRPC share one bound per process (hardening/write_backpressure.py). gRPC uses at most half of it, because
    a gRPC client cannot be disconnected to free memory.
    """

    def __init__(self, backpressure: WriteBackpressure) -> None:
        self._backpressure = backpressure
        self._unread_bytes = 0
        self._threads = asyncio.Semaphore(RENDERING_THREADS)

    async def write(self, message: ParsedMessage, result: Result) -> bytes:
        """The bytes of the response. Raises Overloaded for a large one while clients have too many unread bytes."""
        n_bytes = _estimated_bytes(result)
        if n_bytes <= SMALL_BYTES:
            return message.write(result)
        if self._unread_bytes and self._unread_bytes + n_bytes > self._backpressure.budget.limit // 2:
            raise Overloaded(NO_ROOM, retry_after_s=RETRY_S)
        async with self._backpressure.room(n_bytes), self._threads:
            return await asyncio.to_thread(message.write, result)

    def hold(self, n_bytes: int) -> None:
        self._backpressure.budget.add(n_bytes)
        self._unread_bytes += n_bytes

    def give_back(self, n_bytes: int) -> None:
        self._backpressure.budget.release(n_bytes)
        self._unread_bytes -= n_bytes


class UnreadResponses:
    """Counts the bytes of one call's responses that its client has not read.

    grpc reports when it has sent a response of a stream, but not when it has sent the response of a unary call, which
    therefore counts until the call ends.
    """

    def __init__(self, writer: ResponseWriter) -> None:
        self._writer = writer
        self._bytes = 0

    def add(self, content: bytes) -> bytes:
        self._writer.hold(len(content))
        self._bytes += len(content)
        return content

    def remove(self, content: bytes) -> None:
        self._writer.give_back(len(content))
        self._bytes -= len(content)

    def end(self, _context: object = None) -> None:
        """Called when the call ends: grpc has released its responses."""
        if self._bytes:
            self._writer.give_back(self._bytes)


def _estimated_bytes(result: Result) -> int:
    """The approximate size of the response; 0 for kinds that are always small."""
    if isinstance(result, TokenizeResult):
        tokens = sum(map(len, result.tokens))
        return max(tokens * BYTES_PER_TOKEN, SMALL_BYTES + 1) if tokens > TOKENS_ON_LOOP else 0
    return count_numbers(result) * BYTES_PER_NUMBER
