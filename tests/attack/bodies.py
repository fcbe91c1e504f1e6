"""Bodies that are hostile as sent, as JSON, as inputs, or once they are decompressed."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterator

import zstandard
from tests.attack.target import Attempt, Target

HUNDRED_THOUSAND = 100_000
SHORT = {"dimensions": 1, "force_dimensions": True}  # responses of one number each


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
    "unsorted combining marks": ("a" + "\u0316\u0301" * 64_000, 200, 200),
    "NUL": ("a\0b", 200, 200),
    "control characters": ("".join(map(chr, range(32))), 200, 200),
    "100,000 tiny inputs": (["a"] * HUNDRED_THOUSAND, 200, 200),
    "100,001 tiny inputs": (["a"] * (HUNDRED_THOUSAND + 1), 400, 422),
    "100,001 tiny images": ([{"image": "AAAA"}] * (HUNDRED_THOUSAND + 1), 400, 422),
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
    "not UTF-8": (b'{"input": "\xff\xfe", "inputs": "\xff"}', 400, 422),  # at /embed the two keys are of two APIs
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
PATHS = ("/v1/embeddings", "/embed", "/vectord/embed")
BOMB_BYTES = 2**26
CHUNKS = 50_000  # of a body; a segment of 256 kB has 43,000
DOCUMENT_CHARACTERS = 2_000_000  # the server's limit
# Texts that are hard to split: no space, only ends of sentences, no character of their own, many tokens for each one.
DOCUMENTS = {
    "one word": "x" * DOCUMENT_CHARACTERS,
    "ends of sentences": ".\n" * (DOCUMENT_CHARACTERS // 2),
    "short sentences": "A. " * (DOCUMENT_CHARACTERS // 3),
    "quotes": '."' * (DOCUMENT_CHARACTERS // 2),
    "combining marks": "a" + "\u0301" * 200_000,
    "joiners": "\u200d" * 200_000,
    "18 tokens a character": "\ufdfa" * 20_000,
    "spaces": " " * DOCUMENT_CHARACTERS,
    "too long": "x" * (DOCUMENT_CHARACTERS + 1),
    "empty": "",
}


async def hostile_bodies(target: Target, attempt: Attempt) -> None:
    """JSON that is cut off, deep or wrong; inputs of any type, number and size; token ids out of range."""
    requests = [(name, *request) for name in (*INPUTS, *BODIES) for request in requests_of(name)]

    async def one(number: int) -> None:
        name, path, body, expected = requests[attempt.tried % len(requests)]
        status = (await target.ask(target.post(path, body), 120)).status
        attempt.saw(status)
        # A server may allow fewer inputs than the table assumes.
        if status not in (expected, 401, 413, 422, 429, 503) and not (expected == 200 and status == 400):
            attempt.fault(f"{name} at {path}: {status}, expected {expected}")

    await attempt.crowd(one, min(attempt.connections, 8))


def requests_of(name: str) -> Iterator[tuple[str, bytes, int]]:
    """The path, body and expected status of the input or body of this name in each API."""
    if name in INPUTS:
        value, openai_status, tei_status = INPUTS[name]
        bodies = openai_body(value), tei_body(value), vectord_body(value)
    else:
        body, openai_status, tei_status = BODIES[name]
        bodies = body, body, body
    yield from zip(PATHS, bodies, (openai_status, tei_status, openai_status), strict=True)


async def hostile_documents(target: Target, attempt: Attempt) -> None:
    """Documents that are hard to split, by tokens with half a chunk of overlap and by sentences."""
    requests = [
        (name, json.dumps({"documents": [text], "chunk": {"by": by, "max_tokens": 20, "overlap_tokens": 10}}).encode())
        for name, text in DOCUMENTS.items()
        for by in ("tokens", "sentences")
    ]

    async def one(number: int) -> None:
        name, body = requests[attempt.tried % len(requests)]
        status = (await target.ask(target.post("/vectord/documents", body), 120)).status
        attempt.saw(status)
        if status not in (200, 400, 401, 413, 429, 503):
            attempt.fault(f"{name}: {status}")

    await attempt.crowd(one, min(attempt.connections, 4))


async def tiny_chunks(target: Target, attempt: Attempt) -> None:
    """Chunked bodies with one byte in each chunk, which costs the server most for each byte, on many connections."""
    head = target.post("/v1/embeddings", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    request = head + b"1\r\n \r\n" * CHUNKS + b"d\r\n" + b'{"input":"a"}' + b"\r\n0\r\n\r\n"

    async def one(number: int) -> None:
        status = (await target.ask(request)).status
        attempt.saw(status)
        if status not in (200, 401, 429, 503):
            attempt.fault(f"answered {status}")

    await attempt.crowd(one, min(attempt.connections, 50))


async def decompression_bombs(target: Target, attempt: Attempt) -> None:
    """Small bodies of gzip, deflate and zstd that become 64 MiB, and gzip in gzip."""
    bombs = await asyncio.to_thread(_bombs)
    names = list(bombs)

    async def one(number: int) -> None:
        coding = names[attempt.tried % len(names)]
        request = target.post("/v1/embeddings", bombs[coding], headers=f"Content-Encoding: {coding}\r\n")
        status = (await target.ask(request)).status
        attempt.saw(status)
        if status not in (400, 401, 413, 415, 422, 429, 503):
            attempt.fault(f"{coding}: {status}")

    await attempt.crowd(one, min(attempt.connections, 16))


def _bombs() -> dict[str, bytes]:
    spaces = b" " * BOMB_BYTES
    gzipped = gzip.compress(spaces, 1)
    return {
        "gzip": gzipped,
        "deflate": zlib.compress(spaces, 1),
        "zstd": zstandard.compress(spaces),
        "gzip, gzip": gzip.compress(gzipped),
    }


ATTACKS = (hostile_bodies, hostile_documents, tiny_chunks, decompression_bombs)
