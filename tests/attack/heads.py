"""Request lines and headers that are endless, numerous or too large."""

from __future__ import annotations

import asyncio

from tests.attack.target import Attempt, Target, read_reply

MOST_HEAD_BYTES = 2**20  # accepted without an end; the limit of the server is lower
FILLER = {
    "many headers": b"ab:\r\n" * 800,
    "one header": b"a" * 4000,
    "request line": b"a" * 4000,
}
START = {"many headers": b"GET / HTTP/1.1\r\n", "one header": b"GET / HTTP/1.1\r\na: ", "request line": b"GET /"}


async def endless_heads(target: Target, attempt: Attempt) -> None:
    """Heads that never end: many small headers, one long header, or a long request line."""

    async def one(number: int) -> None:
        kind = list(START)[number % len(START)]
        async with target.connection() as (reader, writer):
            writer.write(START[kind])
            sent = 0
            ended = asyncio.create_task(reader.read(4096))
            try:
                while sent < MOST_HEAD_BYTES and not ended.done() and attempt.goes_on():
                    writer.write(FILLER[kind])
                    await writer.drain()
                    sent += len(FILLER[kind])
                    await asyncio.sleep(0.001 if sent < 60_000 else 0.05)
                attempt.saw(_status(ended.result()) if ended.done() else "open")
                if sent >= MOST_HEAD_BYTES and not ended.done():
                    attempt.fault(f"{kind}: {sent:,} bytes of a head were accepted")
            finally:
                ended.cancel()
                await asyncio.gather(ended, return_exceptions=True)

    await attempt.crowd(one)


async def held_heads(target: Target, attempt: Attempt) -> None:
    """Heads just below the limit of bytes whose last line never comes, all held open together."""
    filler = b"".join(b"h%d: %s\r\n" % (number, b"v" * 60) for number in range(250))

    async def one(number: int) -> None:
        async with target.connection() as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\n" + filler)
            try:
                async with asyncio.timeout(attempt.left_s() + 0.1):
                    attempt.saw(_status(await reader.read(4096)))
            except TimeoutError:
                attempt.saw("held")

    await attempt.crowd(one, 4 * attempt.connections)


async def rejected_heads(target: Target, attempt: Attempt) -> None:
    """Complete heads with 3,000 headers, as fast as they are rejected."""
    request = b"GET /health/live HTTP/1.1\r\nHost: x\r\n" + b"ab:\r\n" * 3000 + b"\r\n"

    async def one(number: int) -> None:
        async with target.connection() as (reader, writer):
            writer.write(request)
            reply = await read_reply(reader)
            attempt.saw(reply.status)
            if reply.status == 200:
                attempt.fault("3,000 headers were accepted")
            elif await reader.read(1):
                attempt.fault("the connection continued after 431")

    await attempt.crowd(one, min(attempt.connections, 32))


def _status(received: bytes) -> str:
    return received[9:12].decode("latin-1") if received else "closed"


ATTACKS = (endless_heads, held_heads, rejected_heads)
