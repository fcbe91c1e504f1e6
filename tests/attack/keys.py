"""Requests without the right key."""

from __future__ import annotations

import asyncio
import json
import re

from tests.attack.target import Attempt, Reply, Target

DISGUISES = (
    "{}", "{}/", "/{}", "{}?key=x", "{}#/health/live", "/health/live/..{}", "/health/live/%2e%2e{}", "{};/health/live",
    "/dialects/openai{}", "/openai{}", "{}%00", "{}%20", "http://x{}", "/.{}", "/%2f{}",
)  # fmt: skip
HEADERS = (
    "", "Authorization: Bearer \r\n", "Authorization: Bearer wrong\r\n", "Authorization: Basic Og==\r\n",
    "Authorization: Bearer null\r\n", "X-API-Key: wrong\r\n", "api-key: \r\n", "X-Original-URL: /health/live\r\n",
    "X-Rewrite-URL: /health/live\r\n", "X-HTTP-Method-Override: GET\r\n", "X-Forwarded-For: 127.0.0.1\r\n",
    "Authorization: Bearer wrong\r\nAuthorization: Bearer wrong\r\n", "Cookie: key=wrong\r\n",
)  # fmt: skip
METHODS = ("POST", "GET", "PUT", "OPTIONS", "post", "POST ")
PATHS = 60  # of the documented ones
ALWAYS = ("/v1/embeddings", "/embed", "/rerank", "/tokenize")


async def key_bypass(target: Target, attempt: Attempt) -> None:
    """Disguised paths, methods and headers without a valid key."""
    if not target.keys:
        attempt.skipped = "no --key"
        return
    listing = await target.ask(target.get("/openapi.json", target.authorization()))
    paths = [path for path in json.loads(listing.body)["paths"] if "{" not in path and "health" not in path]
    chosen = target.chance.sample(paths, min(len(paths), PATHS))
    replies = await asyncio.gather(*(target.ask(target.get(path)) for path in chosen))
    private = [path for path, reply in zip(chosen, replies, strict=True) if reply.status != 200] + list(ALWAYS)
    body = json.dumps({"input": "secret", "inputs": "secret", "texts": ["secret"]}).encode()

    async def one(number: int) -> None:
        path = target.chance.choice(DISGUISES).format(target.chance.choice(private))
        method, headers = target.chance.choice(METHODS), target.chance.choice(HEADERS)
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        reply = await target.ask(head.encode() + body)
        attempt.saw(reply.status)
        if _has_vectors(reply):
            attempt.fault(f"{method} {path} with {headers.strip()!r}: a result without a key")

    await attempt.crowd(one, min(attempt.connections, 16))


def _has_vectors(reply: Reply) -> bool:
    return reply.status == 200 and re.search(rb'"(embedding|embeddings|scores|tokens)":\s*\[', reply.body) is not None


ATTACKS = (key_bypass,)
