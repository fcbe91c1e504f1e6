"""`vectord bench`: latency and throughput of a server that runs, as Smart Embedder's benchmark.py shows them."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vectord.cli.parsing import Parser, seconds, token_of, whole
from vectord.cli.printing import print_table, print_text
from vectord.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from vectord.tools.bench.figures import Figures
    from vectord.tools.probe.server import Server

USAGE = "bench [--url URL] [options]"
SUMMARY = "measure a server that runs"

_SCENARIOS = ("embed_dense", "embed_full", "rerank")
_BUSY = 0.8  # of a core: from here on the load generator may be the limit
_COLUMNS = (
    *("Scenario", "Reqs", "OK", "Fail", "Conc", "Wall", "Req/s", "Units/s"),
    *("Avg", "P50", "P95", "P99", "Min", "Max"),
)

_DESCRIPTION = """\
Sends requests of a scenario to the server at URL, so many at a time, and prints how long they took. It asks by
whatever API the server speaks: OpenAI's, text-embeddings-inference's, Smart Embedder's and others.

  embed_dense   dense vectors of --batch-size sentences
  embed_full    dense, sparse and ColBERT vectors of them, by Smart Embedder's /embeddings/
  rerank        a query and --batch-size passages

A scenario that the server has no route or model for is left out, unless --scenarios names it."""

_EPILOG = """\
columns:
  Units/s is sentences or passages a second; Avg to Max are milliseconds from the request's first byte to the
  answer's last, of the requests that were answered; Wall is seconds.

exit codes:
  0    every request was answered with 200
  1    at least one was not, or a scenario that --scenarios names cannot be asked
  2    bad options, or nothing answers at URL
  130  Ctrl-C

environment:
  API_TOKEN, else VECTORD_API_KEY    the token, where --token is not given

examples:
  vectord bench --concurrency 8 --requests 100 --batch-size 4
  vectord bench --url http://gpu-box:8000 --scenarios embed_dense --requests 2000 --concurrency 64 --json
  vectord bench --sleep-between 65        # a server that limits requests a minute"""


def help() -> str:
    return parser().format_help()


def parser() -> Parser:
    own = Parser("bench", usage="vectord bench [--url URL] [options]", description=_DESCRIPTION, epilog=_EPILOG)
    add = own.add_argument_group("the server").add_argument
    add("--url", default="http://localhost:8000", help="default: http://localhost:8000")
    add("--token", help="Bearer token")
    add("--model", metavar="NAME", help="asked by that name (default: the first that the server names)")
    add("--timeout", metavar="S", type=seconds(3600), default=60.0, help="of one request; 0: none (default: 60)")
    add = own.add_argument_group("the load").add_argument
    add("--scenarios", metavar="LIST", help=f"some of {','.join(_SCENARIOS)} (default: all that can be asked)")
    add("--concurrency", metavar="N", type=whole(1, 10_000), default=8, help="requests at a time (default: 8)")
    add("--requests", metavar="N", type=whole(1, 10_000_000), default=100, help="a scenario (default: 100)")
    add("--batch-size", metavar="N", type=whole(1, 100_000), default=4, help="texts a request (default: 4)")
    add("--warmup", metavar="N", type=whole(0, 100_000), default=5, help="requests before, uncounted (default: 5)")
    add(
        "--max-batch-size",
        metavar="N",
        type=whole(0, 100_000),
        default=128,
        help="refuse a larger --batch-size than the server would take; 0: do not (default: 128)",
    )
    add("--sleep-between", metavar="S", type=seconds(3600), default=0.0, help="between scenarios (default: 0)")
    add("--repeat", action="store_true", help="the same texts in every request; else 64 requests differ")
    own.add_argument_group("what is printed").add_argument("--no-progress", action="store_true", help="no bar")
    own.add_common()
    return own


def run(words: Sequence[str]) -> int:
    options = parser().parse_args(words)
    names = _names(options)
    if options.max_batch_size and options.batch_size > options.max_batch_size:
        raise ConfigError(f"--batch-size: {options.batch_size} is more than --max-batch-size {options.max_batch_size}")
    from vectord.tools.probe.forms import find_model  # noqa: PLC0415 - httpx
    from vectord.tools.probe.server import Server, check_url  # noqa: PLC0415

    url = check_url(options.url, "--url")
    options.token = token_of(options)
    with Server(url, options.token, options.timeout or 3600) as server:
        reply = server.get("/health")
        if reply.status == 0:
            raise ConfigError(f"--url: nothing answers at {url} ({reply.problem})")
        model = options.model or find_model(server)
        found, unasked = _measure_all(server, names, options, model)
    return _report(url, found, unasked, options)


def _names(options: Namespace) -> Sequence[str]:
    if options.scenarios is None:
        return _SCENARIOS
    names = list(dict.fromkeys(name.strip() for name in options.scenarios.split(",") if name.strip()))
    if not names or not set(names) <= set(_SCENARIOS):
        raise ConfigError(f"--scenarios: expected some of {','.join(_SCENARIOS)}, got {options.scenarios!r}")
    return names


def _measure_all(
    server: Server, names: Sequence[str], options: Namespace, model: str | None
) -> tuple[list[tuple[Figures, str]], dict[str, str]]:
    """Figures with the API they were measured by, and of what could not be asked the reasons."""
    from vectord.tools.bench.scenarios import Unasked, scenario  # noqa: PLC0415

    found: list[tuple[Figures, str]] = []
    unasked: dict[str, str] = {}
    for name in names:
        try:
            wanted = scenario(server, name, model=model, batch_size=options.batch_size, repeat=options.repeat)
        except Unasked as why:
            unasked[name] = str(why)
            continue
        if found:
            time.sleep(options.sleep_between)
        found.append((_measure(server, wanted, options), wanted.form))
    return found, unasked


def _measure(server: Server, wanted: Any, options: Namespace) -> Figures:
    from vectord.tools.bench.load import put_load, target  # noqa: PLC0415

    with _progress(wanted.name, options) as told:
        return put_load(
            wanted.name,
            target(server.url, wanted.path, options.token),
            wanted.bodies,
            requests=options.requests,
            concurrency=options.concurrency,
            warmup=options.warmup,
            timeout_s=options.timeout,
            units_per_request=options.batch_size,
            told=told,
        )


@contextmanager
def _progress(name: str, options: Namespace) -> Iterator[Callable[[int], None]]:
    if options.json or options.no_progress or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=options.requests)
        yield lambda done: bar.update(task, completed=done)


def _report(url: str, found: Sequence[tuple[Figures, str]], unasked: dict[str, str], options: Namespace) -> int:
    named = options.scenarios is not None
    failed = any(figures.failed for figures, _ in found) or not found or (named and bool(unasked))
    if options.json:
        rows = [{**asdict(figures), "api": form} for figures, form in found]
        settings = {"batch_size": options.batch_size, "warmup": options.warmup, "repeat": options.repeat}
        print_text(json.dumps({"url": url, **settings, "scenarios": rows, "not_asked": unasked}, indent=2))
        return ExitCode.FAILED if failed else 0
    print_table(_table([figures for figures, _ in found]))
    for figures, _ in found:
        for why, count in figures.failures.items():
            sys.stderr.write(f"vectord: {figures.scenario}: {count} x {why}\n")
        if figures.client_busy > _BUSY:
            sys.stderr.write(
                f"vectord: {figures.scenario}: the load generator used {figures.client_busy:.0%} of a core\n"
            )
    for name, why in unasked.items():
        sys.stderr.write(f"vectord: {name} left out: {why}\n")
    return ExitCode.FAILED if failed else 0


def _table(found: Sequence[Figures]) -> Any:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for heading in _COLUMNS:
        table.add_column(heading, justify="left" if heading == "Scenario" else "right", no_wrap=True)
    for one in found:
        times = (one.avg_ms, one.p50_ms, one.p95_ms, one.p99_ms, one.min_ms, one.max_ms)
        table.add_row(
            one.scenario,
            str(one.requests),
            str(one.ok),
            Text(str(one.failed), style="bold red" if one.failed else ""),
            str(one.concurrency),
            f"{one.wall_s:.2f}",
            f"{one.requests_per_s:.1f}",
            f"{one.units_per_s:.1f}",
            *("-" if time_ms is None else f"{time_ms:.1f}" for time_ms in times),
        )
    return table
