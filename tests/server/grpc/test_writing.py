"""What answers hold of the process's memory until their clients have them."""

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
    """For four messages, two of them gRPC's; nobody waits for it."""
    monkeypatch.setattr(write_backpressure, "WAIT_S", 0.0)
    made = WriteBackpressure(0)
    made.room_bytes = 4 * MESSAGE_BYTES
    return made


@pytest.fixture
def writing(room: WriteBackpressure) -> Writing:
    return Writing(room)


async def test_what_nobody_has_taken_of_a_stream_is_counted(writing: Writing) -> None:
    """From being made to being taken; what is left at its end is free again."""
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


async def test_lone_answers_count_until_their_calls_are_over(writing: Writing) -> None:
    """grpc tells nothing of what is read in between."""
    over = [writing.hold(await writing.write(MESSAGE, RESULT)) for _ in range(2)]
    with pytest.raises(Overloaded):
        await writing.write(MESSAGE, RESULT)
    over[0](None)
    assert len(await writing.write(MESSAGE, RESULT)) == MESSAGE_BYTES


async def test_clients_of_grpc_leave_http_its_half(writing: Writing, room: WriteBackpressure) -> None:
    """However many of them do not read."""
    held = [writing.hold(await writing.write(MESSAGE, RESULT)) for _ in range(2)]
    for _ in range(3):
        with pytest.raises(Overloaded):
            await writing.write(MESSAGE, RESULT)
    async with room.room(MESSAGE_BYTES):
        assert held
    await asyncio.sleep(0)
