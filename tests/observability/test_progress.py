"""Progress bars: below the lines of a terminal, and nowhere else."""

from __future__ import annotations

import io
import logging
import re

import pytest

from vectord.config import TelemetryConfig
from vectord.observability.logs import configure
from vectord.observability.progress import terminal_handler

LOG = logging.getLogger("vectord.engine")
PROGRESS = logging.getLogger("vectord.progress")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(done: int | None, total: int | None, what: str = "model.safetensors") -> None:
    PROGRESS.info(what, extra={"progress": (done, total)})


def test_a_terminal_that_is_gone_fails_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the load of a model, which reports its progress."""
    terminal = Terminal()
    configure(TelemetryConfig(), terminal)
    monkeypatch.setattr(logging, "raiseExceptions", False)  # else logging prints a traceback
    terminal.close()
    report(0, 10)
    LOG.info("a line")
    report(10, 10)


def test_a_bar_is_shown_until_it_is_full() -> None:
    """Lines of the log appear above it. At the end the terminal has the lines only."""
    terminal = Terminal()
    configure(TelemetryConfig(), terminal)
    report(0, 10)
    report(5, 10)
    LOG.info("a line with [brackets]")
    during = terminal.getvalue()
    assert "model.safetensors" in during
    report(10, 10)
    LOG.info("a last line")
    assert re.search(r"a line with \[brackets\]\n", during.replace("\r", ""))
    after = terminal.getvalue()[len(during) :]
    assert after.endswith("a last line\n")
    assert "\x1b[2K" in after  # the bar is erased


def test_a_bar_on_a_narrow_terminal_in_ascii_is_one_line_of_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign that the encoding lacks would be escaped, and the longer line could not be erased."""
    monkeypatch.setenv("COLUMNS", "40")

    class Ascii(Terminal):
        encoding = "ascii"

    terminal = Ascii()
    configure(TelemetryConfig(), terminal)
    report(0, 10, "sentence-transformers/config_sentence_transformers.json")
    LOG.info("a line, after which the bar is drawn")
    assert "sentence-transformers" in terminal.getvalue()
    assert terminal.getvalue().isascii()


def test_several_bars_end_one_by_one() -> None:
    """Of models, one of which fails: its report has no number."""
    terminal = Terminal()
    configure(TelemetryConfig(), terminal)
    report(0, None, "loading a")
    report(0, None, "loading b")
    report(None, None, "loading a")
    report(None, None, "never shown")
    report(None, None, "loading b")
    shown = terminal.getvalue()
    LOG.info("the end")
    assert terminal.getvalue()[len(shown) :].endswith("the end\n")


def test_all_bars_may_be_ended() -> None:
    """For an error that ends the process: its line does not continue a bar."""
    terminal = Terminal()
    configure(TelemetryConfig(), terminal)
    report(1, 10)
    report(1, 10, "config.json")
    handler = terminal_handler()
    assert handler is not None
    handler.end_bars()
    shown = terminal.getvalue()
    terminal.write("vectord: interrupted\n")
    assert shown.endswith("\x1b[2K")
    report(2, 10)
    assert "model.safetensors" in terminal.getvalue()[len(shown) :]


@pytest.mark.parametrize("log_format", ["text", "json", "console"])
def test_a_pipe_gets_no_bar(log_format: str) -> None:
    """A collector reads lines only."""
    pipe = io.StringIO()
    configure(TelemetryConfig(log_format=log_format), pipe)  # type: ignore[arg-type]
    report(0, 10)
    LOG.info("a line")
    assert len(pipe.getvalue().splitlines()) == 1


def test_warnings_alone_have_no_bar() -> None:
    terminal = Terminal()
    configure(TelemetryConfig(log_level="warning"), terminal)
    report(0, 10)
    assert terminal.getvalue() == ""
