"""More requests than the server can answer: texts, large batches, rejected ones, and expensive pages."""

from __future__ import annotations

import itertools
import json

from tests.attack.target import Attempt, Target

EXPECTED = frozenset({200, 429, 503})
PAGES = (
    "/docs",
    "/docs/swagger-ui-bundle.js",
    "/docs/swagger-ui.css",
    "/openapi.json",
    "/metrics",
    "/console",
    "/",
    "/health",
    "/info",
    "/v1/models",
)
_numbers = itertools.count()


async def request_flood(target: Target, attempt: Attempt) -> None:
    """Short texts on many connections, each sent as soon as the previous one is answered."""

    async def one(number: int) -> None:
        text = json.dumps({"input": f"flood {next(_numbers)}"}).encode()
        _count(attempt, (await target.ask(target.post("/v1/embeddings", text))).status, EXPECTED)

    await attempt.crowd(one)


async def batch_flood(target: Target, attempt: Attempt) -> None:
    """Requests of 32 texts of 100 words."""

    async def one(number: int) -> None:
        texts = [f"{next(_numbers)} " + "words " * 100 for _ in range(32)]
        body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
        _count(attempt, (await target.ask(target.post("/v1/embeddings", body), 120)).status, EXPECTED)

    await attempt.crowd(one, min(attempt.connections // 2, 64))


async def page_flood(target: Target, attempt: Attempt) -> None:
    """Every page, compressed and not, on many connections. Pages may need a key."""

    async def one(number: int) -> None:
        path = PAGES[attempt.tried % len(PAGES)]
        reply = await target.ask(target.get(path, "Accept-Encoding: gzip\r\n" if number % 2 else ""))
        _count(attempt, reply.status, EXPECTED | {301, 302, 307, 308, 401, 404})

    await attempt.crowd(one, min(attempt.connections, 64))


async def rejection_flood(target: Target, attempt: Attempt) -> None:
    """Requests that cannot succeed: unknown paths, unknown models, wrong methods."""
    requests = (
        target.get("/no/such/path"),
        target.post("/v1/embeddings", b'{"input": "a", "model": "no/such-model"}'),
        target.get("/v1/embeddings"),
        target.post("/v1/embeddings", b'{"input": [1.5]}'),
    )

    async def one(number: int) -> None:
        reply = await target.ask(requests[attempt.tried % len(requests)])
        _count(attempt, reply.status, frozenset({400, 401, 404, 405, 422, 429, 503}))

    await attempt.crowd(one, min(attempt.connections, 64))


def _count(attempt: Attempt, status: int, expected: frozenset[int]) -> None:
    attempt.saw(status)
    if status not in expected:
        attempt.fault(f"answered {status}")


ATTACKS = (request_flood, batch_flood, page_flood, rejection_flood)
