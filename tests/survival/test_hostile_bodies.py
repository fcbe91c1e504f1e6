"""Hostile requests to the real server with the real model, while a normal client is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.real_server import running

HUNDRED_THOUSAND = 100_000
SHORT = {"dimensions": 1, "force_dimensions": True}  # responses of one number each


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that allows 100,000 inputs per request, so that small inputs run instead of being rejected."""
    log = tmp_path_factory.mktemp("hostile") / "log"
    options = ("--max-client-batch-size", str(HUNDRED_THOUSAND), "--max-queue-wait-s", "600")
    with running(log, *options) as (url, _):
        yield url


def openai_body(value: object) -> bytes:
    return json.dumps({"input": value, "truncate": True, **SHORT}).encode()


def tei_body(value: object) -> bytes:
    return json.dumps({"inputs": value, **SHORT}).encode()


def vectord_body(value: object) -> bytes:
    return json.dumps({"inputs": value, "truncate": True, **SHORT}).encode()


# Hostile inputs, and the statuses in OpenAI's and TEI's API.
INPUTS: dict[str, tuple[object, int, int]] = {
    "empty string": ("", 200, 400),
    "whitespace": (" \t\n ", 200, 200),
    "no inputs": ([], 400, 400),
    "10 MB word": ("x" * 10_000_000, 200, 200),
    "NUL": ("a\0b", 200, 200),
    "control characters": ("".join(map(chr, range(32))), 200, 200),
    "100,000 tiny inputs": (["a"] * HUNDRED_THOUSAND, 200, 200),
    "100,001 tiny inputs": (["a"] * (HUNDRED_THOUSAND + 1), 400, 422),
    "token id out of range": ([101, 30_522, 102], 400, 422),
    "negative token id": ([101, -1, 102], 400, 422),
    "huge token id": ([10**30], 400, 422),
    "fractional token id": ([1.5], 400, 422),
    "true as token id": ([True], 400, 422),
    "null": (None, 400, 422),
    "number": (7, 400, 422),
    "object": ({"a": "b"}, 400, 422),
    "list of nulls": ([None, None], 400, 422),
    "lists in lists in lists": ([[["a"]]], 400, 422),
    "one wrong among many": (["a", "b", 3.5], 400, 422),
}
# Hostile bodies, and the statuses.
BODIES: dict[str, tuple[bytes, int, int]] = {
    "nothing": (b"", 400, 400),
    "cut off": (b'{"input": "hello', 400, 400),
    "lone surrogate": (b'{"input": "\\ud800", "inputs": "\\ud800"}', 400, 400),
    "not UTF-8": (b'{"input": "\xff\xfe", "inputs": "\xff"}', 400, 400),
    "deep lists": (b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, 400),
    "deep objects": (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, 400, 400),
    "NaN": (b'{"input": NaN, "inputs": NaN}', 400, 400),
    "a list": (b"[]", 400, 422),
    "a string": (b'"input"', 400, 422),
    "huge exponent": (b'{"input": [1e999], "inputs": [1e999]}', 400, 422),
    "wrong types everywhere": (
        b'{"input": "a", "inputs": "a", "model": 3, "dimensions": "x", "encoding_format": [], "truncate": "maybe"}',
        400,
        422,
    ),
}


@asynccontextmanager
async def polite_client(url: str) -> AsyncIterator[list[int]]:
    """Sends short requests continuously; yields their statuses, which must all be 200."""
    statuses: list[int] = []
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def ask() -> None:
            while True:
                answer = await client.post("/v1/embeddings", json={"input": f"a polite question {len(statuses)}"})
                statuses.append(answer.status_code)

        task = asyncio.create_task(ask())
        try:
            yield statuses
        finally:
            while not statuses and not task.done():
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert statuses and set(statuses) == {200}


async def post(url: str, path: str, body: bytes) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        return await client.post(path, content=body)


def check_openai(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text[:300]
    if status != 200:
        error = answer.json()["error"]
        assert error["message"] and error["type"] and set(error) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]


def check_vectord(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text[:300]
    if status != 200:
        error = answer.json()["error"]
        assert error["message"] and set(error) == {"type", "message", "field", "index", "limit", "given"}
    assert answer.headers["x-request-id"]


def check_tei(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text[:300]
    if status != 200 and answer.headers["content-type"].startswith("application/json"):
        assert set(answer.json()) >= {"error", "error_type"}  # and the keys of other formats, if no key is TEI's
    assert status == 200 or answer.text
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("name", INPUTS)
async def test_hostile_inputs_affect_no_other_client(server, name):
    """The response is an error in the API's format, and no other request is affected."""
    value, openai_status, tei_status = INPUTS[name]
    async with polite_client(server):
        check_openai(await post(server, "/v1/embeddings", openai_body(value)), openai_status)
        check_tei(await post(server, "/embed", tei_body(value)), tei_status)
        check_vectord(await post(server, "/vectord/embed", vectord_body(value)), openai_status)


@pytest.mark.parametrize("name", BODIES)
async def test_hostile_bodies_affect_no_other_client(server, name):
    """The same holds for bodies that are not requests."""
    body, openai_status, tei_status = BODIES[name]
    async with polite_client(server):
        check_openai(await post(server, "/v1/embeddings", body), openai_status)
        check_tei(await post(server, "/embed", body), tei_status)
        check_vectord(await post(server, "/vectord/embed", body), openai_status)
