"""progress.py: the bar, and when it is shown."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import pytest
from tests.client.fakes import FakeServer

from vectord.client import BadRequest
from vectord.client.client import BULK_REQUESTS

LARGE = ["abc"] * (BULK_REQUESTS + 1)
ONE_EACH = {"texts_per_request": 1}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """stderr within, 100 columns wide."""
    monkeypatch.setenv("COLUMNS", "100")
    with redirect_stderr(Terminal()) as shown:
        yield shown


def test_a_large_call_on_a_terminal_shows_a_bar(call, monkeypatch):
    """With the finished texts, their rate and the tokens."""
    with terminal(monkeypatch) as shown:
        call(FakeServer(), "embed", LARGE, client=ONE_EACH)
    assert "9/9 texts" in shown.getvalue()
    assert "/s, 27 tokens" in shown.getvalue()


def test_a_small_call_shows_no_bar(call, monkeypatch):
    """Nor does progress=False."""
    with terminal(monkeypatch) as shown:
        call(FakeServer(), "embed", LARGE[1:], client=ONE_EACH)
        call(FakeServer(), "embed", LARGE, client=ONE_EACH, progress=False)
    assert shown.getvalue() == ""


def test_a_file_gets_no_bar_by_default(call, capsys):
    """Logs of jobs stay readable. progress=True shows it."""
    call(FakeServer(), "embed", LARGE, client=ONE_EACH)
    assert capsys.readouterr() == ("", "")
    call(FakeServer(), "embed", ["abc"], progress=True)
    shown = capsys.readouterr()
    assert "1/1 texts" in shown.err
    assert shown.out == ""


def test_a_notebook_shows_the_bar_as_text(call, capsys, monkeypatch):
    """rich's widget would need ipywidgets: without them it draws nothing, and warns."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    call(FakeServer(), "embed", ["abc"], progress=True)
    assert "1/1 texts" in capsys.readouterr().err


def test_the_bar_ends_with_a_call_that_fails(call, monkeypatch):
    """It shows the finished texts."""
    with terminal(monkeypatch) as shown, pytest.raises(BadRequest):
        call(FakeServer(), "embed", [*LARGE, "x" * 1001], client=ONE_EACH)
    assert "9/10 texts" in shown.getvalue()
