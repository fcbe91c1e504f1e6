"""Log lines, for people or for collectors. Configured once per process; used on any thread.

The standard library's logging carries everything, so that other libraries' lines come out in the same shape. One line a
request names its id, route, status, time, tokens and model: never a text, never a key, never a path as sent.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, TextIO

import orjson

from vectord.config import TelemetryConfig
from vectord.observability.exchange import Exchange
from vectord.observability.log_stream import log_stream
from vectord.observability.progress import LineHandler, TerminalHandler

REQUESTS = logging.getLogger("vectord.requests")
_failures = logging.getLogger("vectord.failures")
START = logging.getLogger("vectord.start")  # where the server listens and what it serves; printed at every level

FACTS = logging.getLogger("vectord.facts")  # the settings and the warm-up, for collectors; the console leaves them out


def configure(config: TelemetryConfig, output: TextIO | None = None, process: str | None = None) -> None:
    """From now on every logger's lines of `config.log_level` and above go to `output`, by default standard error.
    process: the name of this process among several; part of each line."""
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    # Our lines do not contain these; logging's documentation describes the three switches.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    stream = log_stream(output or sys.stderr)
    is_terminal = stream.isatty()
    form = ("console" if is_terminal else "text") if config.log_format == "auto" else config.log_format
    handler = TerminalHandler(stream) if form == "console" and is_terminal else LineHandler(stream)
    if not isinstance(handler, TerminalHandler):
        handler.addFilter(lambda record: not hasattr(record, "progress"))
    colored = is_terminal and not os.environ.get("NO_COLOR")  # https://no-color.org
    match form:
        case "console":
            handler.setFormatter(ConsoleLines(process, colored=colored))
            handler.addFilter(lambda record: record.name != FACTS.name)
        case "text":
            handler.setFormatter(TextLines(process))
        case "json":
            handler.setFormatter(JsonLines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    START.setLevel(min(logging.INFO, level))
    REQUESTS.setLevel(logging.NOTSET if config.access_log else logging.CRITICAL)
    # Debug and info lines of these libraries describe their internals: frames, files, URLs with signatures, retries.
    http = ("httpx", "httpx2", "httpcore", "httpcore2", "urllib3")
    for library in ("uvicorn", "asyncio", *http, "filelock", "huggingface_hub"):
        logging.getLogger(library).setLevel(max(logging.WARNING, level))


def rename_events(names: Mapping[str, str]) -> None:
    """From now on the events of FACTS have these names."""

    def rename(record: logging.LogRecord) -> bool:
        record.msg = names.get(record.msg, record.msg)
        return True

    FACTS.filters[:] = [rename]


def log_answer(level: int, exchange: Exchange) -> None:
    if not REQUESTS.isEnabledFor(level):
        return
    fields: dict[str, object] = {
        "id": exchange.request_id,
        "method": exchange.method,
        "route": exchange.route,
        "status": exchange.status if exchange.grpc_code is None else exchange.grpc_code,
        "latency_ms": round(exchange.seconds * 1000, 2),
    }
    if exchange.model is not None:
        fields["model"] = exchange.model
    if exchange.tokens is not None:
        fields["tokens"] = exchange.tokens
    if exchange.embedded is not None:
        fields["batch_size"] = exchange.embedded
    if (timings := exchange.timings) is not None:
        fields["tokenize_ms"] = round(timings.tokenizing_s * 1000, 2)
        fields["queue_ms"] = round(timings.waiting_s * 1000, 2)
        fields["inference_ms"] = round(timings.computing_s * 1000, 2)
    if exchange.reason is not None:
        fields["reason"] = exchange.reason
    if exchange.trace_id is not None:
        fields["trace_id"] = exchange.trace_id
    if exchange.key is not None:
        fields["key"] = exchange.key
    event = "answered" if exchange.embedded is None else "embedding_request"
    # Not by Logger.info: it walks the stack for the caller's name, which costs as much as the rest of the line.
    record = logging.LogRecord(REQUESTS.name, level, __file__, 0, event, (), None)
    record.fields = fields
    record.exchange = exchange
    REQUESTS.handle(record)


class RefusalLog:
    """Limits the log lines of refused requests: the first of each error class in a second has a line of its own, and
    the others share one with their number, a second later. Event loop only."""

    def __init__(self) -> None:
        self._further: Counter[str] = Counter()

    def is_first(self, error: str) -> bool:
        if error in self._further:
            self._further[error] += 1
            return False
        self._further[error] = 0
        import asyncio  # noqa: PLC0415 - not at start: a model should begin to load first

        asyncio.get_running_loop().call_later(1.0, self._write, error)
        return True

    def _write(self, error: str) -> None:
        count = self._further.pop(error)
        if count:
            REQUESTS.info("refused", extra={"fields": {"error": error, "count": count}})


def log_failure(cause: BaseException, *, request_id: str, method: str, route: str) -> None:
    fields = {"id": request_id, "method": method, "route": route}
    _failures.error("request failed", exc_info=cause, extra={"fields": fields})


class Lines(logging.Formatter):
    def __init__(self, process: str | None = None) -> None:
        super().__init__()
        self._process = {} if process is None else {"process": process}

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """The fields after the event. Lines of other libraries have the process only."""
        return {**getattr(record, "fields", {}), **self._process}


class TextLines(Lines):
    """2026-11-05 12:00:00.123 info  answered method=POST route=/v1/embeddings status=200 ..."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(
            [
                f" {name}={_quoted(value) if isinstance(value, str) else value}"
                for name, value in self.fields(record).items()
            ]
        )
        line = f"{self.head(record)}{record.getMessage()}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line

    def head(self, record: logging.LogRecord) -> str:
        return f"{_time(record)} {record.levelname.lower():<7} "


class ConsoleLines(TextLines):
    """12:00:00 200 POST /v1/embeddings all-MiniLM-L6-v2 2 texts 14 tokens 5.2 ms"""

    def __init__(self, process: str | None = None, *, colored: bool = False) -> None:
        super().__init__(process)
        self._colored = colored

    def format(self, record: logging.LogRecord) -> str:
        exchange = getattr(record, "exchange", None)
        if isinstance(exchange, Exchange):
            return f"{_time(record)[11:19]} {self._request(exchange)}"
        line = super().format(record)
        if record.name == START.name and record.levelno == logging.INFO:
            return self._color(line, GREEN)
        return line

    def head(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else record.levelname.lower() + " "
        return f"{_time(record)[11:19]} {self._color(level, RED if record.levelno >= logging.ERROR else YELLOW)}"

    def _request(self, exchange: Exchange) -> str:
        status = exchange.status
        color = RED if status >= HTTPStatus.INTERNAL_SERVER_ERROR else YELLOW
        parts = [
            self._color(str(status), GREEN if status < HTTPStatus.BAD_REQUEST else color),
            exchange.method,
            exchange.route,
            exchange.model,
            None if exchange.texts is None else f"{exchange.texts} text{'s'[: exchange.texts != 1]}",
            None if exchange.tokens is None else f"{exchange.tokens:,} tokens",
            f"{exchange.seconds * 1000:.1f} ms",
            exchange.reason or exchange.error,
        ]
        return " ".join(part for part in parts if part)

    def _color(self, text: str, color: str) -> str:
        return f"{color}{text}{PLAIN}" if self._colored and text else text


class JsonLines(Lines):
    """One JSON object a line: time (UTC, RFC 3339), level, logger, event, the fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        utc = _written(time.gmtime, "%Y-%m-%dT%H:%M:%S", int(record.created))
        line: dict[str, Any] = {
            "time": f"{utc}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **self.fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


GREEN, YELLOW, RED, PLAIN = "\033[32m", "\033[33m", "\033[31m", "\033[0m"


def _quoted(value: str) -> str:
    """A text with spaces in quotes, so that the fields of a line can be separated."""
    return orjson.dumps(value).decode() if " " in value or '"' in value else value


def _time(record: logging.LogRecord) -> str:
    seconds = _written(time.localtime, "%Y-%m-%d %H:%M:%S", int(record.created))
    return f"{seconds}.{int(record.msecs):03d}"


@lru_cache(maxsize=2)  # under load many lines have the same second
def _written(convert: Callable[[float], time.struct_time], form: str, seconds: int) -> str:
    return time.strftime(form, convert(seconds))
