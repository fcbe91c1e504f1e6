"""One call in progress: its metadata, which correspond to HTTP's headers, and its status. Created by services.py."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

from grpc import StatusCode

from vectord import errors
from vectord.errors import Overloaded, Unavailable, VectordError
from vectord.observability.tracing import TRACEPARENT
from vectord.products.common.errors import STATUSES, retry_after_s, row_of
from vectord.schema import ANYONE, Caller
from vectord.server.admission.gate import REQUEST_ID
from vectord.server.pipeline import CLIENT_LEFT_STATUS, RequestRecord

Context: TypeAlias = Any  # grpc.aio.ServicerContext; grpc has no types
Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]

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
    """The time to retry, in the form of gRPC's own retry policy."""
    if isinstance(error, Overloaded | Unavailable):
        return (("grpc-retry-pushback-ms", str(math.ceil(retry_after_s(error) * 1000))),)
    return ()


def headers_of(metadata: Metadata) -> Mapping[str, str]:
    """Names in lower case, values as latin-1, as for HTTP; without binary ones. Of a repeated name the last counts."""
    return {name: value.encode().decode("latin-1") for name, value in metadata if isinstance(value, str)}


def forwarded_of(metadata: Metadata) -> list[str]:
    """The values of X-Forwarded-For, in order."""
    return [value for name, value in metadata if name == "x-forwarded-for" and isinstance(value, str)]


def address_of(peer: str) -> str:
    """The address in "ipv4:127.0.0.1:50000", without scheme, port and brackets, so that a client's calls and HTTP
    requests share one queue."""
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
        """Metadata of every response."""
        span = self.record.span
        return {REQUEST_ID: self.record.request_id, **({} if span is None else {TRACEPARENT: span.traceparent})}

    @property
    def http_status(self) -> int:
        """The equivalent HTTP status, so that one alert on 5xx covers both ports."""
        if self.error is not None:
            return row_of(STATUSES, self.error)
        return 200 if self.code is StatusCode.OK else CLIENT_LEFT_STATUS
