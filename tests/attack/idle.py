"""A server that does nothing but answer probes: their times show what the load of the machine alone does to a probe.

Prints its port, and ends when its input closes.
"""

from __future__ import annotations

import asyncio
import sys

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if await reader.read(65_536):
        writer.write(ANSWER)
    writer.close()


async def main() -> None:
    async with await asyncio.start_server(_answer, "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
