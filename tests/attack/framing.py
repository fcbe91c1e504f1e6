"""HTTP/1.1 that is malformed or ambiguous."""

from __future__ import annotations

import asyncio
import re

from tests.attack.target import Attempt, Target, read_reply

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
QUIET_S = 0.3  # without a byte: no further response comes

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
        received = await _answers_to(target, MALFORMED[name])
        statuses = _statuses(received)
        attempt.saw(statuses[0] if statuses else "closed")
        if not statuses:
            attempt.fault(f"{name}: closed without an answer")
        if any(status < 400 or status == 500 for status in statuses):
            attempt.fault(f"{name}: answered {statuses}")
        if len(statuses) > 1 or b"smuggled" in received:
            attempt.fault(f"{name}: {len(statuses)} answers")

    await attempt.crowd(one, min(attempt.connections, 32))


async def _answers_to(target: Target, sent: bytes) -> bytes:
    """Everything that the server sends until it is quiet."""
    received = b""
    async with target.connection() as (reader, writer):
        writer.write(sent)
        while True:
            try:
                async with asyncio.timeout(QUIET_S if received else 20):
                    reply = await read_reply(reader)
            except (TimeoutError, EOFError, ConnectionError):
                return received
            received += reply.head + reply.body


def _statuses(received: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3})", received)]


ATTACKS = (malformed_requests,)
