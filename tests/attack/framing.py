"""HTTP/1.1 that is malformed, ambiguous, or cut into segments at any place."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise

from tests.attack.target import ANSWERS_OF_A_LOADED_SERVER, Attempt, Target, read_reply

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
TOKENIZE = "/tokenize"  # its answers depend on the body and, unlike vectors, on nothing else
BODY = b'{"inputs": "some segments"}'
QUIET_S = 0.3  # without a byte: no further response comes
VOLATILE = re.compile(rb"(?im)^(date|server-timing|x-request-id|x-[\w-]*-(time|ms)|retry-after|x-compute[\w-]*):.*\r\n")

# Never 200: ambiguous lengths are how requests are smuggled past a proxy.
MALFORMED: dict[str, bytes] = {
    "no HTTP": b"\x00\x01\x02 hello\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "unknown version": b"GET /health/live HTTP/9.9\r\nHost: x\r\n\r\n",
    "target without a host": b"GET file:///health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "target without a path": b"GET http://x HTTP/1.1\r\nHost: x\r\n\r\n",
    "NUL in a header": b"GET /health/live HTTP/1.1\r\nHost: x\r\na: b\0c\r\n\r\n",
    "space before the colon": b"GET /health/live HTTP/1.1\r\nHost : x\r\n\r\n",
    "folded header": b"POST /embed HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 40\r\n\r\n{}" + SMUGGLED,
    "negative length": b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}" + SMUGGLED,
    "signed length": b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n{}" + SMUGGLED,
    "hex length": b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: 0x2\r\n\r\n{}" + SMUGGLED,
    "endless length": b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
    "length and chunks": b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"0\r\n\r\n" + SMUGGLED,
    "unknown coding": b"POST /embed HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: cow\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "chunked twice": b"POST /embed HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    "endless chunk": b"POST /embed HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}",
    "no chunk size": b"POST /embed HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
}


async def malformed_requests(target: Target, attempt: Attempt) -> None:
    """Bytes that are no request, or that two readers could read differently."""
    names = list(MALFORMED)

    async def one(number: int) -> None:
        name = names[attempt.tried % len(names)]
        received = await _answers_to(target, [MALFORMED[name]])
        statuses = _statuses(received)
        attempt.saw(statuses[0] if statuses else "closed")
        if not statuses:
            attempt.fault(f"{name}: closed without an answer")
        if any(status < 400 or status == 500 for status in statuses):
            attempt.fault(f"{name}: answered {statuses}")
        if len(statuses) > 1 or b"smuggled" in received:
            attempt.fault(f"{name}: {len(statuses)} answers")

    await attempt.crowd(one, min(attempt.connections, 32))


def corpus(target: Target) -> dict[str, tuple[bytes, int]]:
    """Valid requests, and how many responses each must have."""
    plain = target.post(TOKENIZE, BODY)
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    hidden = json.dumps({"inputs": SMUGGLED.decode()}).encode()
    bare = json.dumps({"inputs": "x"}).encode() + b" " * 3 + SMUGGLED  # no JSON: the body must still be one body
    head, _, body = plain.partition(b"\r\n\r\n")
    chunked = re.sub(rb"Content-Length: \d+", b"Transfer-Encoding: chunked", head) + b"\r\n\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    return {
        "plain": (plain, 1),
        "pipelined": (plain + target.get("/health/live") + plain, 3),
        "chunked": (chunked + chunks + b"0\r\n\r\n", 1),
        "trailer": (chunked + chunks + b"0\r\nupgrade: h2c\r\n\r\n" + target.get("/health/live"), 2),
        "upgrade": (target.post(TOKENIZE, hidden, headers=offer), 1),
        "upgrade with a request as its body": (target.post(TOKENIZE, bare, headers=offer), 1),
        "pipelined upgrade": (target.get("/health/live") + target.post(TOKENIZE, bare, headers=offer), 2),
        "upgrade, then more": (target.post(TOKENIZE, BODY, headers=offer) + target.get("/health/live"), 2),
    }


async def segments(target: Target, attempt: Attempt) -> None:
    """Valid requests, upgrades and pipelines, cut at random places: the answers must not depend on the cuts."""
    requests = corpus(target)
    answers = await asyncio.gather(*(_answers_to(target, [data]) for data, _ in requests.values()))
    whole = dict(zip(requests, map(_stable, answers), strict=True))
    for name, (_, count) in requests.items():
        if len(_statuses(whole[name])) != count:
            attempt.fault(f"{name}: {len(_statuses(whole[name]))} answers in one segment, {count} requests")
    names = list(requests)

    async def one(number: int) -> None:
        name = names[attempt.tried % len(names)]
        data = requests[name][0]
        places = sorted({0, len(data), *target.chance.sample(range(1, len(data)), target.chance.randint(1, 4))})
        received = _stable(await _answers_to(target, [data[a:b] for a, b in pairwise(places)]))
        statuses = _statuses(received)
        attempt.saw("/".join(map(str, statuses)))
        if received != whole[name] and not ANSWERS_OF_A_LOADED_SERVER & set(statuses):
            attempt.fault(f"{name}, cut at {places[1:-1]}: {statuses}, whole: {_statuses(whole[name])}")

    await attempt.crowd(one, min(attempt.connections, 16))


async def _answers_to(target: Target, parts: list[bytes]) -> bytes:
    """Everything that the server sends until it is quiet. Each part is a segment of its own."""
    received = b""
    async with target.connection() as (reader, writer):
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.002)  # asyncio sets TCP_NODELAY
        while True:
            try:
                async with asyncio.timeout(QUIET_S if received else 20):
                    reply = await read_reply(reader)
            except (TimeoutError, EOFError, ConnectionError):
                return received
            received += reply.head + reply.body


def _stable(received: bytes) -> bytes:
    return VOLATILE.sub(b"", received)


def _statuses(received: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3})", received)]


ATTACKS = (malformed_requests, segments)
