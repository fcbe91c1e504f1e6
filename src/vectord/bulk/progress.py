"""How far a job is: a bar on a terminal, else a line of the log every half minute. Called on the event loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

log = logging.getLogger("vectord.bulk")

LINE_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Size:
    """Of the whole input, in rows where they are known, else in bytes as they lie in the files; None: not known."""

    total: int | None


class Progress(Protocol):
    def begin(self, position: int, rows: int) -> None:
        """Where this run begins: the rows before it are written."""
        ...

    def advance(self, position: int, rows: int, tokens: int) -> None:
        """So far: position in the input's own units, rows of the whole job, tokens of this run."""
        ...

    @contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        """Nothing is answered for now, because of `reason`."""
        ...


class Lines:
    """The log."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._begin = 0
        self._began_s = self._told_s = time.monotonic()
        self._waits = False

    def begin(self, position: int, rows: int) -> None:
        self._begin = position
        self._began_s = self._told_s = time.monotonic()
        if rows:
            log.info("going on behind %d rows", rows)

    def advance(self, position: int, rows: int, tokens: int) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < LINE_EVERY_S:
            return
        self._told_s = now_s
        elapsed_s = now_s - self._began_s
        left = left_s(self._size, self._begin, position, elapsed_s)
        end = "" if left is None else f", {_shown(left)} left"
        log.info("%d rows, %.0f tokens/s%s", rows, tokens / elapsed_s, end)

    @contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        if not self._waits:  # one of several requests says it
            log.warning("waiting: %s", reason)
        self._waits = True
        try:
            yield
        finally:
            self._waits = False


class Bar:
    """rich, on standard error. To be used in `with`."""

    def __init__(self, size: Size) -> None:
        from rich.console import Console  # noqa: PLC0415 - only where there is a terminal
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415

        self._size = size
        self._begin = 0
        self._began_s = time.monotonic()
        self._waits: list[str] = []
        self._shown = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%" if size.total else ""),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            expand=True,
        )
        self._task = self._shown.add_task("starting", total=size.total)
        self._done = "starting"

    def __enter__(self) -> Self:
        self._shown.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.stop()

    def begin(self, position: int, rows: int) -> None:
        self._begin = position
        self._began_s = time.monotonic()
        self._shown.update(self._task, completed=position, description=f"going on behind {rows:,} rows" if rows else "")

    def advance(self, position: int, rows: int, tokens: int) -> None:
        elapsed_s = max(time.monotonic() - self._began_s, 1e-3)
        left = left_s(self._size, self._begin, position, elapsed_s)
        end = "" if left is None else f", {_shown(left)} left"
        self._done = f"{rows:,} rows, {tokens / elapsed_s:,.0f} tokens/s{end}"
        self._tell(position)

    @contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        self._waits.append(reason)
        self._tell()
        try:
            yield
        finally:
            self._waits.remove(reason)
            self._tell()

    def _tell(self, position: int | None = None) -> None:
        words = f"{self._done} (waiting: {self._waits[-1]})" if self._waits else self._done
        self._shown.update(self._task, completed=position, description=words.replace("[", r"\["))


def left_s(size: Size, begin: int, position: int, elapsed_s: float) -> float | None:
    """Seconds, at the pace of this run; None: nobody knows."""
    if size.total is None or position <= begin:
        return None
    return max(0.0, (size.total - position) * elapsed_s / (position - begin))


def _shown(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
