"""Calls of metrics, logs, traces, progress bars, caches and freed memory, whose exceptions must not fail a request.

The engine, the server, the library, downloads and bulk jobs make such calls through a Housekeeping of their own, on any
thread. The computation of a response is never called through it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("vectord.housekeeping")


class Housekeeping:
    """Calls functions that may raise any Exception: the first one of each class is logged with its traceback."""

    def __init__(self, what: str) -> None:
        """what: for the log."""
        self._what = what
        self._logged: set[type[Exception]] = set()

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        """The result of `call`; None if it raised an Exception."""
        try:
            return call(*args, **options)
        except Exception as problem:
            self.log(problem)
            return None

    async def wait(self, work: Awaitable[T]) -> T | None:
        """The result of `work`; None if it raised an Exception. A cancellation passes through."""
        try:
            return await work
        except Exception as problem:
            self.log(problem)
            return None

    def log(self, problem: Exception) -> None:
        """Logs a failure, the first of its class, for callers that catch it themselves."""
        if type(problem) not in self._logged:
            self._logged.add(type(problem))
            logger.error(
                "%s failed; answers are not affected, further failures are not logged", self._what, exc_info=problem
            )
