#!/usr/bin/env python3
"""Smart Embedder's script: 17 checks of a running server, and one more with --token. They need its default rate limits.

Prints a line for each check, and last `17/17 tests passed`. The exit code is 0 if all passed, 1 if one failed.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import httpx

FAMILIES = (
    "embedding_requests_total",
    "embedding_requests_rejected_total",
    "embedding_sentences_processed_total",
    "embedding_request_duration_seconds",
    "embedding_batch_size",
    "embedding_gpu_inference_duration_seconds",
    "embedding_queue_size",
    "embedding_active_requests",
    "embedding_server_info",
    "rerank_requests_total",
    "rerank_requests_rejected_total",
    "rerank_pairs_processed_total",
    "rerank_request_duration_seconds",
    "rerank_inference_duration_seconds",
    "rerank_active_requests",
)
STATS = ("uptime", "total_requests", "total_sentences", "total_batches", "rejected_requests", "hardware")
EMBED_RATE_LIMITED = 'embedding_requests_rejected_total{reason="rate_limit"}'
EMBED_OVERLOADED = 'embedding_requests_rejected_total{reason="backpressure"}'
RERANK_RATE_LIMITED = 'rerank_requests_rejected_total{reason="rate_limit"}'
RERANK_OVERLOADED = 'rerank_requests_rejected_total{reason="backpressure"}'
PASSAGES = (
    "The weather is nice today.",
    "Machine learning is a subset of artificial intelligence.",
    "Deep learning uses neural networks.",
    "Pizza is eaten on Fridays.",
)
ALL_KINDS = {"return_dense": True, "return_sparse": True, "return_colbert": True}
SETTLE_S = 1.0  # after a burst, until gauges are 0 and counters are final


class Failed(Exception):
    """The response is wrong; the message describes it."""


def require(holds: object, why: str) -> None:
    """Raises Failed."""
    if not holds:
        raise Failed(why)


@dataclass(frozen=True)
class Server:
    """The server under test, and the limits that its operator has set."""

    client: httpx.AsyncClient
    limits: argparse.Namespace

    async def embed(self, sentences: Sequence[str], **flags: bool) -> list[dict[str, Any]]:
        """The `embeddings` of each sentence. Raises Failed unless the status is 200."""
        reply = await self.client.post("/embeddings/", json={"sentences": sentences, **flags})
        require(reply.status_code == 200, f"/embeddings/ is {reply.status_code}: {reply.text[:200]}")
        data = reply.json()["data"]
        require([item["id"] for item in data] == list(range(len(sentences))), "wrong ids")
        return [item["embeddings"] for item in data]

    async def burst(self, path: str, bodies: Sequence[object]) -> list[httpx.Response]:
        """Send all bodies at once. Raises Failed for a status other than 200, 429 and 503."""
        await asyncio.sleep(self.limits.refill_seconds)
        replies = await asyncio.gather(*(self.client.post(path, json=body) for body in bodies))
        strange = Counter(reply.status_code for reply in replies if reply.status_code not in (200, 429, 503))
        require(not strange, f"statuses {dict(strange)} among {len(bodies)} requests at once")
        await asyncio.sleep(SETTLE_S)
        return replies

    async def metrics(self) -> Mapping[str, float]:
        """Each sample of /metrics, by its name with labels."""
        page = (await self.client.get("/metrics")).text
        return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", page, re.MULTILINE)}


Check: TypeAlias = Callable[[Server], Awaitable[None]]


async def health(server: Server) -> None:
    reply = await server.client.get("/health")
    require(reply.status_code == 200 and reply.json()["status"] == "healthy", reply.text[:200])


async def authentication(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.client.base_url) as anonymous:
        require((await anonymous.get("/health")).status_code == 200, "/health needs the token")
        reply = await anonymous.post("/embeddings/", json={"sentences": ["x"]})
        require(reply.status_code == 401, f"without the token, /embeddings/ is {reply.status_code}")


async def basic_embedding(server: Server) -> None:
    for vectors in await server.embed(["Hello world!", "Ciao mondo!"], **ALL_KINDS):
        require(all(vectors[kind] for kind in ("dense", "sparse", "colbert")), "a kind of vectors is missing")


async def sparse_as_indices(server: Server) -> None:
    flags = {"return_dense": False, "return_sparse": True, "return_colbert": False}
    for vectors in await server.embed([*PASSAGES], **flags, sparse_as_indices=True):
        indices, values = vectors["sparse"]["indices"], vectors["sparse"]["values"]
        require(len(indices) == len(values) > 0, "indices and values differ in length, or are empty")
        require(all(isinstance(index, int) for index in indices), "an index is no integer")
    for vectors in await server.embed([*PASSAGES], **flags):
        require(vectors["sparse"] and all(key.isdigit() for key in vectors["sparse"]), "keys are no token ids")


async def colbert_vectors(server: Server) -> None:
    flags = {"return_dense": False, "return_sparse": False, "return_colbert": True}
    texts = ["First short sentence.", "A longer second sentence with more tokens to embed properly."]
    short, long = [vectors["colbert"] for vectors in await server.embed(texts, **flags)]
    require(len(long) > len(short) > 0, "a longer text has no more token vectors")
    require(len({len(row) for row in short + long}) == 1, "token vectors of several widths")
    (again,) = [vectors["colbert"] for vectors in await server.embed(texts[:1], **flags)]
    differences = [abs(x - y) for row, other in zip(short, again, strict=True) for x, y in zip(row, other, strict=True)]
    require(max(differences) < 1e-2, f"the same text differs by {max(differences):.2e}")
    (without,) = await server.embed(texts[:1], return_dense=True, return_sparse=False, return_colbert=False)
    require(not without["colbert"], "ColBERT vectors that were not requested")


async def all_three_vectors(server: Server) -> None:
    rows = await server.embed(["One sentence.", "Una seconda frase.", "A third one, with more tokens!"], **ALL_KINDS)
    require(len({len(row["dense"]) for row in rows}) == 1, "dense vectors of several widths")
    for row in rows:
        numbers = [*row["dense"], *row["sparse"].values(), *(x for vector in row["colbert"] for x in vector)]
        require(all(map(math.isfinite, numbers)), "a number is not finite")


async def truncation_warning(server: Server) -> None:
    """A text beyond the model's limit is truncated, and the response says so."""
    most = (await server.client.get("/health")).json()["max_input_length"]
    body = {"sentences": ["word " * (most + 100)], "return_colbert": False}
    reply = await server.client.post("/embeddings/", json=body)
    require(reply.status_code == 200, f"a text beyond {most} tokens is {reply.status_code}")
    codes = [warning["code"] for warning in reply.json()["warnings"]]
    require("input_truncated" in codes, f"the warnings of a truncated text are {codes}")


async def payload_limits(server: Server) -> None:
    """The limit of items, and those of characters that the operator names: one more is 422. An empty list is 400."""
    limits = server.limits

    async def expect(status: int, path: str, body: object, what: str) -> None:
        reply = await server.client.post(path, json=body)
        require(reply.status_code == status, f"{what}: {reply.status_code} instead of {status}")

    await expect(400, "/embeddings/", {"sentences": []}, "no sentences")
    await expect(422, "/embeddings/", {"sentences": ["x"] * (limits.max_sentences + 1)}, "too many sentences")
    await expect(422, "/rerank", {"query": "q", "passages": ["p"] * (limits.max_rerank_passages + 1)}, "many passages")
    if limits.max_sentence_chars:
        await expect(422, "/embeddings/", {"sentences": ["x" * (limits.max_sentence_chars + 1)]}, "a long sentence")
    if limits.max_total_chars:
        await expect(422, "/embeddings/", {"sentences": _in_pieces(limits.max_total_chars + 1)}, "long sentences")
    if limits.max_rerank_text_chars:
        passage = "p" * (limits.max_rerank_text_chars + 1)
        await expect(422, "/rerank", {"query": "q", "passages": [passage]}, "a long passage")
    if limits.max_rerank_total_chars:
        passages = _in_pieces(limits.max_rerank_total_chars)
        await expect(422, "/rerank", {"query": "q", "passages": passages}, "long passages")


def _in_pieces(characters: int, piece: int = 10_000) -> list[str]:
    """Texts of this many characters in all, none of which is too long."""
    return ["x" * min(piece, characters - start) for start in range(0, characters, piece)]


async def performance(server: Server) -> None:
    """50 requests, one after another, are answered."""
    for number in range(50):
        await server.embed([f"Performance test {number}"])


async def rerank(server: Server) -> None:
    body = {"query": "What is machine learning?", "passages": PASSAGES, "normalize": True}
    reply = await server.client.post("/rerank", json=body)
    require(reply.status_code == 200, f"/rerank is {reply.status_code}: {reply.text[:200]}")
    results = reply.json()["results"]
    scores = [result["score"] for result in results]
    require(scores == sorted(scores, reverse=True), f"scores are not in descending order: {scores}")
    require(all(0 <= score <= 1 for score in scores), f"normalized scores: {scores}")
    require({result["index"]: result["passage"] for result in results} == dict(enumerate(PASSAGES)), "wrong indices")
    for wrong in ({"query": " ", "passages": ["p"]}, {"query": "q", "passages": []}):
        status = (await server.client.post("/rerank", json=wrong)).status_code
        require(status == 400, f"an empty query or list of passages is {status} instead of 400")


async def rerank_backpressure(server: Server) -> None:
    """Concurrent reranks beyond the slots are 503, and each is counted."""
    before = (await server.metrics()).get(RERANK_OVERLOADED, 0)
    refused = 0
    for repeats in (8, 64):  # a fast device needs more work
        passages = [f"A long passage about subject {number}. " * repeats for number in range(48)]
        replies = await server.burst("/rerank", [{"query": f"query {i}", "passages": passages} for i in range(100)])
        refused += sum(reply.status_code == 503 for reply in replies)
        if refused:
            break
    require(refused, "no rerank was refused with 503")
    counted = (await server.metrics())[RERANK_OVERLOADED] - before
    require(counted == refused, f"{refused} reranks were refused with 503, and {counted:.0f} were counted")


async def rate_limiting(server: Server) -> None:
    """Of 300 requests at once, 100 are refused; a 429 has Retry-After."""
    replies = await server.burst("/embeddings/", [{"sentences": [f"test {i}"]} for i in range(300)])
    limited = [reply for reply in replies if reply.status_code == 429]
    refused = sum(reply.status_code != 200 for reply in replies)
    require(refused >= 100, f"{refused} of 300 requests at once were refused; at least 100 exceed the rate limit")
    require(all("retry-after" in reply.headers for reply in limited), "a 429 has no Retry-After")


async def backpressure(server: Server) -> None:
    """Long texts at once are answered or refused."""
    text = "test " * 100
    bodies = [{"sentences": [f"{text} {i}"]} for i in range(server.limits.backpressure_requests)]
    await server.burst("/embeddings/", bodies)


async def queue_drain(server: Server) -> None:
    await server.burst("/embeddings/", [{"sentences": [f"drain {i}"], "return_colbert": False} for i in range(20)])
    samples = await server.metrics()
    for gauge in ("embedding_queue_size", "embedding_active_requests", "rerank_active_requests"):
        require(samples[gauge] == 0, f"{gauge} is {samples[gauge]:.0f} after the load")


async def stats_alignment(server: Server) -> None:
    """/stats counts the rejections of the rate limit and of both queues."""

    async def counts() -> tuple[float, float]:
        samples = await server.metrics()
        counted = sum(samples.get(one, 0) for one in (EMBED_RATE_LIMITED, EMBED_OVERLOADED, RERANK_OVERLOADED))
        return (await server.client.get("/stats")).json()["rejected_requests"], counted

    stats_before, metrics_before = await counts()
    await server.burst("/embeddings/", [{"sentences": [f"align {i}"], "return_colbert": False} for i in range(300)])
    stats_after, metrics_after = await counts()
    require(stats_after > stats_before, "no request of 300 at once was refused")
    by_stats, by_metrics = stats_after - stats_before, metrics_after - metrics_before
    require(by_stats == by_metrics, f"/stats counts {by_stats:.0f} rejections, /metrics {by_metrics:.0f}")


async def rerank_rate_limit_attribution(server: Server) -> None:
    """A rejected rerank is counted as one, not as a request for embeddings."""
    before = await server.metrics()
    replies = await server.burst("/rerank", [{"query": f"q {i}", "passages": ["short text"]} for i in range(500)])
    after = await server.metrics()
    refused = sum(reply.status_code == 429 for reply in replies)
    require(refused, "no rerank of 500 at once was refused with 429")
    reranks, embeds = (after[one] - before.get(one, 0) for one in (RERANK_RATE_LIMITED, EMBED_RATE_LIMITED))
    require((reranks, embeds) == (refused, 0), f"of {refused}, {reranks:.0f} and {embeds:.0f} were counted")


async def metrics(server: Server) -> None:
    page = (await server.client.get("/metrics")).text
    series = (*FAMILIES, EMBED_RATE_LIMITED, RERANK_OVERLOADED, RERANK_RATE_LIMITED)
    missing = [one for one in series if one not in page]
    require(not missing, f"/metrics has no {', '.join(missing)}")


async def stats(server: Server) -> None:
    reply = await server.client.get("/stats")
    require(reply.status_code == 200 and all(key in reply.json() for key in STATS), reply.text[:200])


CHECKS: Sequence[Check] = (
    health,
    basic_embedding,
    sparse_as_indices,
    colbert_vectors,
    all_three_vectors,
    truncation_warning,
    payload_limits,
    performance,
    rerank,
    rerank_backpressure,
    rate_limiting,
    backpressure,
    queue_drain,
    stats_alignment,
    rerank_rate_limit_attribution,
    metrics,
    stats,
)


async def run(options: argparse.Namespace) -> int:
    headers = {"authorization": f"Bearer {options.token}"} if options.token else {}
    connections = httpx.Limits(max_connections=500, max_keepalive_connections=500)
    checks = [CHECKS[0], *([authentication] if options.token else []), *CHECKS[1:]]
    passed = 0
    async with httpx.AsyncClient(base_url=options.url, headers=headers, limits=connections, timeout=120) as client:
        server = Server(client, options)
        for check in checks:
            name = check.__name__.replace("_", " ")
            try:
                await check(server)
            except (Failed, httpx.HTTPError, ValueError, LookupError, TypeError) as problem:
                print(f"FAIL  {name}: {problem or type(problem).__name__}")
            else:
                print(f"PASS  {name}")
                passed += 1
    print(f"\n{passed}/{len(checks)} tests passed")
    return int(passed < len(checks))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check a server with Smart Embedder's API.", allow_abbrev=False)
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--token", default=os.environ.get("API_TOKEN", ""), help="default: API_TOKEN")
    parser.add_argument("--backpressure-requests", type=int, default=200, help="long texts at once; default: 200")
    parser.add_argument(
        "--refill-seconds", type=float, default=4.0, help="pause before a burst, for the rate limit; default: 4"
    )
    parser.add_argument("--max-sentences", type=int, default=128, help="default: 128")
    parser.add_argument("--max-sentence-chars", type=int, help="if the server has this limit, as the next three")
    parser.add_argument("--max-total-chars", type=int)
    parser.add_argument("--max-rerank-passages", type=int, default=128, help="default: 128")
    parser.add_argument("--max-rerank-text-chars", type=int)
    parser.add_argument("--max-rerank-total-chars", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(run(read_options())))
    except KeyboardInterrupt:
        sys.exit(130)
