"""Log lines as text and as JSON."""

from __future__ import annotations

import io
import json
import logging
import re
from typing import Any

import pytest

from vectord.config import TelemetryConfig
from vectord.observability.exchange import Exchange
from vectord.observability.logs import START, configure, log_answer, log_failure


def answered(level: int = logging.INFO, **facts: Any) -> None:
    """facts: fields of the Exchange to change."""
    exchange = Exchange(
        **{
            "method": "POST",
            "dialect": "openai",
            "route": "/v1/embeddings",
            "status": 200,
            "request_id": "id-1",
            "began_s": 1.0,
            "ended_s": 1.00321,
            "model": "m",
            "tokens": 7,
            **facts,
        }
    )
    log_answer(level, exchange)


def written(**settings: Any) -> io.StringIO:
    stream = io.StringIO()
    configure(TelemetryConfig(**settings), stream)
    return stream


def test_a_line_for_people() -> None:
    """Time, level, event, and fields as name=value."""
    stream = written()
    answered()
    pattern = (
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} info    answered id=id-1 method=POST route=/v1/embeddings "
        r"status=200 latency_ms=3.21 model=m tokens=7\n"
    )
    assert re.fullmatch(pattern, stream.getvalue())


def test_a_line_on_a_terminal() -> None:
    """The line is short, without the request id and the steps."""
    stream = written(log_format="console")
    answered(texts=2)
    START.info("listening")
    logging.getLogger("vectord.facts").info("warmup", extra={"fields": {"seconds": 1}})
    logging.getLogger("vectord").warning("message")
    lines = [line[9:] for line in stream.getvalue().splitlines()]
    assert lines == ["200 POST /v1/embeddings m 2 texts 7 tokens 3.2 ms", "listening", "warning message"]


@pytest.mark.parametrize("log_format", ["console", "text", "json"])
def test_a_refused_request_has_its_reason(log_format: str) -> None:
    """The line contains the error message, so that an operator sees why a request failed."""
    stream = written(log_format=log_format)
    answered(status=400, model=None, tokens=None, reason="`input` must have at most 256 tokens; got 302")
    line = stream.getvalue()
    assert "`input` must have at most 256 tokens; got 302" in line
    assert ("400 POST /v1/embeddings 3.2 ms `input`" in line) == (log_format == "console")


def test_a_terminal_gets_the_short_lines_in_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, a terminal gets the short lines and a pipe the complete ones."""
    stream = written()
    answered(status=503)
    assert "id=id-1" in stream.getvalue()
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.delenv("NO_COLOR", raising=False)
    configure(TelemetryConfig(), terminal)
    answered(status=503)
    START.info("vectord serves m")
    assert "\x1b[31m503\x1b[0m POST" in terminal.getvalue()
    assert "vectord serves m\x1b[0m" in terminal.getvalue()


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of no-color.org turns colours off on a terminal, too."""
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    configure(TelemetryConfig(), terminal)
    answered(status=503)
    assert "503 POST" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


def test_requests_can_be_left_out() -> None:
    """--no-access-log removes request lines only."""
    stream = written(access_log=False)
    answered()
    logging.getLogger("vectord").info("another line")
    assert stream.getvalue().count("\n") == 1
    written()
    assert logging.getLogger("vectord.requests").isEnabledFor(logging.INFO)


def test_a_line_for_collectors() -> None:
    """One JSON object with the time in UTC and the fields at top level."""
    stream = written(log_format="json")
    answered(model=None, tokens=None)
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "info",
        "logger": "vectord.requests",
        "event": "answered",
        "id": "id-1",
        "method": "POST",
        "route": "/v1/embeddings",
        "status": 200,
        "latency_ms": 3.21,
    }


def test_an_embedding_request_has_simple_inference_servers_event() -> None:
    """Dashboards count these events with model, latency_ms, batch_size and status."""
    stream = written(log_format="json")
    answered(embedded=3)
    line = json.loads(stream.getvalue())
    fields = {key: line[key] for key in ("event", "model", "latency_ms", "batch_size", "status")}
    assert fields == {"event": "embedding_request", "model": "m", "latency_ms": 3.21, "batch_size": 3, "status": 200}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_failure_has_its_traceback_and_request_id(log_format: str) -> None:
    """The line has both; in JSON, the traceback does not break the line."""
    stream = written(log_format=log_format)
    try:
        raise RuntimeError("the cause")
    except RuntimeError as cause:
        log_failure(cause, request_id="id-1", method="POST", route="/embed")
    text = stream.getvalue()
    assert "id-1" in text
    assert "RuntimeError: the cause" in text
    assert "test_logs.py" in text
    if log_format == "json":
        assert text.count("\n") == 1
        assert json.loads(text)["level"] == "error"


def test_lines_of_other_libraries_have_the_same_format() -> None:
    """Arguments are formatted; values that JSON cannot represent become text."""
    stream = written(log_format="json")
    logging.getLogger("some.library").warning("%d of %s", 3, object)
    line = json.loads(stream.getvalue())
    assert (line["logger"], line["event"]) == ("some.library", "3 of <class 'object'>")


@pytest.mark.parametrize(("level", "lines"), [("debug", 2), ("info", 1), ("warning", 0), ("error", 0)])
def test_levels(level: str, lines: int) -> None:
    """Requests log at info, probes at debug."""
    stream = written(log_level=level)
    answered(logging.INFO)
    answered(logging.DEBUG)
    assert stream.getvalue().count("\n") == lines


def test_uvicorns_own_lines_are_left_out() -> None:
    """uvicorn's info lines repeat our own; its warnings are kept."""
    stream = written(log_level="debug")
    logging.getLogger("uvicorn.error").info("Waiting for application startup.")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert stream.getvalue().count("\n") == 1


def test_requests_to_the_hub_are_left_out() -> None:
    """The HTTP client of huggingface_hub logs each URL, which after a redirect contains a signature."""
    from huggingface_hub import get_session

    library = type(get_session()).__module__.partition(".")[0]
    stream = written()
    logging.getLogger(library).info("HTTP Request: GET https://hub.example/model?signature=secret")
    assert stream.getvalue() == ""


def test_configuring_twice_logs_once() -> None:
    """A second configuration replaces the first."""
    first, second = written(), written()
    answered()
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1
