"""Unread responses: how far a client may lag, how many bytes all may hold, and which clients are aborted."""

from __future__ import annotations

import asyncio
import socket
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


class Held:
    """A connection that reads nothing."""

    def __init__(self, held_bytes: int, since_s: float) -> None:
        self.held_bytes = held_bytes
        self.pace = ReadPace(since_s)
        self.pace.update(held_bytes, since_s)
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def watched(room_bytes: int, *connections: Held) -> WriteBackpressure:
    room = WriteBackpressure(0)
    room.room_bytes = room_bytes
    room.watch(lambda: connections)
    room.count()  # what run.py does every second
    return room


def test_the_slowest_are_aborted_until_half_is_free() -> None:
    """And no others."""
    connections = [Held(30, since_s) for since_s in (2.0, 0.0, 1.0, 3.0)]
    watched(100, *connections).make_room(100.0)
    assert [connection.aborted for connection in connections] == [True, True, True, False]


def test_no_client_is_aborted_while_there_is_room() -> None:
    connection = Held(99, 0.0)
    watched(100, connection).make_room(1000.0)
    assert not connection.aborted


def test_clients_that_read_are_never_aborted() -> None:
    """Even if the room is exceeded."""
    connection = Held(1000, 0.0)
    watched(100, connection).make_room(PRESSED_STALL_S)
    assert not connection.aborted


async def test_responses_being_rendered_take_room() -> None:
    """Two that fit alone do not fit together; the second is refused."""
    room = watched(100, Held(50, 0.0))
    async with room.room(60):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(write_backpressure, "WAIT_S", 0.0)
            with pytest.raises(Overloaded):
                async with room.room(10):
                    raise AssertionError
    async with room.room(10):
        pass


async def test_the_number_of_waiting_responses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next is refused at once; waiting ones continue when there is room."""
    monkeypatch.setattr(write_backpressure, "WAIT_S", 3600.0)
    held = Held(100, 0.0)
    room = watched(100, held)
    inside: list[int] = []

    async def enter(number: int) -> None:
        async with room.room(1):
            inside.append(number)

    waiting = [asyncio.create_task(enter(number)) for number in range(write_backpressure.MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await enter(-1)
    held.held_bytes = 0
    await asyncio.gather(*waiting)
    assert len(inside) == write_backpressure.MAX_WAITING


# --- real sockets -----------------------------------------------------------------------------------------------


def silent_client(running: Live) -> socket.socket:
    """A client that requests much and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", running.port))
    client.sendall(post(LARGE))
    return client


def held_bytes(running: Live) -> int:
    return sum(connection.held_bytes for connection in running.server.connections())


async def test_unread_responses_of_many_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 clients that read nothing hold at most the room and one response; then they are aborted, and a reader is
    answered."""
    monkeypatch.setattr(write_backpressure, "WAIT_S", 0.0)
    room_bytes = 20 * MB
    engine = FakeEngine(dimensions=NUMBERS)
    async with live(engine) as running, AsyncExitStack() as clients:
        room: WriteBackpressure = running.server.backpressure
        room.room_bytes = room_bytes
        answer_bytes = len((await ask(running, post(LARGE))).body)
        for _ in range(100):
            clients.enter_context(closing(silent_client(running)))
        tasks = running.server.service.tasks
        await until(lambda: len(engine.callers) == 101 and not tasks)
        assert room_bytes / 2 < held_bytes(running) < room_bytes + answer_bytes
        room.room_bytes = room_bytes = held_bytes(running)  # or there might be room for one more
        assert (await ask(running, post(LARGE))).json["error"] == "Overloaded"
        now_s = asyncio.get_running_loop().time()
        running.server.check(now_s)
        running.server.check(now_s + PRESSED_STALL_S + 5)
        await until(lambda: held_bytes(running) <= room_bytes / 2)
        assert (await ask(running, post(LARGE))).status == 200


async def test_a_slow_reader_gets_its_complete_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 kB every 20 s of a simulated clock, while the room is far too small."""
    check = HttpPort.check
    monkeypatch.setattr(HttpPort, "check", lambda port, now_s: None)  # this test has a clock of its own
    engine = FakeEngine(dimensions=NUMBERS)
    async with live(engine) as running:
        whole = (await ask(running, post(LARGE))).body
        running.server.backpressure.room_bytes = 1
        running.server.backpressure._has_room = lambda: True  # type: ignore[method-assign]
        client = silent_client(running)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await until(lambda: held_bytes(running) > 0)
        received, now_s = bytearray(), loop.time()
        while not received.endswith(END):
            lump_end = len(received) + 65_536
            while len(received) < lump_end and not received.endswith(END):
                part = await loop.sock_recv(client, 16_384)
                assert part, "cut off"
                received += part
            now_s += 20.0
            check(running.server, now_s)
        client.close()
    assert received.partition(b"\r\n\r\n")[2] == whole
