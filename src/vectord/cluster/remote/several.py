"""The engines of several processes as one EngineClient, on a front-end's event loop: each has the same models, and a
device of its own.

A request goes to an engine whose models are all there, and of those to the one that has least of this front-end's
under way, in turn where that is the same. One whose process is being replaced is not asked; what it had under way is
answered with Unavailable and tried nowhere else: it may be what ended the process. Nor is one asked that computes in
other numbers than the first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import cast

from vectord.cluster.remote.client import RemoteEngine
from vectord.cluster.remote.link import NO_ENGINE
from vectord.cluster.remote.together import lists_together, readiness_together, statistics_together
from vectord.errors import Unavailable
from vectord.schema import (
    ANYONE,
    Caller,
    ListModels,
    LoadModel,
    ModelList,
    Request,
    Result,
    ShowStatistics,
    Statistics,
    UnloadModel,
)

_log = logging.getLogger("vectord.cluster.remote")


class RemoteEngines:
    """Implements EngineClient."""

    def __init__(self, engines: Sequence[RemoteEngine], turn: int = 0) -> None:
        """engines: at least one. turn: whose it is first; front-ends should differ."""
        self._engines = engines
        self._turn = turn
        self._strangers: set[RemoteEngine] = set()  # told of in the log

    async def answer(self, request: Request, caller: Caller) -> Result:
        """Raises Unavailable beside what the engines raise: all of their processes are being replaced."""
        match request:
            case ListModels() | LoadModel() | UnloadModel():
                return lists_together(cast("list[ModelList]", await self._ask_all(request, caller)))
            case ShowStatistics():
                return statistics_together(cast("list[Statistics]", await self._ask_all(request, caller)))
        return await self._ask_one(request, caller)

    async def _ask_one(self, request: Request, caller: Caller) -> Result:
        refusal = Unavailable(NO_ENGINE)
        for engine in self._best_first():
            try:
                return await engine.answer(request, caller)
            except Unavailable as error:
                if not engine.is_up:
                    raise
                refusal = error  # its model is not there yet, or no more: another's may be
        raise refusal

    def _best_first(self) -> list[RemoteEngine]:
        self._turn += 1
        count = len(self._engines)
        in_turn = [self._engines[(self._turn - 1 + place) % count] for place in range(count)]
        alike = [engine for engine in in_turn if engine.is_up and not self._is_stranger(engine)]
        return sorted(alike, key=lambda one: (not _is_whole(one), one.load_bytes))

    def _is_stranger(self, engine: RemoteEngine) -> bool:
        known = {name: numbers for name, *numbers in self._engines[0].numbers}
        other = [name for name, *numbers in engine.numbers if known.get(name, numbers) != numbers]
        if other and engine not in self._strangers:
            self._strangers.add(engine)
            _log.error("a device computes %s in other numbers than the first: it is not asked; say --dtype", other[0])
        return bool(other)

    async def _ask_all(self, request: Request, caller: Caller) -> list[Result]:
        """All of them have answered, or failed, when this returns, or raises the first failure."""
        living = self._living()
        if not living:
            raise Unavailable(NO_ENGINE)
        answers = await asyncio.gather(*(one.answer(request, caller) for one in living), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return cast("list[Result]", answers)

    def _living(self) -> list[RemoteEngine]:
        return [engine for engine in self._engines if engine.is_up]

    def readiness(self) -> dict[str, str]:
        return readiness_together(engine.readiness() for engine in self._engines)

    def models(self, caller: Caller = ANYONE) -> ModelList:
        return lists_together([engine.models(caller) for engine in self._engines])

    async def drain(self) -> None:
        """Of this front-end's requests; the engines go on for others."""
        await asyncio.gather(*(engine.drain() for engine in self._engines))


def _is_whole(engine: RemoteEngine) -> bool:
    return all(state in ("ready", "unloaded") for state in engine.readiness().values())
