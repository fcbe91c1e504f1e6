"""Requests over HTTP until they are answered, in threads and under asyncio. All that both do alike is elsewhere:
retrying.py says when to try again, failures.py what a failure is called."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import httpx

from vectord.client.errors import ClientError
from vectord.client.failures import failed, refused
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
        try:
            response = self._http.request(
                request.method,
                self._settings.url_of(request.path),
                headers={**request.headers, **self._key},
                content=request.content,
                timeout=self._settings.timeout,
            )
        except httpx.RequestError as cause:
            raise failed(cause, request.headers["x-request-id"]) from cause
        return _checked(request, response)


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
        try:
            response = await self._http.request(
                request.method,
                self._settings.url_of(request.path),
                headers={**request.headers, **self._key},
                content=request.content,
                timeout=self._settings.timeout,
            )
        except httpx.RequestError as cause:
            raise failed(cause, request.headers["x-request-id"]) from cause
        return _checked(request, response)


def _key(settings: Settings) -> Mapping[str, str]:
    return {} if settings.api_key is None else {"authorization": f"Bearer {settings.api_key}"}


def _checked(request: Request, response: httpx.Response) -> Reply:
    """Raises ClientError for a refusal."""
    if response.status_code not in request.statuses:
        raise refused(response.status_code, response.headers, response.content)
    return Reply(response.status_code, response.headers, response.content)
