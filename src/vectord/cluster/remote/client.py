"""The engine, rate limits and metrics of the engine's process, as a front-end uses them. On the front-end's event loop.

Calls to that process raise Unavailable while it is replaced or does not answer (link.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

from msgspec.structs import replace

from vectord.cluster.remote.codec import EngineState
from vectord.cluster.remote.link import Link
from vectord.errors import Overloaded, ShuttingDown, TimedOut
from vectord.observability.exchange import ConnectionsCounted, Exchange
from vectord.observability.metrics import FigurePart
from vectord.products.common.dialect import Rate
from vectord.schema import ANYONE, Caller, Limits, ModelList, Operation, Request, Result
from vectord.server.admission.buckets import Draw, Refusal
from vectord.text.sequence import TokenizedTexts

GRACE_S = 1.0  # after a request's timeout: the engine's own error says more
CHECK_S = 1.0  # how long after a refusal a front-end checks with the engine before it reads a body
NO_MODELS = ModelList(
    models=(),
    limits=Limits(
        max_inputs_per_request=0,
        max_batch_tokens=0,
        max_batch_texts=None,
        max_concurrent_requests=0,
        tokenization_workers=0,
        truncates=None,
    ),
    starting=True,
)


class TextReader(Protocol):
    """The part of an engine's work on texts that a front-end does."""

    async def read(self, request: Request, state: EngineState) -> TokenizedTexts | None:
        """The tokens of the request's texts; None: the engine reads them."""

    async def finish(self, result: Result, request: Request) -> Result:
        """The result with the vectors that such a request asks for, made of the engine's raw rows."""


class RemoteEngine:
    """An EngineClient. Its state is the engine's latest report; while there is no engine, models are stalled."""

    def __init__(self, link: Link, request_timeout_s: float = 0.0, tokenizers: TextReader | None = None) -> None:
        """request_timeout_s: the engine's, for an engine that stops; 0: no limit."""
        self._link = link
        self._request_timeout_s = request_timeout_s
        self._tokenizers = tokenizers
        self._draining = False
        self._running = 0
        self._checks_until_s = 0.0  # by time.monotonic()
        self._idle = asyncio.Event()
        self._idle.set()

    async def answer(self, request: Request, caller: Caller) -> Result:
        if self._draining:
            raise ShuttingDown()
        limits = [self._request_timeout_s] if self._request_timeout_s else []
        if caller.deadline_s is not None:
            limits.append(max(0.0, caller.deadline_s - time.monotonic()))
        self._running += 1
        self._idle.clear()
        try:
            with self._refusals_noted():
                async with asyncio.timeout(min(limits) + GRACE_S if limits else None) as scope:
                    tokenized = None
                    if self._tokenizers is not None and self._link.state is not None:
                        tokenized = await self._tokenizers.read(request, self._link.state)
                    result = cast(Result, await self._link.call(Result, "answer", request, caller, tokenized))
                    if self._tokenizers is None or tokenized is None:
                        return result
                    return await self._tokenizers.finish(result, request)
        except TimeoutError:
            if not scope.expired():
                raise
            raise TimedOut("The engine's process did not answer by the request's deadline.") from None
        finally:
            self._running -= 1
            if self._running == 0:
                self._idle.set()

    async def check_busy(self, operation: Operation, caller: Caller) -> None:
        """Checks with the engine's process, but only within CHECK_S of a refusal: the check takes a round trip."""
        if time.monotonic() < self._checks_until_s:
            with self._refusals_noted():
                await self._link.call(None, "check_busy", operation, caller)

    @contextmanager
    def _refusals_noted(self) -> Iterator[None]:
        try:
            yield
        except Overloaded:
            self._checks_until_s = time.monotonic() + CHECK_S
            raise

    def readiness(self) -> dict[str, str]:
        states = {} if self._link.state is None else self._link.state.readiness
        return dict(states) if self._link.is_up else dict.fromkeys(states, "stalled")

    def models(self, caller: Caller = ANYONE) -> ModelList:
        if self._link.state is None:
            return NO_MODELS
        listed, names = self._link.state.models, self._link.state.names
        found = listed.models
        if caller.models is not None:
            allowed = {names[name] for name in caller.models if name in names}
            found = [info for info in found if info.name in allowed]
        found = [info.seen_by(caller) for info in found]
        if not self._link.is_up:
            found = [replace(info, state="stalled") for info in found]
        return replace(listed, models=found)

    async def drain(self) -> None:
        self._draining = True
        await self._idle.wait()


class RemoteBuckets:
    """Implements TokenBuckets of admission/buckets.py with the counts in the engine's process, for all front-ends."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def draw(self, draws: Sequence[Draw]) -> Refusal | None:
        return cast(Refusal | None, await self._link.call(Refusal | None, "draw", draws))

    async def spend(self, rate: Rate, bucket: str, amount: int) -> None:
        await self._link.call(None, "spend", rate, bucket, amount)

    async def close(self) -> None:
        """Does nothing: the link has another owner."""


class RemoteMetrics:
    """A MetricsSource (server/http/app.py) that reports to the engine's process, which has those of all front-ends.
    While there is no engine's process, reports are kept for the next one."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def observe(self, event: Exchange | ConnectionsCounted) -> None:
        self._link.report(event)

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics of all processes, including the latest reports of this front-end."""
        self._link.flush_reports()
        return cast(tuple[bytes, str], await self._link.call(tuple[bytes, str], "exposition", accept))

    async def figures(self, part: FigurePart) -> dict[str, Any] | None:
        self._link.flush_reports()
        return cast(dict[str, Any] | None, await self._link.call(dict[str, Any] | None, "figures", part))
