"""One process counts for several: what the others tell it over a real socket stands in its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.cluster.remote.linked import Linked, linked
from tests.cluster.remote.test_together import gauges
from tests.server.fakes import FakeEngine
from tests.server.live import until

from vectord.cluster.remote.link import Link
from vectord.cluster.remote.reporter import Reporter
from vectord.cluster.remote.reports import Reports
from vectord.engine.observer import BatchReport, RequestReport
from vectord.observability.metrics import Metrics
from vectord.schema import Caller, Gauges, TextLength, Timings

REPORT = RequestReport(
    caller=Caller(client="c", route="/embed"),
    operation="embed",
    model="m",
    texts=2,
    tokens=7,
    lengths=[TextLength(3, 3), TextLength(4, 4)],
    timings=Timings(total_s=0.5),
)
BATCH = BatchReport(
    model="m",
    texts=2,
    tokens=7,
    padding_tokens=1,
    bulk_tokens=0,
    max_tokens=64,
    device="cuda:1",
    scores=False,
    seconds=0.25,
    streams=1,
    failed=False,
)


@asynccontextmanager
async def counting() -> AsyncIterator[tuple[Linked, Reports]]:
    async with linked() as found:
        found.server.reports = reports = Reports().over(found.metrics)
        models = found.engine.models().models
        found.metrics.watch(lambda: reports.gauges(gauges(5, 0.5, "cuda:0")), lambda: reports.models(models))
        yield found, reports


@asynccontextmanager
async def telling(to: Linked) -> AsyncIterator[Reporter]:
    link = Link(to.path)
    reporter = Reporter(link)
    await link.open()
    looking = asyncio.create_task(reporter.look(lambda: gauges(7, 2.0, "cuda:1"), lambda: FakeEngine().models().models))
    try:
        yield reporter
    finally:
        looking.cancel()
        reporter.flush()
        await link.close()


async def page(found: Linked) -> str:
    written, _ = await found.metrics.exposition()
    return written.decode()


async def shows(found: Linked, *lines: str) -> None:
    """Waits until the page has all of them."""
    for _ in range(200):
        written = await page(found)
        missing = [line for line in lines if line not in written]
        if not missing:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{missing} is not in\n{written}")


async def test_what_another_engine_did_is_counted_here() -> None:
    """Requests, forwards and caches, beside this engine's own."""
    async with counting() as (found, reports), telling(found) as reporter:
        for observer in (reports, reporter):
            observer.request_answered(REPORT)
            observer.batch_ran(BATCH)
            observer.cache_looked_up("m", 3, 1)
            observer.shared_cache_looked_up("m", 1, 0)
            observer.shared_cache_refused("m", 2)
        await shows(
            found,
            'vectord_forward_tokens_total{lane="interactive",model="m"} 14.0',
            'vectord_cache_hits_total{model="m"} 6.0',
            'vectord_shared_cache_hits_total{model="m"} 2.0',
            'vectord_shared_cache_refused_total{model="m"} 4.0',
        )


async def test_what_goes_up_and_down_is_the_sum() -> None:
    """Queues, requests under way, and what the devices have; without the process that ends."""
    async with counting() as (found, reports):
        reports.queue_changed(1, 10)
        async with telling(found) as reporter:
            reporter.queue_changed(2, 20)
            await shows(found, "vectord_queue_tokens 30.0", 'vectord_lane_queue_tokens{lane="interactive"} 12.0')
            await shows(found, "vectord_requests_under_way 4.0")
        await shows(found, "vectord_queue_tokens 10.0", 'vectord_lane_queue_tokens{lane="interactive"} 5.0')
        await until(lambda: not reports._others)


class Active(Metrics):
    """Requests under way, as it is told of them."""

    active = 0

    def request_began(self, operation: str) -> None:
        self.active += 1

    def request_ended(self, operation: str) -> None:
        self.active -= 1


async def test_requests_under_way_are_those_of_all() -> None:
    """Also where the process that counts was replaced meanwhile, and without one that ends."""
    metrics = Active("1")
    async with linked() as found:
        found.server.reports = reports = Reports().over(metrics)
        async with telling(found) as reporter:
            for _ in range(3):
                reporter.request_began("embed")
            await until(lambda: metrics.active == 3)
            reporter.request_ended("embed")
            await until(lambda: metrics.active == 2)
            anew = Active("1")
            found.server.reports = Reports().over(anew)
            await until(lambda: anew.active == 2)
            reports.gone(next(iter(reports._others)))
            assert metrics.active == 0
        await until(lambda: anew.active == 0)


async def test_a_device_that_cannot_be_looked_at_silences_nobody() -> None:
    """What else there is to tell is told."""

    def broken() -> Gauges:
        raise RuntimeError("the device is lost")

    metrics = Active("1")
    async with linked() as found:
        found.server.reports = Reports().over(metrics)
        link = Link(found.path)
        reporter = Reporter(link)
        await link.open()
        looking = asyncio.create_task(reporter.look(broken, list))
        reporter.request_began("embed")
        await until(lambda: metrics.active == 1)
        looking.cancel()
        await link.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vectord.cluster.remote.reporter.LOOK_S", 0.02)
