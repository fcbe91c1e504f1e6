"""A request is sent until it is answered, by threads and under asyncio alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from vectord.client import errors
from vectord.client.requests import OK, Reply, Request
from vectord.client.transport import CONNECT_S, AsyncSender, Sender, Settings

ASKED = Request(path="/vectord/embed", headers={"x-request-id": "id-1", "accept": "x"}, content=b"body")
DONE = httpx.Response(200, content=b"done")
FULL = httpx.Response(429, headers={"retry-after": "3"}, json={"error": {"type": "overloaded", "message": "full"}})


def settings(**changed: Any) -> Settings:
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
    return Settings(**{**facts, **changed})


def again(response: httpx.Response) -> httpx.Response:
    """A response can be read by one client only."""
    return httpx.Response(response.status_code, headers=response.headers, content=response.content)


class Script:
    """Gives its steps in turn, and remembers what it was sent."""

    def __init__(self, *steps: Exception | httpx.Response) -> None:
        self.requests: list[httpx.Request] = []
        self._steps = list(steps)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return again(step)


Send = Callable[..., tuple[Reply, Sequence[float]]]


def _send(script: Script, request: Request = ASKED, **changed: Any) -> tuple[Reply, Sequence[float]]:
    waits: list[float] = []
    with httpx.Client(transport=httpx.MockTransport(script)) as http:
        return Sender(http, settings(**changed)).send(request, waits.append), waits


def _send_async(script: Script, request: Request = ASKED, **changed: Any) -> tuple[Reply, Sequence[float]]:
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    async def main() -> Reply:
        async with httpx.AsyncClient(transport=httpx.MockTransport(script)) as http:
            return await AsyncSender(http, settings(**changed), sleep).send(request)

    return asyncio.run(main()), waits


@pytest.fixture(params=[_send, _send_async], ids=["threads", "asyncio"])
def send(request: pytest.FixtureRequest) -> Send:
    return request.param


def test_the_request_goes_out_as_it_is(send):
    """To its path under the base URL, with the key."""
    script = Script(DONE)
    reply, waits = send(script, api_key="secret")
    (sent,) = script.requests
    assert (sent.method, str(sent.url), sent.content) == ("POST", "http://server/prefix/vectord/embed", b"body")
    assert (sent.headers["authorization"], sent.headers["x-request-id"]) == ("Bearer secret", "id-1")
    assert (reply.status, reply.body, waits) == (200, b"done", [])


def test_a_client_without_a_key_sends_none(send):
    """No empty header either."""
    script = Script(DONE)
    send(script)
    assert "authorization" not in script.requests[0].headers


def test_the_time_limits_are_those_of_the_settings(send):
    """Of the connection at most five seconds."""
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
def test_what_may_pass_is_sent_again_and_answered(send, fault):
    """The caller notices the wait alone."""
    script = Script(fault, fault, DONE)
    reply, waits = send(script)
    assert (reply.body, len(waits)) == (b"done", 2)


def test_every_attempt_is_the_same_request(send):
    """One id in the server's log, the same bytes."""
    script = Script(FULL, httpx.ReadError("reset"), DONE)
    send(script)
    assert len({(sent.headers["x-request-id"], sent.content) for sent in script.requests}) == 1


def test_the_wait_is_the_servers(send):
    """Retry-After, and a little more."""
    _, waits = send(Script(FULL, DONE))
    assert 3.0 <= waits[0] <= 3.75


@pytest.mark.parametrize("status", [400, 401, 403, 404, 412, 413, 422, 500, 504])
def test_what_will_fail_again_is_sent_once(send, status):
    """No other status of the fours, and no failure of the server itself."""
    script = Script(httpx.Response(status))
    with pytest.raises(errors.ClientError) as failed:
        send(script)
    assert (failed.value.status, len(script.requests)) == (status, 1)


def test_a_late_answer_is_not_asked_for_again(send):
    """The server would compute it twice."""
    script = Script(httpx.ReadTimeout("late"))
    with pytest.raises(errors.Timeout) as failed:
        send(script)
    assert (failed.value.request_id, len(script.requests)) == ("id-1", 1)


def test_after_the_last_retry_the_error_is_the_servers(send):
    """With what it said about waiting."""
    script = Script(*[FULL] * 3)
    with pytest.raises(errors.Overloaded, match="full") as failed:
        send(script, max_retries=2)
    assert (failed.value.retry_after_s, len(script.requests)) == (3.0, 3)


def test_a_wait_beyond_all_patience_is_not_begun(send):
    """The caller hears at once."""
    script = Script(httpx.Response(429, headers={"retry-after": "3600"}))
    with pytest.raises(errors.Overloaded):
        send(script)
    assert len(script.requests) == 1


def test_a_status_that_the_request_expects_is_an_answer(send):
    """As /health's 503."""
    asked = Request(method="GET", path="/health", headers={"x-request-id": "id-1"}, statuses=OK | {503})
    reply, waits = send(Script(httpx.Response(503, content=b"not ready")), asked)
    assert (reply.status, reply.body, waits) == (503, b"not ready", [])


def test_a_request_that_asks_once_is_sent_once(send):
    """Whoever asks how the server is does not want to wait until it is well."""
    script = Script(httpx.ConnectError("refused"))
    with pytest.raises(errors.ConnectionFailed):
        send(script, Request(method="GET", path="/health", headers={"x-request-id": "id-1"}, retries=False))
    assert len(script.requests) == 1


def test_a_redirect_is_not_followed(send):
    """The key is for this server."""
    script = Script(httpx.Response(307, headers={"location": "http://elsewhere/"}))
    with pytest.raises(errors.ServerFailed, match="status 307"):
        send(script, api_key="secret")
    assert len(script.requests) == 1


def test_a_pause_that_nobody_waits_for_ends_the_retries():
    """In threads, whose call has failed elsewhere meanwhile."""
    script = Script(FULL)
    with httpx.Client(transport=httpx.MockTransport(script)) as http, pytest.raises(errors.Overloaded):
        Sender(http, settings()).send(ASKED, lambda wait_s: True)
    assert len(script.requests) == 1
