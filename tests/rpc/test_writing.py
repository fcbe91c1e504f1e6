"""What answers hold of the process's memory until grpc has them."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("grpc")

from vectord.errors import Overloaded
from vectord.rpc.writing import Writing
from vectord.server import unsent
from vectord.server.unsent import Unsent


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Unsent:
    """Of 100 bytes, without anybody waiting for it."""
    monkeypatch.setattr(unsent, "WAIT_S", 0.0)
    made = Unsent(0)
    made.room_bytes = 100
    return made


async def has_room(of: Unsent) -> bool:
    await asyncio.sleep(0)  # what is given back counts from the loop's next turn on
    try:
        async with of.room(1):
            return True
    except Overloaded:
        return False


async def test_what_nobody_has_taken_of_a_stream_is_counted(room: Unsent) -> None:
    """From being made to being taken; what is left at its end is free again."""
    with Writing(room).held() as held:
        first, second = held.made(bytes(60)), held.made(bytes(60))
        assert not await has_room(room)
        held.taken(first)
        assert await has_room(room)
        held.made(bytes(60))
        assert not await has_room(room)
        held.taken(second)
    assert await has_room(room)
