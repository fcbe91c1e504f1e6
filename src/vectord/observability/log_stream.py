"""A stream for log handlers that never blocks: a thread writes to the pipe, socket or terminal.

A collector that stops, or a terminal after Ctrl-S, stops the writer alone. Lines beyond MAX_LINES are dropped and
counted; when the reader continues, a line of the log has their number. Used on any thread.
"""

from __future__ import annotations

import io
import logging
import os
import select
import stat
import threading
import time
from queue import SimpleQueue
from typing import TextIO

MAX_LINES = 10_000  # that wait for the reader
CLOSE_S = 1.0  # how long the end of the process waits for it
POLL_S = 0.01

_log = logging.getLogger("vectord.logs")


class LogStream(io.TextIOBase):
    lock = threading.Lock()  # of all streams
    dropped = 0  # lines of all streams, since the last `take_dropped`

    def __init__(self, stream: TextIO) -> None:
        """stream: with a file descriptor. The thread starts with the first line."""
        self._fd = stream.fileno()
        self._is_terminal = stream.isatty()
        self._encoding = stream.encoding or "utf-8"
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._unwritten = 0  # lines in the queue and in the writer's hands; changed under `lock`
        self._lost = 0  # lines dropped since the reader stopped
        self._writer: threading.Thread | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override] # a property of TextIOBase as well
        return self._encoding

    def isatty(self) -> bool:
        return self._is_terminal

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str) -> int:
        with self.lock:
            if self._unwritten >= MAX_LINES:
                self._lost += 1
                LogStream.dropped += 1
                return len(text)
            self._unwritten += 1
            if self._writer is None or not self._writer.is_alive():  # not in a process that was forked
                self._writer = threading.Thread(target=self._write_all, name="vectord-log", daemon=True)
                self._writer.start()
        self._lines.put(text)
        return len(text)

    def flush(self) -> None:
        """Does nothing: handlers call it after each line."""

    def drain(self) -> None:
        deadline_s = time.monotonic() + CLOSE_S
        while self._unwritten and time.monotonic() < deadline_s:
            time.sleep(POLL_S)

    def _write_all(self) -> None:
        while True:
            line = self._lines.get().encode(self._encoding, "backslashreplace")
            while line:
                try:
                    # Not through the stream: its lock would stop the end of the process while this waits.
                    line = line[os.write(self._fd, line) :]
                except BlockingIOError:  # another process has made the pipe non-blocking
                    select.select([], [self._fd], [])
                except OSError:  # the reader has ended, or the disk is full
                    with self.lock:
                        LogStream.dropped += 1
                    break
            with self.lock:
                self._unwritten -= 1
                lost = 0 if self._unwritten else self._lost
                self._lost -= lost
            if lost:
                _log.warning("log lines were dropped: nothing read them", extra={"fields": {"lines": lost}})


def log_stream(stream: TextIO) -> TextIO | LogStream:
    """The stream that never blocks; `stream` itself if it is a file or in memory."""
    try:
        is_file = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # closed, or without a descriptor
        return stream
    return stream if is_file else LogStream(stream)


def drain_logs() -> None:
    """Before a line that is written to standard error itself."""
    for handler in logging.getLogger().handlers:
        if isinstance(stream := getattr(handler, "stream", None), LogStream):
            stream.drain()


def take_dropped() -> int:
    """The number of lines that this process has dropped since the last call."""
    with LogStream.lock:
        lines, LogStream.dropped = LogStream.dropped, 0
    return lines
