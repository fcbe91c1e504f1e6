"""A log whose reader stops: lines are dropped and counted, and no thread that logs waits."""

from __future__ import annotations

import errno
import io
import logging
import os
from collections.abc import Iterator
from typing import TextIO

import pytest

from vectord.config import TelemetryConfig
from vectord.observability import log_stream
from vectord.observability.log_stream import MAX_LINES, take_dropped
from vectord.observability.logs import configure

LOG = logging.getLogger("vectord.test")
PIPE_LINES = 1000  # more than fit into a pipe
LINE = "x" * 200


@pytest.fixture(autouse=True)
def short_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "CLOSE_S", 0.05)
    take_dropped()


@pytest.fixture
def pipe() -> Iterator[tuple[TextIO, TextIO]]:
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w") as writer:
        yield reader, writer


@pytest.mark.parametrize("log_format", ["console", "text", "json"])
def test_a_full_pipe_stops_no_thread_that_logs(pipe: tuple[TextIO, TextIO], log_format: str) -> None:
    """It had stopped the event loop, SIGTERM included. The lines that fit arrive, then the number of the others."""
    reader, writer = pipe
    configure(TelemetryConfig(log_format=log_format), writer)  # type: ignore[arg-type]
    for _ in range(MAX_LINES + PIPE_LINES):
        LOG.info(LINE)
    for handler in logging.getLogger().handlers:
        handler.close()  # as at the end of the process: it does not wait for ever
    dropped = take_dropped()
    assert 0 < dropped <= PIPE_LINES
    lines = [reader.readline() for _ in range(MAX_LINES + PIPE_LINES - dropped + 1)]
    assert all(LINE in line for line in lines[:-1])
    assert "log lines were dropped" in lines[-1]
    assert str(dropped) in lines[-1]


def test_the_lines_of_a_process_that_ends_are_written(pipe: tuple[TextIO, TextIO]) -> None:
    reader, writer = pipe
    configure(TelemetryConfig(), writer)
    for number in range(20):
        LOG.info("line %d.", number)
    for handler in logging.getLogger().handlers:
        handler.close()
    os.set_blocking(reader.fileno(), False)
    assert [f"line {number}." in reader.readline() for number in range(20)] == [True] * 20


def test_a_reader_that_has_ended_is_no_error(pipe: tuple[TextIO, TextIO], capfd: pytest.CaptureFixture[str]) -> None:
    """The lines count as dropped."""
    reader, writer = pipe
    configure(TelemetryConfig(), writer)
    reader.close()
    LOG.info("a line")
    for handler in logging.getLogger().handlers:
        handler.close()
    assert take_dropped() == 1
    assert capfd.readouterr().err == ""


def test_lines_that_a_full_disk_cannot_take_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    """Without a traceback for each, which the same file would not take either. Later lines are written."""

    class LogFile(io.StringIO):
        is_full = True

        def flush(self) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")

    file = LogFile()
    configure(TelemetryConfig(), file)
    LOG.info("a line")
    LOG.info("another %d", "mistake")
    file.is_full = False
    LOG.info("a last line")
    assert take_dropped() == 1
    assert "a last line" in file.getvalue()
    assert capfd.readouterr().err.count("Traceback") == 1
