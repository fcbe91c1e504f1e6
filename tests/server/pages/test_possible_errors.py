"""Every error message in the OpenAPI document is one that the server sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from tests.server.asgi import call
from tests.server.fakes import FakeEngine
from tests.server.live import Reply

from vectord.config import ServerConfig
from vectord.products.common.dialect import Dialect, all_dialects
from vectord.schema import Caller, Request, Result
from vectord.server.http.app import build_table, create_app
from vectord.server.http.hardening import body as module
from vectord.server.http.routing import Choice, Endpoint
from vectord.server.pages.openapi import openapi
from vectord.server.pages.possible_errors import EXAMPLE_RATE, invalid_bodies
from vectord.server.pipeline import Shutdown

KEYS = ServerConfig(api_key="key", admin_key="admin")
KEY = {"authorization": "Bearer key"}
ADMIN = {"authorization": "Bearer admin"}


@pytest.mark.parametrize("dialect", all_dialects(), ids=lambda dialect: dialect.name)
async def test_each_example_of_an_error_is_sent(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each path, requests that provoke every kind of error."""
    monkeypatch.setattr(module, "MIN_BYTES_S", 0.01)
    table = build_table(FakeEngine(), [dialect], Shutdown(), None)
    described = openapi(table, "0")["paths"]
    for endpoint in table:
        if endpoint.page is not None:
            continue
        path = endpoint.path.replace(":path}", "}")
        shown = set(_examples(described[path][endpoint.method.lower()]["responses"]))
        sent = {_identity(reply) async for reply in provoked(dialect, endpoint)}
        assert shown <= sent, (endpoint.method, path, [json.loads(text) for _, text in shown - sent])


def _examples(responses: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    for status, response in responses.items():
        for content in response.get("content", {}).values() if status[0] in "45" else ():
            for example in content.get("examples", {}).values():
                yield int(status), json.dumps(_message(example["value"]))


def _identity(reply: Reply) -> tuple[int, str]:
    is_json = reply.headers.get("content-type") == "application/json"
    return reply.status, json.dumps(_message(reply.json if is_json else reply.body.decode()))


def _message(value: Any) -> Any:
    """Without ids, which differ by request."""
    if isinstance(value, dict):
        return {key: _message(item) for key, item in value.items() if key not in ("id", "request_id")}
    return [_message(item) for item in value] if isinstance(value, list) else value


async def provoked(dialect: Dialect, endpoint: Endpoint) -> AsyncIterator[Reply]:
    choice: Choice = endpoint.choices[0]
    method, path = endpoint.method, endpoint.path.replace("{model:path}", "m").replace("{model}", "m")
    keyed = create_app(FakeEngine(), [dialect], KEYS)
    yield await call(keyed, method, path, headers={"x-api-key": "wrong"})
    yield await call(keyed, method, path, headers=KEY)
    key = ADMIN if endpoint.admin else KEY
    yield await call(create_app(FakeEngine(), [dialect], ServerConfig()), method, path)
    example = b"" if choice.route.example is None else json.dumps(choice.route.example).encode()
    bodies = list(invalid_bodies(choice.route)) if method == "POST" else []
    for other in endpoint.choices[1:]:
        bodies += invalid_bodies(other.route)
    for body in bodies:
        yield await call(keyed, method, path, body, headers=key)
    for headers in (
        {"content-length": str(2**40)},
        {"content-type": "image/png"},
        {"accept": "application/octet-stream;dtype=int3"},
        {"x-vectord-lane": ""},
    ):
        yield await call(keyed, method, path, example, headers={**key, **headers})
    if method != "GET":
        yield await _stalled(keyed, method, path, key)
    limits = {"rate_limit_requests_per_minute": EXAMPLE_RATE.amount, "rate_limit_burst_size": 1}
    limited = create_app(FakeEngine(), [dialect], ServerConfig(api_key="key", admin_key="admin", **limits))
    for app in (create_app(Failing(), [dialect], KEYS), limited):
        # Together, because on a busy machine the bucket refills between two calls.
        for reply in await asyncio.gather(*(call(app, method, path, example, headers=key) for _ in range(8))):
            yield reply
    keyed.state.shutdown.begin()
    yield await call(keyed, method, path, example, headers=key)


class Failing(FakeEngine):
    async def answer(self, request: Request, caller: Caller) -> Result:
        raise RuntimeError("unexpected")


async def _stalled(app: Any, method: str, path: str, headers: Mapping[str, str]) -> Reply:
    """The reply to a body that stops after its first part."""
    sent: list[dict[str, Any]] = []
    parts = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> dict[str, Any]:
        for part in parts:
            return part
        await asyncio.Event().wait()
        raise AssertionError("cancelled by the time limit")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    encoded = [(name.encode(), value.encode()) for name, value in {**headers, "content-length": "9"}.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": encoded, "http_version": "2"}
    await app(scope, receive, send)
    shown = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], shown, b"".join(message.get("body", b"") for message in sent[1:]))
