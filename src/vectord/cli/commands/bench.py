"""`vectord bench`: measure latency and throughput of a running server, as Smart Embedder's benchmark.py does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from vectord.cli.commands import CACERT, JSON, cacert
from vectord.cli.printing import console, print_json, print_table
from vectord.config.command_line import Command, flag, value
from vectord.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from vectord.tools.bench import Figures

_SCENARIOS = ("embed_dense", "embed_full", "rerank")
_BUSY = 0.8  # of a core: above it, the load generator may be the bottleneck
_COLUMNS = (
    *("Scenario", ">Reqs", ">OK", ">Fail", ">Conc", ">Wall", ">Req/s", ">Units/s"),
    *(">Avg", ">P50", ">P95", ">P99", ">Min", ">Max"),
)

HELP = """\
Send concurrent requests to the server at --url and print their latency and throughput, for each scenario. The request
format follows the server: OpenAI, text-embeddings-inference, Smart Embedder and others.

\b
  embed_dense  dense vectors of --batch-size sentences
  embed_full   dense, sparse and ColBERT vectors of them
  rerank       a query and --batch-size passages

Units/s counts sentences or passages per second. Avg to Max are milliseconds from a request's first byte to the
response's last byte, for requests that succeeded. Wall is seconds. Unsupported scenarios are left out;
if --scenarios names one of them, the exit code is 1.

Without --repeat, every text is new, so no cache answers it. A last line reports the server's cache of vectors, and how
many texts it answered, for a server of vectord.

\b
Exit codes:
  0    every request got status 200
  1    at least one request failed, or --scenarios names an unsupported scenario
  2    a bad option, or no server at --url
  130  Ctrl-C

\b
Examples:
  vectord bench --concurrency 8 --requests 100 --batch-size 4
  vectord bench --url http://gpu-box:8000 --scenarios embed_dense --requests 2000 --concurrency 64 --json
  vectord bench --sleep-between 65        # for a server with a limit per minute"""


@click.command(
    cls=Command,
    help=HELP,
    short_help="Measure a running server.",
    params=[
        value("--url", "URL", "The server.", default="http://localhost:8000"),
        value("--token", "KEY", "Bearer token.", env=["VECTORD_API_KEY"]),
        CACERT,
        value("--model", "NAME", "Model to request.  [default: the first that the server lists]"),
        value("--timeout", "S", "Seconds for a request; 0: no limit.", kind=click.FloatRange(0, 3600), default=60.0),
        value("--scenarios", "LIST", f"Some of {','.join(_SCENARIOS)}; all: all supported ones.", default="all"),
        value("--concurrency", "N", "Concurrent requests.", kind=click.IntRange(1, 10_000), default=8),
        value("--requests", "N", "Requests for a scenario.", kind=click.IntRange(1, 10_000_000), default=100),
        value("--batch-size", "N", "Texts in a request.", kind=click.IntRange(1, 100_000), default=4),
        value("--warmup", "N", "Requests before the measurement.", kind=click.IntRange(0, 100_000), default=5),
        value(
            "--max-batch-size",
            "N",
            "Refuse a larger --batch-size; 0: no limit.",
            kind=click.IntRange(0, 100_000),
            default=128,
        ),
        value("--sleep-between", "S", "Seconds between scenarios.", kind=click.FloatRange(0, 3600), default=0.0),
        flag("--repeat", help="Send the same texts in every request, which measures a cache.  [default: new texts]"),
        flag("--no-progress", help="Show no progress bar."),
        JSON,
    ],
)
def command(
    url: str,
    token: str | None,
    model: str | None,
    timeout: float,
    scenarios: str,
    concurrency: int,
    requests: int,
    batch_size: int,
    warmup: int,
    max_batch_size: int,
    sleep_between: float,
    repeat: bool,
    no_progress: bool,
    as_json: bool,
) -> int:
    takes_all = scenarios == "all"
    names = _SCENARIOS if takes_all else tuple(filter(None, map(str.strip, scenarios.split(","))))
    if not names or not set(names) <= set(_SCENARIOS):
        raise ConfigError(f"--scenarios: expected some of {','.join(_SCENARIOS)}, got {scenarios!r}")
    if max_batch_size and batch_size > max_batch_size:
        raise ConfigError(f"--batch-size: {batch_size} is more than --max-batch-size {max_batch_size}")
    from vectord.tools.bench import Unsupported, put_load, scenario  # noqa: PLC0415
    from vectord.tools.probe import ProbedServer, check_url  # noqa: PLC0415 - httpx

    found: list[tuple[Figures, str]] = []  # with the API of the requests
    unsupported: dict[str, str] = {}
    with ProbedServer(check_url(url, "--url"), token, timeout or 3600, cacert()) as server:
        server.check_reachable("--url")
        model = server.find_model(model)
        cache = server.read_cache()
        hits = 0  # during the measurements; finding the API repeats texts
        for name in dict.fromkeys(names):
            try:
                chosen = scenario(server, name, model=model, batch_size=batch_size, repeated=repeat)
            except Unsupported as why:
                unsupported[name] = str(why)
                continue
            if found:
                time.sleep(sleep_between)
            before = server.read_cache()
            with _progress(name, requests, hidden=as_json or no_progress) as report:
                figures = put_load(
                    name,
                    server,
                    chosen,
                    requests=requests,
                    concurrency=concurrency,
                    warmup=warmup,
                    units_per_request=batch_size,
                    report=report,
                )
            found.append((figures, chosen.form))
            after = server.read_cache()
            hits += after.hits - before.hits if before is not None and after is not None else 0
    if as_json:
        rows = [{**asdict(figures), "api": form} for figures, form in found]
        given = {"url": server.url, "batch_size": batch_size, "warmup": warmup, "repeat": repeat}
        shown = None if cache is None else {"limit_bytes": cache.limit_bytes, "hits": hits}
        print_json({**given, "cache": shown, "scenarios": rows, "not_asked": unsupported})
    else:
        _print(found, unsupported)
        shown_cache = "unknown" if cache is None else f"{cache.summary()}, which answered {hits} texts"
        sys.stderr.write(f"vectord: cache of the server: {shown_cache}\n")
    failed = any(figures.failed for figures, _ in found) or not found or (not takes_all and bool(unsupported))
    return ExitCode.FAILED if failed else 0


@contextmanager
def _progress(name: str, requests: int, *, hidden: bool) -> Iterator[Callable[[int], None]]:
    if hidden or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=requests)
        yield lambda done: bar.update(task, completed=done)


def _print(found: list[tuple[Figures, str]], unsupported: dict[str, str]) -> None:
    from rich.text import Text  # noqa: PLC0415

    rows = []
    for one, _ in found:
        counts = (str(one.requests), str(one.ok), Text(str(one.failed), style="bold red" if one.failed else ""))
        rates = (str(one.concurrency), f"{one.wall_s:.2f}", f"{one.requests_per_s:.1f}", f"{one.units_per_s:.1f}")
        times = (one.avg_ms, one.p50_ms, one.p95_ms, one.p99_ms, one.min_ms, one.max_ms)
        rows.append((one.scenario, *counts, *rates, *("-" if ms is None else f"{ms:.1f}" for ms in times)))
    print_table(rows, _COLUMNS)
    for one, _ in found:
        for why, count in one.failures.items():
            sys.stderr.write(f"vectord: {one.scenario}: {count} x {why}\n")
        if one.client_busy > _BUSY:
            sys.stderr.write(f"vectord: {one.scenario}: the load generator used {one.client_busy:.0%} of a core\n")
    for name, why in unsupported.items():
        sys.stderr.write(f"vectord: {name} left out: {why}\n")
