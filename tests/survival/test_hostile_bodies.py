"""Hostile requests to the real server with the real model, while a normal client is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.attack.bodies import BODIES, HUNDRED_THOUSAND, INPUTS, openai_body, tei_body, vectord_body
from tests.real_server import running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that allows 100,000 inputs per request, so that small inputs run instead of being rejected."""
    log = tmp_path_factory.mktemp("hostile") / "log"
    options = ("--max-client-batch-size", str(HUNDRED_THOUSAND), "--max-queue-wait-s", "600")
    with running(log, *options) as (url, _):
        yield url


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
