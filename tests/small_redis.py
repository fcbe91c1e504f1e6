"""A Redis of a few commands in this process, for tests of its loss: it can hang, disconnect, or reply with other bytes.

tests/real_redis.py starts the real one where it is installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

OK = b"+OK\r\n"
NIL = b"$-1\r\n"


@dataclass(slots=True)
class SmallRedis:
    port: int = 0
    values: dict[bytes, bytes] = field(default_factory=dict)
    replies: Mapping[bytes, bytes | None] = field(default_factory=dict)  # by command; None: no reply, and no end
    commands: list[bytes] = field(default_factory=list)
    connections: set[asyncio.StreamWriter] = field(default_factory=set)

    def disconnect(self) -> None:
        for writer in self.connections:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            while True:
                words = [await self._word(reader) for _ in range(int((await reader.readline())[1:]))]
                name = words[0].upper()
                self.commands.append(name)
                reply = self.replies[name] if name in self.replies else self._reply(name, words[1:])
                if reply is None:
                    await reader.read()  # until the client leaves
                    return
                writer.write(reply)
        except (ValueError, ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has left
        finally:
            self.connections.discard(writer)
            writer.close()

    async def _word(self, reader: asyncio.StreamReader) -> bytes:
        size = int((await reader.readline())[1:])
        return (await reader.readexactly(size + 2))[:-2]

    def _reply(self, name: bytes, words: list[bytes]) -> bytes:
        if name == b"MGET":
            return b"*%d\r\n" % len(words) + b"".join(bulk(self.values.get(word)) for word in words)
        if name == b"SET":
            self.values[words[0]] = words[1]
        return NIL if name == b"EVALSHA" else bulk(b"0" * 40) if name == b"SCRIPT" else OK


def bulk(content: bytes | None) -> bytes:
    return NIL if content is None else b"$%d\r\n%s\r\n" % (len(content), content)


@asynccontextmanager
async def small_redis(port: int = 0) -> AsyncIterator[SmallRedis]:
    """port: 0: any free one."""
    redis = SmallRedis()
    async with await asyncio.start_server(redis.serve, "127.0.0.1", port) as server:
        redis.port = server.sockets[0].getsockname()[1]
        try:
            yield redis
        finally:
            redis.disconnect()
