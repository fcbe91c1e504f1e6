"""transport.py: settings, retries and timeouts, and results in the order of the requests."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Sequence
from contextlib import aclosing, closing
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vectord
from vectord.client import errors
from vectord.client.errors import ClientError, Overloaded
from vectord.client.requests import HttpReply, HttpRequest
from vectord.client.transport import (
    CONNECT_S,
    FIRST_WAIT_S,
    JITTER,
    LONGEST_WAIT_S,
    WINDOW,
    Attempts,
    ClientSettings,
    Sender,
    in_order,
    in_order_blocking,
    run_blocking,
)

ASKED = HttpRequest(path="/vectord/embed", headers={"x-request-id": "id-1", "accept": "x"}, content=b"body")
DONE = httpx.Response(200, content=b"done")
FULL = httpx.Response(429, headers={"retry-after": "3"}, json={"error": {"type": "overloaded", "message": "full"}})


def settings_of(**changed: Any) -> ClientSettings:
    facts: dict[str, Any] = {
        "base_url": "http://server/prefix/",
        "api_key": None,
        "timeout_s": 20.0,
        "max_answer_bytes": 1000,
        "max_retries": 8,
        "concurrency": 4,
        "texts_per_request": 64,
        "characters_per_request": 1000,
        "lane": None,
    }
    return ClientSettings(**{**facts, **changed})


def again(response: httpx.Response) -> httpx.Response:
    """A response can be read by one client only."""
    return httpx.Response(response.status_code, headers=response.headers, content=response.content)


class Script:
    """A server that makes these steps one after another. requests: the received ones."""

    def __init__(self, *steps: Exception | httpx.Response) -> None:
        self.requests: list[httpx.Request] = []
        self._steps = list(steps)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return again(step)


def send(script: Script, request: HttpRequest = ASKED, **changed: Any) -> tuple[HttpReply, Sequence[float]]:
    """The reply, and the waits between the attempts."""
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    async def main() -> HttpReply:
        async with httpx.AsyncClient(transport=httpx.MockTransport(script)) as http:
            return await Sender(http, settings_of(**changed), sleep).send(request)

    return asyncio.run(main()), waits


def test_the_request_is_sent_unchanged():
    """To its path under the base URL, with the key."""
    script = Script(DONE)
    reply, waits = send(script, api_key="secret")
    (sent,) = script.requests
    assert (sent.method, str(sent.url), sent.content) == ("POST", "http://server/prefix/vectord/embed", b"body")
    assert (sent.headers["authorization"], sent.headers["x-request-id"]) == ("Bearer secret", "id-1")
    assert (reply.status, reply.body, waits) == (200, b"done", [])


def test_a_client_without_a_key_sends_no_header():
    """Not even an empty one."""
    script = Script(DONE)
    send(script)
    assert "authorization" not in script.requests[0].headers


def test_the_timeouts_are_those_of_the_settings():
    """At most five seconds for connecting."""
    script = Script(DONE)
    send(script, timeout_s=20.0)
    expected = {"connect": CONNECT_S, "read": 20.0, "write": 20.0, "pool": 20.0}
    assert script.requests[0].extensions["timeout"] == expected


@pytest.mark.parametrize(
    "fault",
    [
        FULL,
        httpx.Response(503, headers={"retry-after": "3"}),
        httpx.Response(502),
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("late"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("cut off"),
    ],
    ids=["429", "503", "502", "refused", "connection timed out", "reset", "cut off"],
)
def test_a_temporary_failure_is_retried(fault):
    """The caller notices only the delay."""
    script = Script(fault, fault, DONE)
    reply, waits = send(script)
    assert (reply.body, len(waits)) == (b"done", 2)


def test_every_attempt_is_the_same_request():
    """With the same id and the same bytes."""
    script = Script(FULL, httpx.ReadError("reset"), DONE)
    send(script)
    assert len({(sent.headers["x-request-id"], sent.content) for sent in script.requests}) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 412, 413, 422, 500, 504])
def test_a_permanent_failure_is_not_retried(status):
    """Other 4xx statuses, and failures of the server."""
    script = Script(httpx.Response(status))
    with pytest.raises(errors.ClientError) as failed:
        send(script)
    assert (failed.value.status, len(script.requests)) == (status, 1)


def test_a_timeout_is_not_retried():
    """The server would compute it twice."""
    script = Script(httpx.ReadTimeout("late"))
    with pytest.raises(errors.Timeout) as failed:
        send(script)
    assert (failed.value.request_id, len(script.requests)) == ("id-1", 1)


def test_after_the_last_retry_the_error_is_that_of_the_server():
    """With its Retry-After."""
    script = Script(*[FULL] * 3)
    with pytest.raises(errors.Overloaded, match="full") as failed:
        send(script, max_retries=2)
    assert (failed.value.retry_after_s, len(script.requests)) == (3.0, 3)


def test_a_request_without_retries_is_sent_once():
    """Health is reported at once."""
    script = Script(httpx.ConnectError("refused"))
    with pytest.raises(errors.ConnectionFailed):
        send(script, HttpRequest(method="GET", path="/health", headers={"x-request-id": "id-1"}, retries=False))
    assert len(script.requests) == 1


def test_a_redirect_is_not_followed():
    """The key belongs to this server."""
    script = Script(httpx.Response(307, headers={"location": "http://elsewhere/"}))
    with pytest.raises(errors.ServerFailed, match="status 307"):
        send(script, api_key="secret")
    assert len(script.requests) == 1


# --- retries --------------------------------------------------------------------------------------------------


def wait_after(
    error: ClientError,
    attempts: int = 1,
    elapsed_s: float = 0.0,
    *,
    chance: float = 0.0,
    max_retries: int = 20,
    within_s: float = 100.0,
) -> float | None:
    """The wait after this many failed attempts; chance: the random number, from 0 to 1."""
    now_s = iter([0.0, *[elapsed_s] * attempts])
    with (
        patch("vectord.client.transport.random.random", lambda: chance),
        patch("vectord.client.transport.time.monotonic", lambda: next(now_s)),
    ):
        counted = Attempts(max_retries, within_s)
        return [counted.wait_s(error) for _ in range(attempts)][-1]


def overloaded(retry_after_s: float | None = None) -> Overloaded:
    error = Overloaded("full")
    error.retry_after_s = retry_after_s
    return error


def test_waits_double_up_to_the_longest():
    """Without Retry-After."""
    waits = [wait_after(overloaded(), attempts) for attempts in range(1, 8)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert (waits[0], waits[-1]) == (FIRST_WAIT_S, LONGEST_WAIT_S)


@given(st.floats(0, 50), st.floats(0, 1), st.integers(1, 20))
@settings(deadline=None)
def test_a_wait_is_never_shorter_than_retry_after(told_s, chance, attempts):
    """Jitter adds at most a quarter."""
    wait_s = wait_after(overloaded(told_s), attempts, chance=chance)
    assert told_s <= wait_s <= told_s * (1 + JITTER)


def test_no_attempt_starts_after_the_time_limit():
    """The time counts from the first attempt, including waits."""
    assert wait_after(overloaded(4), elapsed_s=6.0, within_s=10) == 4
    assert wait_after(overloaded(4), elapsed_s=6.1, within_s=10) is None
    assert wait_after(overloaded(3600), within_s=10) is None


# --- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url must begin with http"),
        ({"base_url": "ftp://host"}, "base_url must begin with http"),
        ({"base_url": "http://"}, "base_url must begin with http"),
        ({"base_url": "http://host:port"}, "base_url is no URL"),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"timeout_s": float("nan")}, "timeout_s must be above 0"),
        ({"timeout_s": float("inf")}, "timeout_s must be above 0"),
        ({"timeout_s": -1.0}, "timeout_s must be above 0"),
        ({"timeout_s": "5"}, "timeout_s must be above 0"),
        ({"max_answer_bytes": 0}, "max_answer_bytes must be 1 or more"),
        ({"max_answer_bytes": float("inf")}, "max_answer_bytes must be 1 or more"),
        ({"max_retries": float("nan")}, "max_retries must be 0 or more"),
        ({"concurrency": 2.5}, "concurrency must be 1 to 100"),
        ({"max_retries": -1}, "max_retries must be 0 or more"),
        ({"concurrency": 0}, "concurrency must be 1 to 100"),
        ({"concurrency": 101}, "concurrency must be 1 to 100"),
        ({"texts_per_request": 0}, "texts_per_request must be 1 or more"),
        ({"characters_per_request": 0}, "characters_per_request must be 1 or more"),
        ({"lane": "fast"}, "lane must be one of interactive, bulk"),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("kind", [vectord.Client, vectord.AsyncClient])
def test_an_invalid_setting_is_named(kind, settings, message):
    """With the valid range."""
    with pytest.raises(ValueError, match=message):
        kind(**settings)


def test_the_key_is_not_shown():
    """repr() may be logged."""
    with vectord.Client("http://host", api_key="secret") as client:
        assert repr(client) == "Client('http://host')"
        assert "secret" not in repr(vars(client))


# --- order ----------------------------------------------------------------------------------------------------


def ordered_blocking(work, requests, concurrency):
    return list(in_order_blocking(work, requests, concurrency))


def ordered(work, requests, concurrency):
    async def main():
        return [result async for result in in_order(work, requests, concurrency)]

    return asyncio.run(main())


@pytest.fixture(params=[ordered_blocking, ordered], ids=["threads", "asyncio"])
def results_of(request):
    return request.param


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_results_are_in_order(results_of, concurrency):
    """Regardless of how long each request takes, and with limited concurrency."""
    now, most = 0, 0

    async def work(turns):
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(turns):
            await asyncio.sleep(0)
        now -= 1
        return turns * 2

    numbers = [3, 0, 5, 1, 0, 0, 4, 2, 5, 0]
    assert results_of(work, numbers, concurrency) == [n * 2 for n in numbers]
    assert most <= concurrency


def test_a_slow_request_does_not_delay_others(results_of):
    """The second and third finish while the first is running."""
    done = []

    async def work(n):
        while n == 0 and len(done) < 2:
            await asyncio.sleep(0)
        done.append(n)
        return n

    assert results_of(work, range(3), 2) == [0, 1, 2]
    assert done == [1, 2, 0]


async def doubled(n):
    return n * 2


async def test_an_endless_list_is_read_in_a_window():
    """It is read only while results are consumed."""
    read = itertools.count()
    async with aclosing(in_order(doubled, read, 3)) as results:
        assert await anext(results) == 0
        assert next(read) == WINDOW * 3
    read = itertools.count()
    with closing(in_order_blocking(doubled, read, 3)) as results:
        assert next(results) == 0
        assert next(read) == WINDOW * 3


def test_the_error_is_that_of_the_first_request_in_order(results_of):
    """Although the second one failed earlier. The running requests are cancelled."""
    failed, cancelled = [], threading.Event()

    async def work(n):
        if n == 2:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        while n == 0 and not failed:
            await asyncio.sleep(0)
        failed.append(n)
        raise ValueError(f"request {n}")

    with pytest.raises(ValueError, match="request 0"):
        results_of(work, range(3), 3)
    assert cancelled.wait(10)


def test_an_interrupt_of_the_wait_cancels_the_work():
    """The connection is closed, and the server drops the texts."""
    begun, cancelled = threading.Event(), threading.Event()

    async def work():
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    class Interrupted(BaseException):
        pass

    def interrupt(*_):
        assert begun.wait(10)
        raise Interrupted

    with patch("concurrent.futures.Future.result", interrupt), pytest.raises(Interrupted):
        run_blocking(work())
    assert cancelled.wait(10)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_an_event_loop_of_its_own():
    """The parent's thread does not exist there."""
    assert run_blocking(doubled(1)) == 2
    child = os.fork()
    if child == 0:
        os._exit(run_blocking(doubled(21)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
