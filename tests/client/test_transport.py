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
from hypothesis import given
from hypothesis import strategies as st
from tests.client.fakes import FakeServer

import vectord
from vectord.client import errors
from vectord.client.requests import HttpReply, HttpRequest
from vectord.client.transport import (
    CONNECT_S,
    JITTER,
    WINDOW,
    ClientSettings,
    Sender,
    in_order,
    in_order_blocking,
    run_blocking,
)

REQUEST = HttpRequest(path="/vectord/embed", headers={"x-request-id": "id-1", "accept": "x"}, content=b"body")
DONE = httpx.Response(200, content=b"done")


def full(retry_after: str | None = "3") -> httpx.Response:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return httpx.Response(429, headers=headers, json={"error": {"type": "overloaded", "message": "full"}})


def send(
    server: FakeServer, request: HttpRequest = REQUEST, *, chance: float = 0.0, **changed: Any
) -> tuple[HttpReply, Sequence[float]]:
    """The reply, and the waits between the attempts, on a clock that they alone move. chance: the random number."""
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    async def main() -> HttpReply:
        options = {"api_key": None, "timeout_s": 20.0, "max_answer_bytes": 1000, "max_retries": 8, **changed}
        async with httpx.AsyncClient(transport=httpx.MockTransport(server)) as http:
            own = ClientSettings(base_url="http://server/prefix/", **options)
            return await Sender(http, own, sleep).send(request)

    with (
        patch("vectord.client.transport.random.random", lambda: chance),
        patch("vectord.client.transport.time.monotonic", lambda: sum(waits)),
    ):
        return asyncio.run(main()), waits


@pytest.mark.parametrize("key", ["secret", None])
def test_the_request_is_sent_unchanged(key):
    """To its path under the base URL, with the key, and the timeouts of the settings: five seconds for connecting."""
    server = FakeServer([DONE])
    reply, waits = send(server, api_key=key)
    (sent,) = server.requests
    assert (sent.method, str(sent.url), sent.content) == ("POST", "http://server/prefix/vectord/embed", b"body")
    assert (sent.headers.get("authorization"), sent.headers["x-request-id"]) == (key and "Bearer secret", "id-1")
    assert sent.extensions["timeout"] == {"connect": CONNECT_S, "read": 20.0, "write": 20.0, "pool": 20.0}
    assert (reply.status, reply.body, waits) == (200, b"done", [])


@pytest.mark.parametrize(
    "fault",
    [
        full(),
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
    """By the same request, with the same id and bytes."""
    server = FakeServer([fault, fault, DONE])
    reply, waits = send(server)
    assert (reply.body, len(waits)) == (b"done", 2)
    assert len({(sent.headers["x-request-id"], sent.content) for sent in server.requests}) == 1


@pytest.mark.parametrize("status", [307, 400, 401, 403, 404, 412, 413, 422, 500, 504])
def test_a_permanent_failure_is_not_retried(status):
    """Other 4xx statuses, and failures of the server; a redirect is not followed with the key."""
    told = {"error": {"message": "failed"}}  # a 500 without it comes from a proxy
    server = FakeServer([httpx.Response(status, headers={"location": "http://elsewhere/"}, json=told)])
    with pytest.raises(errors.ClientError) as failed:
        send(server, api_key="secret")
    assert (failed.value.status, len(server.requests)) == (status, 1)


def test_a_timeout_is_not_retried():
    """The server would compute it twice."""
    server = FakeServer([httpx.ReadTimeout("late")])
    with pytest.raises(errors.Timeout) as failed:
        send(server)
    assert (failed.value.request_id, len(server.requests)) == ("id-1", 1)


def test_a_request_without_retries_is_sent_once():
    """Health is reported at once."""
    server = FakeServer([httpx.ConnectError("refused")])
    with pytest.raises(errors.ConnectionFailed):
        send(server, HttpRequest(method="GET", path="/health", headers={"x-request-id": "id-1"}, retries=False))
    assert len(server.requests) == 1


# --- retries --------------------------------------------------------------------------------------------------


def test_after_the_last_retry_the_error_is_that_of_the_server():
    """With its Retry-After."""
    server = FakeServer([full()] * 3)
    with pytest.raises(errors.Overloaded, match="full") as failed:
        send(server, max_retries=2)
    assert (failed.value.retry_after_s, len(server.requests)) == (3.0, 3)


def test_waits_double_up_to_the_longest():
    """Without Retry-After."""
    assert send(FakeServer([*[full(None)] * 7, DONE]))[1] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


@given(st.floats(0, 30), st.floats(0, 1), st.integers(1, 3))
def test_a_wait_is_never_shorter_than_retry_after(told_s, chance, attempts):
    """Jitter adds at most a quarter."""
    _, waits = send(FakeServer([*[full(str(told_s))] * attempts, DONE]), chance=chance)
    assert all(told_s <= wait_s <= told_s * (1 + JITTER) for wait_s in waits)


@pytest.mark.parametrize(("waits", "is_late"), [((60, 60), False), ((60, 60.1), True), ((3600,), True)], ids=str)
def test_no_attempt_starts_after_two_minutes(waits, is_late):
    """Counted from the first attempt, including waits."""
    server = FakeServer([*(full(str(wait_s)) for wait_s in waits), DONE])
    if not is_late:
        assert send(server)[0].body == b"done"
        return
    with pytest.raises(errors.Overloaded):
        send(server)
    assert len(server.requests) == len(waits)


# --- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url must begin with http"),
        ({"base_url": "ftp://host"}, "base_url must begin with http"),
        ({"base_url": "http://"}, "base_url must begin with http"),
        ({"base_url": "http://host:port"}, "base_url is no URL"),
        *[({"timeout_s": value}, "timeout_s must be above 0") for value in (0, float("nan"), float("inf"), "5")],
        *[({"max_answer_bytes": value}, "max_answer_bytes must be 1 or more") for value in (0, float("inf"))],
        *[({"max_retries": value}, "max_retries must be 0 or more") for value in (-1, float("nan"))],
        *[({"concurrency": value}, "concurrency must be 1 to 100") for value in (0, 101, 2.5)],
        ({"texts_per_request": 0}, "texts_per_request must be 1 or more"),
        ({"characters_per_request": 0}, "characters_per_request must be 1 or more"),
        ({"lane": "fast"}, "lane must be one of interactive, bulk"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_invalid_setting_is_named(settings, message):
    """With the valid range."""
    for kind in (vectord.Client, vectord.AsyncClient):
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
