"""Sends requests over HTTP until they succeed or fail for good, on an event loop.

All requests may be retried: none changes anything on the server. `run_blocking` lets threads without an event loop use
this module: one thread runs a loop for all of them.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import httpx

from .errors import (
    TIMED_OUT,
    BadRequest,
    ServerFailed,
    Timeout,
    TryLater,
    from_exception,
    from_response,
)
from .options import Lane
from .requests import HttpReply, HttpRequest

A = TypeVar("A")
In = TypeVar("In")

CONNECT_S = 5.0
MAX_TIMEOUT_S = 86_400
MAX_ANSWER_BYTES = 2**30  # the default
MAX_CONCURRENCY = 100  # httpx's default number of connections
WINDOW = 2  # maximum requests without a consumed result, running or finished, as a multiple of the concurrency

RETRY_WITHIN_S = 120.0  # of the first attempt; no attempt starts later
FIRST_WAIT_S = 0.5  # doubles with each attempt
LONGEST_WAIT_S = 8.0
JITTER = 0.25  # of a wait: clients that were refused together should not return together


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings of a client, which client.py documents. Raises ValueError for an invalid value."""

    base_url: str
    api_key: str | None = field(repr=False)
    timeout_s: float
    max_retries: int = 0
    concurrency: int = 1
    texts_per_request: int = 1
    characters_per_request: int = 1
    lane: Lane | None = None
    max_answer_bytes: int = MAX_ANSWER_BYTES

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.base_url)
        except httpx.InvalidURL as cause:
            raise ValueError(f"base_url is no URL: {cause}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("base_url must begin with http:// or https:// and name a host")
        if not isinstance(self.timeout_s, int | float) or not 0 < self.timeout_s <= MAX_TIMEOUT_S:  # false for NaN
            raise ValueError(f"timeout_s must be above 0, {MAX_TIMEOUT_S} at most, not {self.timeout_s!r}")
        for name in ("max_answer_bytes", "texts_per_request", "characters_per_request"):
            _check_range(name, getattr(self, name), 1, None)
        _check_range("max_retries", self.max_retries, 0, None)
        _check_range("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        if self.lane is not None and self.lane not in get_args(Lane):
            raise ValueError(f"lane must be one of {', '.join(get_args(Lane))}")


def _check_range(name: str, value: int, least: int, most: int | None) -> None:
    if not isinstance(value, int) or value < least or (most is not None and value > most):
        raise ValueError(f"{name} must be {least} {'or more' if most is None else f'to {most}'}, not {value!r}")


class Sender:
    def __init__(
        self,
        http: httpx.AsyncClient,
        settings: ClientSettings,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._http = http
        self._settings = settings
        self._sleep = sleep

    async def send(self, request: HttpRequest) -> HttpReply:
        """The reply, after retries if necessary. Raises ClientError, with the exception of httpx as its cause."""
        max_retries = self._settings.max_retries if request.retries else 0
        last_s = time.monotonic() + RETRY_WITHIN_S
        retries = 0
        while True:
            try:
                return await self._once(request)
            except TryLater as error:
                own_s = min(FIRST_WAIT_S * 2.0**retries, LONGEST_WAIT_S)
                least_s = own_s if error.retry_after_s is None else error.retry_after_s
                wait_s = least_s * (1 + JITTER * random.random())  # noqa: S311
                if retries >= max_retries or time.monotonic() + wait_s > last_s:
                    raise
            await self._sleep(wait_s)
            retries += 1

    async def _once(self, request: HttpRequest) -> HttpReply:
        settings, request_id = self._settings, request.headers["x-request-id"]
        key = {} if settings.api_key is None else {"authorization": f"Bearer {settings.api_key}"}
        arguments: dict[str, Any] = {
            "url": settings.base_url.rstrip("/") + request.path,
            "headers": {**request.headers, **key},
            "content": request.content,
            "timeout": httpx.Timeout(settings.timeout_s, connect=min(CONNECT_S, settings.timeout_s)),
        }
        content = bytearray()
        try:
            async with (
                asyncio.timeout(settings.timeout_s),
                self._http.stream(request.method, **arguments) as response,
            ):
                length = response.headers.get("content-length", "")
                if length.isdecimal() and len(length) < 20:
                    self._check_size(int(length), request_id)
                async for chunk in response.aiter_bytes():
                    content += chunk
                    self._check_size(len(content), request_id)
        except httpx.RequestError as cause:
            raise from_exception(cause, request_id) from cause
        except TimeoutError:
            raise Timeout(TIMED_OUT, request_id=request_id) from None
        if request.statuses is None or response.status_code in request.statuses:
            return HttpReply(response.status_code, response.headers, bytes(content))
        error = from_response(response.status_code, response.headers, bytes(content))
        if request.part is not None and isinstance(error, BadRequest):
            request.part.place(error)
        raise error

    def _check_size(self, size_bytes: int, request_id: str) -> None:
        if size_bytes > self._settings.max_answer_bytes:
            raise ServerFailed(
                f"The response has more than max_answer_bytes, {self._settings.max_answer_bytes}: send fewer texts in "
                "a request, or raise the limit.",
                request_id=request_id,
            )


def limited(work: Callable[[In], Coroutine[Any, Any, A]], concurrency: int) -> Callable[[In], Coroutine[Any, Any, A]]:
    """`work`, of which so many run at once."""
    slots = asyncio.Semaphore(concurrency)

    async def run(request: In) -> A:
        async with slots:
            return await work(request)

    return run


async def in_order(
    work: Callable[[In], Coroutine[Any, Any, A]], requests: Iterable[In], concurrency: int
) -> AsyncGenerator[A]:
    """The result of each request, in the order of the requests, which are read a few in advance.

    So a call fails with the error of its first bad text, no matter which request failed first, and a list need not fit
    into memory. Closing the generator cancels the running tasks, and with them the server's work.
    """
    run = limited(work, concurrency)
    window: deque[asyncio.Task[A]] = deque()
    try:
        for request in requests:
            window.append(asyncio.create_task(run(request)))
            if len(window) == WINDOW * concurrency:
                yield await window[0]
                window.popleft()
        for result in window:
            yield await result
    finally:
        for result in window:
            result.cancel()
        await asyncio.gather(*window, return_exceptions=True)


# --- threads without an event loop ----------------------------------------------------------------------------


class _LoopThread:
    """An event loop in a daemon thread, which begins with the first call; a forked process begins another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, A]) -> Future[A]:
        with self._lock:
            loop = self._loop
            if loop is None or self._thread is None or not self._thread.is_alive():
                loop = self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="vectord-client", daemon=True)
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, loop)


_loop_thread = _LoopThread()


def run_blocking(work: Coroutine[Any, Any, A]) -> A:
    """The result of `work`, from a thread that waits for it. An interrupt of the wait cancels the work."""
    running = _loop_thread.submit(work)
    try:
        return running.result()
    finally:
        running.cancel()


def in_order_blocking(
    work: Callable[[In], Coroutine[Any, Any, A]], requests: Iterable[In], concurrency: int
) -> Generator[A]:
    """As `in_order`, for a caller's thread, which also reads the requests."""
    run = limited(work, concurrency)
    window: deque[Future[A]] = deque()
    try:
        for request in requests:
            window.append(_loop_thread.submit(run(request)))
            if len(window) == WINDOW * concurrency:
                yield window.popleft().result()
        while window:
            yield window.popleft().result()
    finally:
        for result in window:
            result.cancel()
