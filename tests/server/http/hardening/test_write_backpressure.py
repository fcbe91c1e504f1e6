"""Unread responses: how far a client may lag, how many bytes all may hold, and which clients are aborted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, closing

import pytest
from tests.server.fakes import FakeEngine
from tests.server.live import Live, ask, live, post, until

from vectord.errors import Overloaded
from vectord.server.http.hardening import write_backpressure
from vectord.server.http.hardening.write_backpressure import (
    MIN_BYTES_PER_S,
    PRESSED_STALL_S,
    WRITE_STALL_S,
    ReadPace,
    WriteBackpressure,
)
from vectord.server.http.run import HttpPort

MB = 1_000_000
LARGE = {"input": "large"}
NUMBERS = 200_000  # 4 MB as this dialect writes them
END = b"]]}"


# --- one client's pace ------------------------------------------------------------------------------------------


def lag_after_s(seconds: int, lump_bytes: int, every_s: int) -> float:
    """The lag of a client that reads part of its 10 MB at intervals."""
    pace, left_bytes = ReadPace(0.0), 10 * MB
    for now_s in range(seconds + 1):
        if now_s and now_s % every_s == 0:
            left_bytes -= lump_bytes
        pace.update(left_bytes, float(now_s))
    return pace.lag_s(float(seconds))


def test_a_client_that_reads_nothing_lags_by_the_age_of_its_response() -> None:
    assert lag_after_s(50, 0, 1) == 50


def test_single_bytes_barely_extend_the_time() -> None:
    assert lag_after_s(50, 1, 1) == pytest.approx(50, rel=0.01)


@pytest.mark.parametrize("every_s", [1, 10, 40], ids=["each second", "in 16 kB", "in 64 kB"])
def test_the_minimum_rate_is_never_aborted(every_s: int) -> None:
    """In pieces of any size."""
    lump_bytes = int(MIN_BYTES_PER_S * every_s) + 1
    assert max(lag_after_s(seconds, lump_bytes, every_s) for seconds in range(600)) < WRITE_STALL_S


def test_fast_reading_earns_no_credit() -> None:
    """9 MB at once and then nothing."""
    pace = ReadPace(0.0)
    for now_s, left_bytes in [(0.0, 10 * MB), (1.0, MB), (31.0, MB)]:
        pace.update(left_bytes, now_s)
    assert pace.lag_s(31.0) == 30


def test_each_response_starts_without_lag() -> None:
    """Also after an idle hour."""
    pace = ReadPace(0.0)
    pace.update(0, 0.0)
    pace.update(10 * MB, 3600.0)
    assert pace.lag_s(3600.0) == 0


# --- all of them ------------------------------------------------------------------------------------------------


def of(limit_bytes: int) -> WriteBackpressure:
    backpressure = WriteBackpressure(0)
    backpressure.budget.limit = limit_bytes
    return backpressure


async def test_responses_being_rendered_take_room() -> None:
    """The one that fills the room may exceed it; the next is refused."""
    backpressure = of(100)
    backpressure.budget.add(30)
    async with backpressure.room(90):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(write_backpressure, "WAIT_S", 0.0)
            with pytest.raises(Overloaded):
                async with backpressure.room(20):
                    raise AssertionError
    async with backpressure.room(20):
        pass
    assert backpressure.budget.held == 30


async def test_waiting_responses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the room may wait; the next is refused at once. Waiting ones continue when there is room."""
    monkeypatch.setattr(write_backpressure, "WAIT_S", 3600.0)
    backpressure = WriteBackpressure(0)
    limit_bytes = backpressure.budget.limit
    backpressure.budget.add(limit_bytes)
    inside: list[int] = []

    async def enter(number: int) -> None:
        async with backpressure.room(limit_bytes // 8):
            inside.append(number)

    waiting = [asyncio.create_task(enter(number)) for number in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await enter(-1)
    backpressure.budget.release(limit_bytes)
    await asyncio.gather(*waiting)
    assert len(inside) == 4


# --- real sockets -----------------------------------------------------------------------------------------------


def silent_client(running: Live) -> socket.socket:
    """A client that requests much and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", running.port))
    client.sendall(post(LARGE))
    return client


@pytest.fixture
def server_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Live, float], None]:
    """The check of the connections at any time; it does not run by itself."""
    check = HttpPort.check
    monkeypatch.setattr(HttpPort, "check", lambda port, now_s: None)
    return lambda running, now_s: check(running.server, now_s)


async def test_unread_responses_of_many_clients_are_bounded(
    monkeypatch: pytest.MonkeyPatch, server_clock: Callable[[Live, float], None]
) -> None:
    """Clients that read nothing hold at most the room and one response; then the slowest are aborted, and a reader is
    answered."""
    monkeypatch.setattr(write_backpressure, "WAIT_S", 0.0)
    engine = FakeEngine(dimensions=NUMBERS)
    async with live(engine) as running, AsyncExitStack() as clients:
        budget = running.server.backpressure.budget
        budget.limit = 20 * MB
        answer_bytes = len((await ask(running, post(LARGE))).body)
        for _ in range(30):
            clients.enter_context(closing(silent_client(running)))
        most_bytes = budget.limit + answer_bytes
        await until(
            lambda: len(engine.callers) == 31 and len(running.server.service.tasks) * answer_bytes <= most_bytes
        )
        assert budget.limit / 2 < budget.held <= most_bytes
        assert (await ask(running, post(LARGE))).json["error"] == "Overloaded"
        now_s = asyncio.get_running_loop().time()
        server_clock(running, now_s)
        assert len(running.server.connections) > 0
        assert (await ask(running, post(LARGE))).json["error"] == "Overloaded"
        server_clock(running, now_s + PRESSED_STALL_S + 5)
        await until(lambda: 0 < budget.held <= budget.limit / 2)
        assert (await ask(running, post(LARGE))).status == 200


async def test_unread_texts_are_bounded(server_clock: Callable[[Live, float], None]) -> None:
    """Responses with few numbers, such as those that return the texts of a ranking, count too."""
    async with live(FakeEngine()) as running, AsyncExitStack() as clients:
        budget = running.server.backpressure.budget
        budget.limit = 4 * MB
        for _ in range(2):
            client = clients.enter_context(closing(socket.socket()))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", running.port))
            await asyncio.to_thread(client.sendall, post({"input": "x" * (6 * MB)}))
        await until(lambda: budget.held > 12 * MB)
        now_s = asyncio.get_running_loop().time()
        server_clock(running, now_s)
        server_clock(running, now_s + PRESSED_STALL_S + 5)
        await until(lambda: budget.held == 0)


async def test_no_client_is_aborted_while_there_is_room(server_clock: Callable[[Live, float], None]) -> None:
    async with live(FakeEngine(dimensions=NUMBERS)) as running, AsyncExitStack() as clients:
        clients.enter_context(closing(silent_client(running)))
        await until(lambda: running.server.backpressure.budget.held > 0)
        now_s = asyncio.get_running_loop().time()
        server_clock(running, now_s)
        server_clock(running, now_s + PRESSED_STALL_S + 5)
        (connection,) = running.server.connections
        assert not connection.transport.is_closing()


async def test_a_slow_reader_gets_its_complete_response(
    monkeypatch: pytest.MonkeyPatch, server_clock: Callable[[Live, float], None]
) -> None:
    """64 kB every 20 s of a simulated clock, while the room is far too small."""
    engine = FakeEngine(dimensions=NUMBERS)
    async with live(engine) as running:
        whole = (await ask(running, post(LARGE))).body
        budget = running.server.backpressure.budget
        budget.limit = 1
        monkeypatch.setattr(running.server.backpressure, "take_shortage", lambda: True)
        client = silent_client(running)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await until(lambda: budget.held > 0)
        received, now_s = bytearray(), loop.time()
        while not received.endswith(END):
            lump_end = len(received) + 65_536
            while len(received) < lump_end and not received.endswith(END):
                part = await loop.sock_recv(client, 16_384)
                assert part, "cut off"
                received += part
            now_s += 20.0
            server_clock(running, now_s)
        client.close()
    assert received.partition(b"\r\n\r\n")[2] == whole
