"""The progress of a job: a bar of the log on a terminal, else a line every half minute. Called on the event loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from vectord.observability.progress import BARS, show_bars

log = logging.getLogger("vectord.bulk")

LINE_EVERY_S = 30.0


class JobProgress:
    """Positions count rows if the number of all rows, `total`, is known, else bytes of the files."""

    def __init__(self, total: int | None, *, has_bar: bool = False) -> None:
        """total: in the unit of positions; None: unknown."""
        self._total = total
        self._has_bar = has_bar
        self._begin = 0
        self._began_s = self._logged_s = time.monotonic()
        self._is_waiting = False
        if has_bar:
            show_bars()

    def begin(self, position: int, rows: int) -> None:
        """Start the display at `position`, after `rows` finished rows."""
        self._begin = position
        self._began_s = self._logged_s = time.monotonic()
        if rows:
            log.info("resuming after %d rows", rows)

    def advance(self, position: int, rows: int, tokens: int) -> None:
        """Show this progress. rows: of the whole job; tokens: of this run."""
        if self._has_bar:
            self._draw(position, f"{rows:,} rows, {self._pace(position, tokens)}")
        elif time.monotonic() - self._logged_s >= LINE_EVERY_S:
            self._logged_s = time.monotonic()
            log.info("%d rows, %s", rows, self._pace(position, tokens))

    def close(self) -> None:
        """End the bar."""
        self._draw(None, "")

    def _draw(self, position: int | None, line: str) -> None:
        BARS.info("%s", line, extra={"progress": (position, self._total), "bar": "job"})

    def _pace(self, position: int, tokens: int) -> str:
        """The speed of this run, and the remaining time."""
        elapsed_s = max(time.monotonic() - self._began_s, 1e-3)
        rate = f"{tokens / elapsed_s:,.0f} tokens/s"
        if self._total is None or position <= self._begin:
            return rate
        left_s = max(0.0, (self._total - position) * elapsed_s / (position - self._begin))
        minutes, seconds = divmod(round(left_s), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{rate}, {f'{hours}:{minutes:02}' if hours else minutes}:{seconds:02} left"

    @contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        """A context in which a request waits for its retry."""
        if not self._is_waiting:  # one line for all requests
            log.warning("waiting: %s", reason)
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False
