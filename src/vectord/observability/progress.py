"""Progress bars below the log lines of a terminal: downloads, and loading of large models.

Any module reports progress by a record of the logger `vectord.progress`, on any thread:

    progress.info("loading BAAI/bge-m3", extra={"progress": (done, total)})

total: None if it is unknown. A bar with the message appears with the first record, and disappears when `done` reaches
`total`, or when `done` is None. A further extra, `bar`, names a bar whose message changes. Other forms of the log leave
these records out.
"""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from vectord.observability.log_stream import LogStream

if TYPE_CHECKING:
    from rich.table import Column


BARS = logging.getLogger("vectord.progress")


def show_bars() -> None:
    """For commands whose log has warnings only."""
    BARS.setLevel(logging.INFO)


class LineHandler(logging.StreamHandler[TextIO | LogStream]):
    """Writes lines. The end of the process, which closes all handlers, waits until they are written."""

    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(sys.exc_info()[1], OSError):  # a full disk, which would not take a traceback either
            with LogStream.lock:
                LogStream.dropped += 1
        else:
            super().handleError(record)

    def close(self) -> None:
        if isinstance(self.stream, LogStream):
            self.stream.drain()
        super().close()


class TerminalHandler(LineHandler):
    def __init__(self, stream: TextIO | LogStream) -> None:
        super().__init__(stream)
        self._bars: Any = None  # rich's Progress while a bar is shown
        self._tasks: dict[str, Any] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if not hasattr(record, "progress") and self._bars is None:
            super().emit(record)
            return
        try:
            if (progress := getattr(record, "progress", None)) is not None:
                message = record.getMessage()
                self._draw(getattr(record, "bar", message), message, *progress)
                return
            from rich.text import Text  # noqa: PLC0415

            self._bars.console.print(Text.from_ansi(self.format(record)), soft_wrap=True)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._stop()
        super().close()

    def end_bars(self) -> None:
        """For an error that ends the process: its line does not continue a bar."""
        with self.lock or nullcontext():
            self._tasks.clear()
            self._stop()

    def _draw(self, bar: str, message: str, done: int | None, total: int | None) -> None:
        if done is None or done == total:
            if bar in self._tasks:
                self._bars.remove_task(self._tasks.pop(bar))
            if not self._tasks:
                self._stop()
            return
        if self._bars is None:
            self._start()
        if bar not in self._tasks:
            self._tasks[bar] = self._bars.add_task(message, total=total)
        self._bars.update(self._tasks[bar], completed=done, description=message)

    def _start(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - 60 ms, which a start without bars need not wait for
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        one_line = one_line_column()
        columns = (
            TextColumn("{task.description}", markup=False, table_column=one_line),
            BarColumn(),
            TaskProgressColumn(table_column=one_line),
            TimeElapsedColumn(table_column=one_line),
        )
        console = Console(file=cast("IO[str]", self.stream), force_terminal=True, highlight=False, markup=False)
        self._bars = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._bars.start()

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def terminal_handler() -> TerminalHandler | None:
    """The handler that draws bars; None if the log does not go to a terminal."""
    handlers = logging.getLogger().handlers
    return next((handler for handler in handlers if isinstance(handler, TerminalHandler)), None)


def one_line_column() -> Column:
    """A column of a bar, cropped without an ellipsis, which a terminal in ASCII does not show."""
    from rich.table import Column  # noqa: PLC0415 - only on a terminal

    return Column(no_wrap=True, overflow="crop")
