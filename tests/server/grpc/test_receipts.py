"""Slots for messages being received."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("grpc")

from tests.server.grpc.fakes import PATIENCE_S

from vectord.errors import UploadTooSlow
from vectord.server.grpc.streams import ReceiveSlots


class Slow:
    """A message that arrives on request."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()

    async def sent(self) -> AsyncIterator[bytes]:
        self.asked.set()
        await self.gate.wait()
        yield b"it"


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_number_of_messages_being_read_is_bounded() -> None:
    """The next read starts after one has finished."""
    slots, sent = ReceiveSlots(2, grace_s=PATIENCE_S), [Slow() for _ in range(3)]
    reading = [asyncio.create_task(slots.read(one.sent())) for one in sent]
    await settle()
    assert [one.asked.is_set() for one in sent] == [True, True, False]
    sent[1].gate.set()
    assert await reading[1] == b"it"
    await settle()
    assert sent[2].asked.is_set()
    sent[0].gate.set()
    sent[2].gate.set()
    assert await asyncio.gather(*reading) == [b"it"] * 3


async def test_a_slow_message_loses_its_slot_to_a_waiting_one() -> None:
    """After its grace time; without others it may take longer."""
    slots, slow, quick = ReceiveSlots(1, grace_s=0.0), Slow(), Slow()
    dawdling = asyncio.create_task(slots.read(slow.sent()))
    await slow.asked.wait()
    await settle()
    assert not dawdling.done()
    quick.gate.set()
    async with asyncio.timeout(PATIENCE_S):
        assert await slots.read(quick.sent()) == b"it"
        with pytest.raises(UploadTooSlow):
            await dawdling


async def test_a_message_has_a_timeout() -> None:
    with pytest.raises(UploadTooSlow):
        await ReceiveSlots(1, grace_s=PATIENCE_S, timeout_s=0.0).read(Slow().sent())
