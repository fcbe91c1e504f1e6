"""Hostile requests to the real server with the real model, while a normal client is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.attack.bodies import BODIES, HUNDRED_THOUSAND, INPUTS, requests_of
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


def check_error(path: str, answer: httpx.Response) -> None:
    """In the form of the API."""
    if path == "/embed":
        assert answer.text
        if answer.headers["content-type"].startswith("application/json"):
            assert set(answer.json()) >= {"error", "error_type"}  # and the keys of other formats, if no key is TEI's
        return
    error, of_openai = answer.json()["error"], {"message", "type", "param", "code"}
    keys = of_openai if path == "/v1/embeddings" else {"type", "message", "field", "index", "limit", "given"}
    assert error["message"] and error["type"] and set(error) == keys


@pytest.mark.parametrize("name", [*INPUTS, *BODIES])
async def test_hostile_bodies_affect_no_other_client(server, name):
    """Also those whose inputs are hostile. The response is an error in the API's format."""
    async with polite_client(server):
        for path, body, status in requests_of(name):
            answer = await post(server, path, body)
            assert answer.status_code == status, answer.text[:300]
            assert answer.headers["x-request-id"]
            if status != 200:
                check_error(path, answer)
