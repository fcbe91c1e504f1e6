"""Bounds on responses that clients have not read."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

pytest.importorskip("grpc")

from vectord.errors import Overloaded
from vectord.schema import EmbedRequest, EmbedResult, Usage
from vectord.server.grpc.requests import ParsedMessage
from vectord.server.grpc.writing import Writing
from vectord.server.http.hardening import write_backpressure
from vectord.server.http.hardening.write_backpressure import WriteBackpressure

MESSAGE_BYTES = 100_000  # a large one


class Message:
    def SerializeToString(self) -> bytes:
        return bytes(MESSAGE_BYTES)


MESSAGE = ParsedMessage(EmbedRequest(inputs=["text"]), lambda result: Message())  # type: ignore[arg-type, return-value]
RESULT = EmbedResult(
    model="m",
    fingerprint="f",
    usage=Usage(lengths=[], characters=0),
    dense={"float": np.zeros((1, MESSAGE_BYTES // 4), np.float32)},
)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> WriteBackpressure:
    """Room for four messages, two of them gRPC's; requests for more fail at once."""
    monkeypatch.setattr(write_backpressure, "WAIT_S", 0.0)
    made = WriteBackpressure(0)
    made.room_bytes = 4 * MESSAGE_BYTES
    return made


@pytest.fixture
def writing(room: WriteBackpressure) -> Writing:
    return Writing(room)


async def test_unread_responses_of_a_stream_are_counted(writing: Writing) -> None:
    """Until they are read or the stream ends."""
    with writing.stream() as held:
        first, second = [held.add(await writing.write(MESSAGE, RESULT)) for _ in range(2)]
        with pytest.raises(Overloaded):
            await writing.write(MESSAGE, RESULT)
        held.remove(first)
        held.add(await writing.write(MESSAGE, RESULT))
        with pytest.raises(Overloaded):
            await writing.write(MESSAGE, RESULT)
        held.remove(second)
    assert len(await writing.write(MESSAGE, RESULT)) == MESSAGE_BYTES


async def test_single_responses_count_until_their_calls_end(writing: Writing) -> None:
    """grpc does not report earlier progress."""
    over = [writing.hold(await writing.write(MESSAGE, RESULT)) for _ in range(2)]
    with pytest.raises(Overloaded):
        await writing.write(MESSAGE, RESULT)
    over[0](None)
    assert len(await writing.write(MESSAGE, RESULT)) == MESSAGE_BYTES


async def test_grpc_uses_at_most_half_of_the_room(writing: Writing, room: WriteBackpressure) -> None:
    held = [writing.hold(await writing.write(MESSAGE, RESULT)) for _ in range(2)]
    for _ in range(3):
        with pytest.raises(Overloaded):
            await writing.write(MESSAGE, RESULT)
    async with room.room(MESSAGE_BYTES):
        assert held
    await asyncio.sleep(0)
