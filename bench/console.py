"""The cost of the console: first paint and bytes in Chromium, and the server's CPU time for an open page.

An open page requests figures once a second. Its effect on throughput would be lost in noise. So this measures the
server's CPU time for each kind of request, after a load that has filled the figures, and multiplies it by the rate of
the page's requests.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx
import psutil  # type: ignore[import-untyped]

from bench.corpus import Corpus
from bench.http_load import HOST, embedding_requests, run_load
from bench.report import Row, at_most
from bench.server_process import Server

VISITS = 5
REQUESTS = 500  # times each
EVERY_S: Mapping[str, float] = {"/console/live": 1.0, "/console/requests": 3.0, "/vectord/models": 5.0}
CONNECTIONS, LOAD_S = 32, 10.0
PAINT_MS, MOST_BYTES, MOST_SHARE = 300.0, 200_000, 0.01


@dataclass(frozen=True, slots=True)
class Opened:
    paints_ms: Sequence[float]  # each with an empty cache
    received_bytes: int
    cpu_s: Mapping[str, float]  # of the server, for one request


def console(server: Server, corpus: Corpus) -> tuple[list[Row], list[Opened]]:
    """Raises RuntimeError without a Chromium."""
    run_load(server.port, embedding_requests(corpus, 1), CONNECTIONS, LOAD_S)
    cpu_s = {path: _cpu_s(server, path) for path in EVERY_S}
    found = Opened(*_visits(server.port), cpu_s)
    return rows(found), [found]


def rows(found: Opened) -> list[Row]:
    paint_ms = statistics.median(found.paints_ms)
    share = sum(found.cpu_s[path] / every_s for path, every_s in EVERY_S.items()) / len(os.sched_getaffinity(0))
    return [
        Row(what="first paint", value=f"{paint_ms:.0f} ms", **at_most(paint_ms, PAINT_MS, " ms")),
        Row(
            what="received",
            value=f"{found.received_bytes / 1e3:.1f} kB",
            **at_most(found.received_bytes / 1e3, MOST_BYTES / 1e3, " kB"),
        ),
        *(Row(what=f"a question for {path}", value=f"{cpu_s * 1e6:.0f} us") for path, cpu_s in found.cpu_s.items()),
        Row(
            what="of the processors, an open page",
            value=f"{share:.3%}",
            **at_most(share * 100, MOST_SHARE * 100, " %"),
        ),
    ]


def _cpu_s(server: Server, path: str) -> float:
    process = psutil.Process(server.process.pid)
    with httpx.Client(base_url=f"http://{HOST}:{server.port}") as client:
        client.get(path).raise_for_status()
        before = process.cpu_times()
        for _ in range(REQUESTS):
            client.get(path).raise_for_status()
        after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system) / REQUESTS


def _visits(port: int) -> tuple[list[float], int]:
    """First paints, and the bytes of the last visit with headers."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - no other measurement has it

    chromium = shutil.which("chromium")
    if chromium is None:
        raise RuntimeError("no chromium in PATH")
    paints_ms = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(VISITS):
            context = browser.new_context()
            page = context.new_page()
            received = 0

            def finished(event: Mapping[str, int]) -> None:
                nonlocal received
                received += event["encodedDataLength"]

            session = context.new_cdp_session(page)
            session.send("Network.enable")
            session.on("Network.loadingFinished", finished)
            page.goto(f"http://{HOST}:{port}/console", wait_until="networkidle")
            paints_ms.append(
                page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? Infinity")
            )
            context.close()
        browser.close()
    return paints_ms, received
