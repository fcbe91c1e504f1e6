"""Calls of metrics, logs, traces, progress bars, caches and freed memory, whose exceptions must not fail a request.

The engine, the server, the library, downloads and bulk jobs make such calls through a Housekeeping of their own, on any
thread. The computation of a response is never called through it. A Breaker skips a service that fails, such as Redis.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

RETRY_S = 5.0  # how long a failing service is not called


class GuardedLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger for code that computes answers: an exception of the application's log handlers is dropped."""

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        with suppress(Exception):
            super().log(level, msg, *args, **kwargs)


logger = GuardedLogger(logging.getLogger("vectord.housekeeping"))


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


class Breaker:
    """Opens with a failure. Then one call every RETRY_S is let through, until one succeeds. Both changes are logged."""

    def __init__(self, what: str, log: logging.Logger) -> None:
        """what: the subject of a sentence in the log."""
        self.is_open = False
        self._what = what
        self._log = log
        self._retry_at_s = 0.0  # by time.monotonic()

    @property
    def blocks(self) -> bool:
        """It is open, and no call would be let through now."""
        return self.is_open and time.monotonic() < self._retry_at_s

    def lets_pass(self) -> bool:
        if not self.is_open:
            return True
        if self.blocks:
            return False
        self._retry_at_s = time.monotonic() + RETRY_S  # this call retries; the others do not wait for it
        return True

    def failed(self, problem: Exception) -> None:
        """Logs the problem's class only: its message may contain an address with a password."""
        self._retry_at_s = time.monotonic() + RETRY_S
        if not self.is_open:
            self.is_open = True
            self._log.warning("%s fails (%s): going on without it", self._what, type(problem).__name__)

    def worked(self) -> None:
        if self.is_open:
            self.is_open = False
            self._log.warning("%s works again", self._what)
