"""Sends requests over HTTP until they succeed or fail for good, in threads (`Sender`) or with asyncio (`AsyncSender`).

All requests may be retried: none changes anything on the server.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, get_args

import httpx

from vectord.client.errors import (
    TIMED_OUT,
    BadRequest,
    ClientError,
    ServerFailed,
    Timeout,
    TryLater,
    from_exception,
    from_response,
)
from vectord.client.options import Lane
from vectord.client.requests import HttpReply, HttpRequest, PartLimits

CONNECT_S = 5.0
MAX_TIMEOUT_S = 86_400
MAX_ANSWER_BYTES = 2**30  # the default
MAX_CONCURRENCY = 100  # httpx's default number of connections

RETRY_WITHIN_S = 120.0  # of the first attempt; no attempt starts later
FIRST_WAIT_S = 0.5  # doubles with each attempt
LONGEST_WAIT_S = 8.0
JITTER = 0.25  # of a wait: clients that were refused together should not return together

Pause: TypeAlias = Callable[[float], object]  # sleeps for the seconds; returns true if the call was abandoned


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings of a client, which client.py documents. Raises ValueError for an invalid value."""

    base_url: str
    api_key: str | None = field(repr=False)
    timeout_s: float
    max_retries: int
    concurrency: int
    texts_per_request: int
    characters_per_request: int
    lane: Lane | None
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

    @property
    def part_limits(self) -> PartLimits:
        return PartLimits(texts=self.texts_per_request, characters=self.characters_per_request)

    def attempts(self, request: HttpRequest) -> Attempts:
        return Attempts(self.max_retries if request.retries else 0)

    def arguments(self, request: HttpRequest) -> dict[str, Any]:
        """The arguments of httpx's `stream`."""
        key = {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}
        return {
            "method": request.method,
            "url": self.base_url.rstrip("/") + request.path,
            "headers": {**request.headers, **key},
            "content": request.content,
            "timeout": httpx.Timeout(self.timeout_s, connect=min(CONNECT_S, self.timeout_s)),
        }


def _check_range(name: str, value: int, least: int, most: int | None) -> None:
    if not isinstance(value, int) or value < least or (most is not None and value > most):
        raise ValueError(f"{name} must be {least} {'or more' if most is None else f'to {most}'}, not {value!r}")


class Attempts:
    """Counts the attempts to send one request, and decides about the next one."""

    def __init__(self, max_retries: int, within_s: float = RETRY_WITHIN_S) -> None:
        self._max_retries = max_retries
        self._within_s = within_s
        self._started_s = time.monotonic()
        self._count = 0

    def wait_s(self, error: ClientError) -> float | None:
        """The seconds until the next attempt after `error`; None: the call fails with it."""
        self._count += 1
        if not isinstance(error, TryLater) or self._count > self._max_retries:
            return None
        own_s = min(FIRST_WAIT_S * 2.0 ** (self._count - 1), LONGEST_WAIT_S)
        least_s = own_s if error.retry_after_s is None else error.retry_after_s
        wait_s = least_s * (1 + JITTER * random.random())  # noqa: S311
        return wait_s if time.monotonic() - self._started_s + wait_s <= self._within_s else None


class Sender:
    """Safe to use from several threads."""

    def __init__(self, http: httpx.Client, settings: ClientSettings) -> None:
        self._http = http
        self._settings = settings

    def send(self, request: HttpRequest, pause: Pause = time.sleep) -> HttpReply:
        """The reply, after retries if necessary. Raises ClientError."""
        attempts = self._settings.attempts(request)
        while True:
            try:
                return self._once(request)
            except ClientError as error:
                wait_s = attempts.wait_s(error)
                if wait_s is None or pause(wait_s):
                    raise

    def _once(self, request: HttpRequest) -> HttpReply:
        # A thread of its own: httpx bounds each read alone, and a read that gets byte after byte of the headers cannot
        # be stopped, only abandoned.
        deadline_s = time.monotonic() + self._settings.timeout_s
        replied: Future[HttpReply] = Future()
        exchange = partial(contextvars.copy_context().run, self._exchange, request, deadline_s)
        threading.Thread(target=_settle, args=(replied, exchange), name="vectord-request", daemon=True).start()
        try:
            return replied.result(self._settings.timeout_s)
        except TimeoutError:
            raise _timed_out(request) from None

    def _exchange(self, request: HttpRequest, deadline_s: float) -> HttpReply:
        body = _ReplyBody(request, self._settings.max_answer_bytes)
        try:
            with self._http.stream(**self._settings.arguments(request)) as response:
                body.begin(response)
                for chunk in response.iter_bytes():
                    body.add(chunk)
                    if time.monotonic() > deadline_s:
                        raise _timed_out(request)
        except httpx.RequestError as cause:
            raise from_exception(cause, request.headers["x-request-id"]) from cause
        return body.reply(response)


class AsyncSender:
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
        """The reply, after retries if necessary. Raises ClientError."""
        attempts = self._settings.attempts(request)
        while True:
            try:
                return await self._once(request)
            except ClientError as error:
                wait_s = attempts.wait_s(error)
                if wait_s is None:
                    raise
            await self._sleep(wait_s)

    async def _once(self, request: HttpRequest) -> HttpReply:
        body = _ReplyBody(request, self._settings.max_answer_bytes)
        try:
            async with (
                asyncio.timeout(self._settings.timeout_s),
                self._http.stream(**self._settings.arguments(request)) as response,
            ):
                body.begin(response)
                async for chunk in response.aiter_bytes():
                    body.add(chunk)
        except httpx.RequestError as cause:
            raise from_exception(cause, request.headers["x-request-id"]) from cause
        except TimeoutError:
            raise _timed_out(request) from None
        return body.reply(response)


class _ReplyBody:
    """Collects the body of a response, up to a limit."""

    def __init__(self, request: HttpRequest, limit_bytes: int) -> None:
        self._request = request
        self._limit_bytes = limit_bytes
        self._chunks: list[bytes] = []
        self._size_bytes = 0

    def begin(self, response: httpx.Response) -> None:
        """Raises ServerFailed if the announced length exceeds the limit."""
        length = response.headers.get("content-length", "")
        if length.isdecimal() and len(length) < 20:
            self._check(int(length))

    def add(self, chunk: bytes) -> None:
        """Raises ServerFailed beyond the limit."""
        self._size_bytes += len(chunk)
        self._check(self._size_bytes)
        self._chunks.append(chunk)

    def reply(self, response: httpx.Response) -> HttpReply:
        """Raises ClientError for an error response."""
        content = b"".join(self._chunks)
        if response.status_code not in self._request.statuses:
            error = from_response(response.status_code, response.headers, content)
            if self._request.part is not None and isinstance(error, BadRequest):
                self._request.part.place(error)
            raise error
        return HttpReply(response.status_code, response.headers, content)

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._limit_bytes:
            raise ServerFailed(
                f"The response has more than max_answer_bytes, {self._limit_bytes}: send fewer texts in a request, or "
                "raise the limit.",
                request_id=self._request.headers["x-request-id"],
            )


def _timed_out(request: HttpRequest) -> ClientError:
    return Timeout(TIMED_OUT, request_id=request.headers["x-request-id"])


def _settle(replied: Future[HttpReply], exchange: Callable[[], HttpReply]) -> None:
    try:
        replied.set_result(exchange())
    except BaseException as problem:
        replied.set_exception(problem)
