"""Requests without the right key, names that strangers must not see, and what one tenant learns about another."""

from __future__ import annotations

import asyncio
import itertools
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
STRANGERS_PAGES = ("/metrics", "/health", "/health/ready", "/info", "/stats", "/v1/models", "/openapi.json", "/props")
PATHS = 60  # of the documented ones
ALWAYS = ("/v1/embeddings", "/embed", "/rerank", "/tokenize")
TEXTS = 20  # of each kind
_numbers = itertools.count()


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


async def names_without_key(target: Target, attempt: Attempt) -> None:
    """Open pages, read without a key, for the names of keys."""
    if not target.names:
        attempt.skipped = "no --name"
        return

    async def one(number: int) -> None:
        path = STRANGERS_PAGES[attempt.tried % len(STRANGERS_PAGES)]
        reply = await target.ask(target.get(path))
        attempt.saw(reply.status)
        for name in target.names:
            if name.encode() in reply.body + reply.head:
                attempt.fault(f"{path} shows the name {name!r}")

    await attempt.crowd(one, 4)


async def cache_oracle(target: Target, attempt: Attempt) -> None:
    """One tenant asks for texts that another has embedded: does Server-Timing, or a count, differ from new texts?"""
    if len(target.keys) < 2:
        attempt.skipped = "needs two --key"
        return
    told = {"known": 0, "new": 0}
    while attempt.goes_on():
        known = [f"secret {next(_numbers)} of the first tenant" for _ in range(TEXTS)]
        for text in known:
            attempt.saw((await target.ask(_embedding(target, text, key=0))).status)
        for kind, texts in (("known", known), ("new", [f"new {next(_numbers)} of the second" for _ in range(TEXTS)])):
            for text in texts:
                reply = await target.ask(_embedding(target, text, key=1))
                attempt.saw(reply.status)
                told[kind] += reply.status == 200 and _without_inference(reply)
    if told["known"] > told["new"] + TEXTS // 4:
        attempt.fault(
            f"Server-Timing shows the cache of another tenant: {told['known']} known, {told['new']} new texts"
        )


def _embedding(target: Target, text: str, *, key: int) -> bytes:
    return target.post("/v1/embeddings", json.dumps({"input": text, "encoding_format": "base64"}).encode(), key=key)


def _without_inference(reply: Reply) -> bool:
    found = re.search(rb"inference;dur=([0-9.]+)", reply.head)
    return found is not None and float(found[1]) == 0


ATTACKS = (key_bypass, names_without_key, cache_oracle)
