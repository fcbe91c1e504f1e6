"""One request and its answer, as handler.py and rpc/ tell metrics.py, tracing.py and the log of it once it is over."""

from __future__ import annotations

from dataclasses import dataclass

from vectord.schema import Timings


@dataclass(slots=True)
class Steps:
    """When the steps around the engine were done, on the clock of time.perf_counter."""

    body_read_s: float
    parsed_s: float
    answered_s: float
    rendered_s: float

    @property
    def parse_s(self) -> float:
        return self.parsed_s - self.body_read_s

    @property
    def render_s(self) -> float:
        return self.rendered_s - self.answered_s


@dataclass(slots=True, kw_only=True)  # not frozen: three times as quick to make
class Exchange:
    """route: the path's template, never the path itself, so that clients cannot make series. error: its class's name.

    steps, timings: of an answer that the engine gave. began_s, ended_s: from headers to answer, time.perf_counter.
    """

    method: str
    dialect: str
    route: str
    status: int
    request_id: str
    began_s: float
    ended_s: float
    error: str | None = None
    model: str | None = None
    texts: int | None = None
    tokens: int | None = None
    steps: Steps | None = None
    timings: Timings | None = None
    key: str | None = None  # the name of a key that has one
    trace_id: str | None = None  # 32 hex digits, of a trace that somebody keeps
    grpc_code: int | None = None  # of a call, whose `status` is what HTTP would have said

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s
