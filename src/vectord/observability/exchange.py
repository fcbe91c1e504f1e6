"""One request and its answer: what the server reports to metrics, traces and the log when a request has ended."""

from __future__ import annotations

import msgspec

from vectord.schema import Timings


class Steps(msgspec.Struct):
    """When each step around the engine ended, by time.perf_counter."""

    body_read_s: float
    parsed_s: float
    answered_s: float
    rendered_s: float


class ConnectionsCounted(msgspec.Struct, frozen=True, tag=True):
    """The HTTP connections of one process, and the lines that its log has lost."""

    open: int
    limit: int
    over: dict[str, int]  # by reason: connections and requests beyond a limit, since the last report
    log_lines_dropped: int = 0  # since the last report
    process: int = 0  # to which they belong; 0: the engine's


class Exchange(msgspec.Struct, tag=True, kw_only=True):
    """Filled on the way of a request, and constant once it is reported. error: the name of its class.

    route: the path's template without /dialects/NAME, never the path, so that clients cannot create series. began_s,
    ended_s: headers received and answer sent, by time.perf_counter.
    """

    method: str
    dialect: str
    route: str
    request_id: str
    began_s: float
    status: int = 0  # and ended_s: set at the end
    ended_s: float = 0.0
    error: str | None = None
    reason: str | None = None  # the message of the error, without control characters
    model: str | None = None
    texts: int | None = None
    tokens: int | None = None
    embedded: int | None = None  # texts with a vector in the response
    steps: Steps | None = None  # of a request with one result
    timings: Timings | None = None
    key: str | None = None  # the name of the caller's key, if it has one
    trace_id: str | None = None  # 32 hex digits, of a trace that is sampled
    grpc_code: int | None = None  # of a gRPC call; `status` is then the equivalent HTTP status

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s
