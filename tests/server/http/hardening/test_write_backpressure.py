"""Answers that are not read: how far a client may fall behind, how much all may hold, and who goes."""

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
from vectord.server.http.run import Server

MB = 1_000_000
LARGE = {"input": "large"}
NUMBERS = 200_000  # 4 MB as this dialect writes them
END = b"]]}"


# --- one client's pace ------------------------------------------------------------------------------------------


def behind_after_s(seconds: int, lump_bytes: int, every_s: int) -> float:
    """Of a client that takes a lump of its 10 MB every so often, after so long."""
    pace, left_bytes = ReadPace(0.0), 10 * MB
    for now_s in range(seconds + 1):
        if now_s and now_s % every_s == 0:
            left_bytes -= lump_bytes
        pace.update(left_bytes, float(now_s))
    return pace.lag_s(float(seconds))


def test_who_takes_nothing_is_as_far_behind_as_its_answer_is_old() -> None:
    """From the first second on."""
    assert behind_after_s(50, 0, 1) == 50


def test_a_byte_now_and_then_buys_a_byte_s_time() -> None:
    """It does not begin again."""
    assert behind_after_s(50, 1, 1) == pytest.approx(50, rel=0.01)


@pytest.mark.parametrize("every_s", [1, 10, 40], ids=["each second", "in 16 kB", "in 64 kB"])
def test_the_least_pace_is_never_cut_off(every_s: int) -> None:
    """However a kernel portions it."""
    lump_bytes = int(MIN_BYTES_PER_S * every_s) + 1
    assert max(behind_after_s(seconds, lump_bytes, every_s) for seconds in range(600)) < WRITE_STALL_S


def test_what_was_taken_fast_is_no_credit() -> None:
    """9 MB at once and then nothing."""
    pace = ReadPace(0.0)
    for now_s, left_bytes in [(0.0, 10 * MB), (1.0, MB), (31.0, MB)]:
        pace.update(left_bytes, now_s)
    assert pace.lag_s(31.0) == 30


def test_each_answer_begins_anew() -> None:
    """A connection that rested for an hour is not behind."""
    pace = ReadPace(0.0)
    pace.update(0, 0.0)
    pace.update(10 * MB, 3600.0)
    assert pace.lag_s(3600.0) == 0


# --- all of them ------------------------------------------------------------------------------------------------


class Held:
    """A connection that takes nothing."""

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


def test_the_longest_unread_go_until_half_is_free() -> None:
    """And no more of them than that."""
    connections = [Held(30, since_s) for since_s in (2.0, 0.0, 1.0, 3.0)]
    watched(100, *connections).make_room(100.0)
    assert [connection.aborted for connection in connections] == [True, True, True, False]


def test_nobody_goes_where_there_is_room() -> None:
    """However long it takes: that is for its own connection to judge."""
    connection = Held(99, 0.0)
    watched(100, connection).make_room(1000.0)
    assert not connection.aborted


def test_who_reads_stays_though_there_is_no_room() -> None:
    """Fuller than full is better than to cut off an honest client."""
    connection = Held(1000, 0.0)
    watched(100, connection).make_room(PRESSED_STALL_S)
    assert not connection.aborted


async def test_answers_being_made_take_room() -> None:
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


async def test_only_so_many_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them holds its arrays; the next is refused at once, and those who wait get in when there is room."""
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
    """One that asks for much and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", running.port))
    client.sendall(post(LARGE))
    return client


def held_bytes(running: Live) -> int:
    return sum(connection.held_bytes for connection in running.server._connections())


async def test_hoarders_are_cut_off_and_what_they_hold_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 clients that read nothing: never more than the room and one answer beside it is held; then they go, and who
    reads is answered."""
    monkeypatch.setattr(write_backpressure, "WAIT_S", 0.0)
    room_bytes = 20 * MB
    engine = FakeEngine(dimensions=NUMBERS)
    async with live(engine) as running, AsyncExitStack() as clients:
        room: WriteBackpressure = running.server._backpressure
        room.room_bytes = room_bytes
        answer_bytes = len((await ask(running, post(LARGE))).body)
        for _ in range(100):
            clients.enter_context(closing(silent_client(running)))
        tasks = running.server.server_state.tasks
        await until(lambda: len(engine.callers) == 101 and not tasks)
        assert room_bytes / 2 < held_bytes(running) < room_bytes + answer_bytes
        room.room_bytes = room_bytes = held_bytes(running)  # or there might be room for one more
        assert (await ask(running, post(LARGE))).json["error"] == "Overloaded"
        now_s = asyncio.get_running_loop().time()
        Server._watch(running.server, now_s)
        Server._watch(running.server, now_s + PRESSED_STALL_S + 5)
        await until(lambda: held_bytes(running) <= room_bytes / 2)
        assert (await ask(running, post(LARGE))).status == 200


async def test_a_slow_reader_gets_its_answer_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 kB every 20 s, while the room is far too small: by our clock it takes twenty minutes."""
    watch = Server._watch
    monkeypatch.setattr(Server, "_watch", lambda self, now_s: None)  # this test has a clock of its own
    engine = FakeEngine(dimensions=NUMBERS)
    async with live(engine) as running:
        whole = (await ask(running, post(LARGE))).body
        running.server._backpressure.room_bytes = 1
        running.server._backpressure._has_room = lambda: True  # type: ignore[method-assign]
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
            watch(running.server, now_s)
        client.close()
    assert received.partition(b"\r\n\r\n")[2] == whole
