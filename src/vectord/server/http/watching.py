"""uvicorn's server with a watch over slow clients: run.py's, and metrics_port.py's. On the event loop."""

from __future__ import annotations

import asyncio
from typing import cast

import uvicorn

from vectord.server.http.hardening.http_protocol import HttpProtocol
from vectord.server.http.hardening.unsent import Unsent

TICKS_PER_S = 10  # uvicorn's


class WatchingServer(uvicorn.Server):
    def __init__(self, settings: uvicorn.Config, unsent: Unsent) -> None:
        super().__init__(settings)
        self._unsent = unsent
        unsent.watch(self._connections)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_S == 0:
            self._watch(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def _watch(self, now_s: float) -> None:
        """Once a second."""
        for connection in self._connections():
            connection.drop_if_stalled(now_s)
        self._unsent.make_room(now_s)

    def _connections(self) -> list[HttpProtocol]:
        return cast("list[HttpProtocol]", list(self.server_state.connections))
