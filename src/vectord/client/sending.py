"""Requests over HTTP until they are answered, in threads and under asyncio. All that both do alike is elsewhere:
retrying.py says when to try again, failures.py what a failure is called."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias

import httpx

from vectord.client.errors import ClientError
from vectord.client.failures import failed, late, refused, too_large
from vectord.client.messages import Reply, Request
from vectord.client.settings import Settings

Pause: TypeAlias = Callable[[float], object]  # waits so many seconds; true: nobody wants the answer any more


class Sender:
    """Safe to use from several threads."""

    def __init__(self, http: httpx.Client, settings: Settings) -> None:
        self._http = http
        self._settings = settings
        self._key = _key(settings)

    def send(self, request: Request, pause: Pause = time.sleep) -> Reply:
        """The answer, after retries if need be. Raises ClientError."""
        began_s = time.monotonic()
        attempts = 0
        while True:
            attempts += 1
            try:
                return self._once(request)
            except ClientError as error:
                wait_s = self._settings.retries.wait_s(error, attempts, time.monotonic() - began_s)
                if not request.repeats or wait_s is None or pause(wait_s):
                    raise

    def _once(self, request: Request) -> Reply:
        """In a thread of its own, because httpx bounds each read alone: one that reads byte after byte of headers
        cannot be stopped, only be left."""
        deadline_s = time.monotonic() + self._settings.timeout_s
        answered: Future[Reply] = Future()
        exchange = partial(contextvars.copy_context().run, self._exchange, request, deadline_s)
        threading.Thread(target=_settle, args=(answered, exchange), name="vectord-request", daemon=True).start()
        try:
            return answered.result(self._settings.timeout_s)
        except TimeoutError:
            raise late(request.headers["x-request-id"]) from None

    def _exchange(self, request: Request, deadline_s: float) -> Reply:
        answer = Body(request, self._settings.max_answer_bytes)
        try:
            with self._http.stream(**_asked(request, self._settings, self._key)) as response:
                answer.begin(response)
                for chunk in response.iter_bytes():
                    answer.add(chunk)
                    if time.monotonic() > deadline_s:
                        raise late(request.headers["x-request-id"])
        except httpx.RequestError as cause:
            raise failed(cause, request.headers["x-request-id"]) from cause
        return answer.reply(response)


class AsyncSender:
    def __init__(
        self, http: httpx.AsyncClient, settings: Settings, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._http = http
        self._settings = settings
        self._sleep = sleep
        self._key = _key(settings)

    async def send(self, request: Request) -> Reply:
        """As Sender's."""
        began_s = time.monotonic()
        attempts = 0
        while True:
            attempts += 1
            try:
                return await self._once(request)
            except ClientError as error:
                wait_s = self._settings.retries.wait_s(error, attempts, time.monotonic() - began_s)
                if not request.repeats or wait_s is None:
                    raise
            await self._sleep(wait_s)

    async def _once(self, request: Request) -> Reply:
        answer = Body(request, self._settings.max_answer_bytes)
        try:
            async with (
                asyncio.timeout(self._settings.timeout_s),
                self._http.stream(**_asked(request, self._settings, self._key)) as response,
            ):
                answer.begin(response)
                async for chunk in response.aiter_bytes():
                    answer.add(chunk)
        except httpx.RequestError as cause:
            raise failed(cause, request.headers["x-request-id"]) from cause
        except TimeoutError:
            raise late(request.headers["x-request-id"]) from None
        return answer.reply(response)


class Body:
    """An answer's bytes as they come, up to so many."""

    def __init__(self, request: Request, limit_bytes: int) -> None:
        self._request = request
        self._limit_bytes = limit_bytes
        self._chunks: list[bytes] = []
        self._size_bytes = 0

    def begin(self, response: httpx.Response) -> None:
        """Raises ServerFailed for an answer that says that it is too large."""
        told = response.headers.get("content-length", "")
        if told.isdecimal() and len(told) < 20:
            self._check(int(told))

    def add(self, chunk: bytes) -> None:
        """Raises ServerFailed for one chunk too many."""
        self._size_bytes += len(chunk)
        self._check(self._size_bytes)
        self._chunks.append(chunk)

    def reply(self, response: httpx.Response) -> Reply:
        """Raises ClientError for a refusal."""
        content = b"".join(self._chunks)
        if response.status_code not in self._request.statuses:
            raise refused(response.status_code, response.headers, content)
        return Reply(response.status_code, response.headers, content)

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._limit_bytes:
            raise too_large(self._limit_bytes, self._request.headers["x-request-id"])


def _asked(request: Request, settings: Settings, key: Mapping[str, str]) -> dict[str, Any]:
    """What httpx's `stream` is called with."""
    return {
        "method": request.method,
        "url": settings.url_of(request.path),
        "headers": {**request.headers, **key},
        "content": request.content,
        "timeout": settings.timeout,
    }


def _settle(answered: Future[Reply], exchange: Callable[[], Reply]) -> None:
    try:
        answered.set_result(exchange())
    except BaseException as problem:
        answered.set_exception(problem)


def _key(settings: Settings) -> Mapping[str, str]:
    return {} if settings.api_key is None else {"authorization": f"Bearer {settings.api_key}"}
