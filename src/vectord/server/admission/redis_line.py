"""A connection to Redis for commands that are bytes already. Used by shared_buckets.py, on the event loop.

redis-py opens it: addresses, passwords and TLS are its trade. What it costs each command, some 100 us of streams, locks
and timeouts, is what this does without: commands are written as they are, and hiredis reads the replies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import hiredis


class RedisLine(asyncio.Protocol):
    """Open from its making until it is `closed`."""

    def __init__(self, connection: Any, on_reply: Callable[[Any], None]) -> None:
        """connection: redis-py's, connected and idle. on_reply: called with each reply, errors among them, in order.

        Leans on one attribute that redis-py does not promise; tests/server/test_shared_limits.py drives it.
        """
        self._reader = hiredis.Reader()
        self._on_reply = on_reply
        self._transport = cast(asyncio.Transport, connection._writer.transport)
        self._transport.set_protocol(self)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write(self, commands: bytes) -> None:
        self._transport.write(commands)

    def close(self) -> None:
        """At once, whatever is still to be written or read."""
        self._transport.abort()
        self._end()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            # False: no whole reply is left. Replies are numbers, bytes, lists, None and errors.
            while (reply := self._reader.gets()) is not False and not self.closed.done():
                self._on_reply(reply)
        except hiredis.ProtocolError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def packed(words: Iterable[bytes]) -> bytes:
    """A command as Redis reads it. redis-py's own packing takes 50 us for a request of three buckets, this 5."""
    parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(parts)
