"""The engine of another process as an EngineClient, on a front-end's event loop.

What cannot wait is answered from what the engine last announced; while there is no engine, its models are "stalled".
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

from vectord.cluster.remote.codec import decode_result, encode_request
from vectord.cluster.remote.frames import Kind
from vectord.cluster.remote.link import Link
from vectord.errors import ShuttingDown
from vectord.schema import ANYONE, Caller, Limits, ModelList, Request, Result

NOTHING_KNOWN = ModelList(
    models=(),
    limits=Limits(
        max_inputs_per_request=0,
        max_batch_tokens=0,
        max_batch_texts=None,
        max_concurrent_requests=0,
        tokenization_workers=0,
        truncates=None,
    ),
    starting=True,
)


class RemoteEngine:
    """Implements EngineClient."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._draining = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def answer(self, request: Request, caller: Caller) -> Result:
        """Raises Unavailable beside what the engine raises: its process is being replaced."""
        if self._draining:
            raise ShuttingDown()
        content = encode_request(request, caller)
        self._under_way += 1
        self._idle.clear()
        try:
            return cast(Result, await self._link.ask(Kind.ASK, content, decode_result))
        finally:
            self._under_way -= 1
            if self._under_way == 0:
                self._idle.set()

    def readiness(self) -> dict[str, str]:
        states = {} if self._link.state is None else self._link.state.readiness
        return dict(states) if self._link.is_up else dict.fromkeys(states, "stalled")

    def models(self, caller: Caller = ANYONE) -> ModelList:
        if self._link.state is None:
            return NOTHING_KNOWN
        listed, names = self._link.state.models, self._link.state.names
        found = listed.models
        if caller.models is not None:
            allowed = {names[name] for name in caller.models if name in names}
            found = [info for info in found if info.name in allowed]
        if not self._link.is_up:
            found = [replace(info, state="stalled") for info in found]
        return replace(listed, models=found)

    async def drain(self) -> None:
        """Of this front-end's requests; the engine goes on for others."""
        self._draining = True
        await self._idle.wait()
