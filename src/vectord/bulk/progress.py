"""The progress of a job: a bar on a terminal, else a log line every half minute. Called on the event loop."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from vectord.housekeeping import Housekeeping
from vectord.observability.progress import one_line_column, terminal_handler

log = logging.getLogger("vectord.bulk")
model_log = logging.getLogger("vectord.progress")

LINE_EVERY_S = 30.0


class JobProgress:
    """Logs lines. Positions count rows if the number of all rows, `total`, is known, else bytes of the files."""

    def __init__(self, total: int | None) -> None:
        """total: in the unit of positions; None: unknown."""
        self._total = total
        self._begin = 0
        self._began_s = self._logged_s = time.monotonic()
        self._is_waiting = False

    def begin(self, position: int, rows: int) -> None:
        """Start the display at `position`, after `rows` finished rows."""
        self._begin = position
        self._began_s = self._logged_s = time.monotonic()
        if rows:
            log.info("resuming after %d rows", rows)

    def advance(self, position: int, rows: int, tokens: int) -> None:
        """Show this progress. rows: of the whole job; tokens: of this run."""
        if time.monotonic() - self._logged_s >= LINE_EVERY_S:
            self._logged_s = time.monotonic()
            log.info("%d rows, %s", rows, self.pace(position, tokens))

    def pace(self, position: int, tokens: int) -> str:
        """The speed of this run, and the remaining time."""
        elapsed_s = max(time.monotonic() - self._began_s, 1e-3)
        rate = f"{tokens / elapsed_s:,.0f} tokens/s"
        if self._total is None or position <= self._begin:
            return rate
        left_s = max(0.0, (self._total - position) * elapsed_s / (position - self._begin))
        return f"{rate}, {_duration(left_s)} left"

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


class ProgressBar(JobProgress):
    """Draws a bar on stderr by rich, within a `with` block."""

    def __init__(self, total: int | None) -> None:
        from rich.console import Console  # noqa: PLC0415 - only on a terminal
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

        super().__init__(total)
        self._reasons: list[str] = []
        self._housekeeping = Housekeeping("the progress bar")
        text = TextColumn(  # the bar shrinks first
            ("{task.percentage:>3.0f}% " if total else "") + "{task.description}",
            table_column=one_line_column(),
        )
        self._bar = Progress(BarColumn(bar_width=None), text, console=Console(stderr=True), expand=True)
        self._model_progress = _ModelProgress(self.start)
        self._done = "starting"
        self._task = self._bar.add_task(self._done, total=total)

    def __enter__(self) -> Self:
        self._housekeeping.run(self._bar.start)
        _write_log_to_stderr()
        model_log.addHandler(self._model_progress)
        model_log.setLevel(logging.INFO)  # the log itself shows warnings only
        model_log.propagate = False  # two bars cannot share a terminal
        return self

    def __exit__(self, *failure: object) -> None:
        model_log.propagate = True
        model_log.setLevel(logging.NOTSET)
        model_log.removeHandler(self._model_progress)
        self._housekeeping.run(self._bar.stop)
        _write_log_to_stderr()

    def start(self, step: str) -> None:
        """Show a step before the first row, such as a download."""
        self._done = step
        self._draw()

    def begin(self, position: int, rows: int) -> None:
        self._begin = position
        self._began_s = time.monotonic()
        self._update(position, f"resuming after {rows:,} rows" if rows else "")

    def advance(self, position: int, rows: int, tokens: int) -> None:
        self._done = f"{rows:,} rows, {self.pace(position, tokens)}"
        self._draw(position)

    @contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        self._reasons.append(reason)
        self._draw()
        try:
            yield
        finally:
            self._reasons.remove(reason)
            self._draw()

    def _draw(self, position: int | None = None) -> None:
        words = f"{self._done} (waiting: {self._reasons[-1]})" if self._reasons else self._done
        self._update(position, words.replace("[", r"\["))

    def _update(self, position: int | None, description: str) -> None:
        self._housekeeping.run(self._bar.update, self._task, completed=position, description=description)


class _ModelProgress(logging.Handler):
    """Reports downloads and loading: see observability/progress.py."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        done, total = getattr(record, "progress", (None, None))
        share = f", {done / total:.0%}" if done is not None and total else ""
        self._report("starting" if done is None else record.getMessage() + share)


def _write_log_to_stderr() -> None:
    """While a bar is drawn, rich has replaced sys.stderr by a stream that writes above the bar."""
    if (handler := terminal_handler()) is not None:
        handler.setStream(sys.stderr)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
