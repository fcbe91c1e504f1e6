"""Work is cancelled if its client disconnects, and only then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vectord.server.http import disconnect
from vectord.server.http.disconnect import cancel_on_disconnect
from vectord.server.http.hardening.body import ClientDisconnected


class Line:
    """The client's end of ASGI's receive."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.watched = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        self.watched.set()
        await self.gone.wait()
        return {"type": "http.disconnect"}


@pytest.fixture(autouse=True)
def watch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnect, "WATCH_AFTER_S", 0.0)


async def test_quick_work_is_never_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result before the watch begins costs no task."""
    monkeypatch.setattr(disconnect, "WATCH_AFTER_S", 60.0)
    line = Line()
    before = len(asyncio.all_tasks())
    assert await cancel_on_disconnect(asyncio.sleep(0, "done"), line.receive) == "done"
    assert len(asyncio.all_tasks()) == before
    assert not line.watched.is_set()


async def test_work_of_a_connected_client_finishes() -> None:
    """No part of the watch is left."""
    line = Line()

    async def work() -> str:
        await line.watched.wait()
        return "done"

    assert await cancel_on_disconnect(work(), line.receive) == "done"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_of_a_disconnected_client_is_cancelled() -> None:
    """The work gets CancelledError, the caller ClientDisconnected, and its task continues."""
    line = Line()
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            line.gone.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(ClientDisconnected):
        async with asyncio.timeout(5):
            await cancel_on_disconnect(work(), line.receive)
    assert cancelled.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_an_error_of_the_work_is_raised() -> None:

    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError

    with pytest.raises(ValueError):
        await cancel_on_disconnect(work(), Line().receive)


async def test_an_outer_cancellation_is_not_a_disconnect() -> None:
    line = Line()
    task = asyncio.create_task(_cancelled_by_others(line))
    await line.watched.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _cancelled_by_others(line: Line) -> None:
    await cancel_on_disconnect(asyncio.Event().wait(), line.receive)
