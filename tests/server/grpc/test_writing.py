"""What answers hold of the process's memory until their clients have them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

pytest.importorskip("grpc")

from vectord.errors import Overloaded
from vectord.schema import EmbedRequest, EmbedResult, Usage
from vectord.server.grpc.requests import Asked
from vectord.server.grpc.writing import Writing
from vectord.server.http.hardening import unsent
from vectord.server.http.hardening.unsent import Unsent

MESSAGE_BYTES = 100_000  # a large one


class Message:
    def SerializeToString(self) -> bytes:
        return bytes(MESSAGE_BYTES)


ASKED = Asked(EmbedRequest(inputs=["text"]), lambda result: Message())  # type: ignore[arg-type, return-value]
RESULT = EmbedResult(
    model="m",
    fingerprint="f",
    usage=Usage(lengths=[], characters=0),
    dense={"float": np.zeros((1, MESSAGE_BYTES // 4), np.float32)},
)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Unsent:
    """For four messages, two of them gRPC's; nobody waits for it."""
    monkeypatch.setattr(unsent, "WAIT_S", 0.0)
    made = Unsent(0)
    made.room_bytes = 4 * MESSAGE_BYTES
    return made


@pytest.fixture
def writing(room: Unsent) -> Writing:
    return Writing(room)


async def test_what_nobody_has_taken_of_a_stream_is_counted(writing: Writing) -> None:
    """From being made to being taken; what is left at its end is free again."""
    with writing.held() as held:
        first, second = [held.made(await writing.answer(ASKED, RESULT)) for _ in range(2)]
        with pytest.raises(Overloaded):
            await writing.answer(ASKED, RESULT)
        held.taken(first)
        held.made(await writing.answer(ASKED, RESULT))
        with pytest.raises(Overloaded):
            await writing.answer(ASKED, RESULT)
        held.taken(second)
    assert len(await writing.answer(ASKED, RESULT)) == MESSAGE_BYTES


async def test_lone_answers_count_until_their_calls_are_over(writing: Writing) -> None:
    """grpc tells nothing of what is read in between."""
    over = [writing.hold(await writing.answer(ASKED, RESULT)) for _ in range(2)]
    with pytest.raises(Overloaded):
        await writing.answer(ASKED, RESULT)
    over[0](None)
    assert len(await writing.answer(ASKED, RESULT)) == MESSAGE_BYTES


async def test_clients_of_grpc_leave_http_its_half(writing: Writing, room: Unsent) -> None:
    """However many of them do not read."""
    held = [writing.hold(await writing.answer(ASKED, RESULT)) for _ in range(2)]
    for _ in range(3):
        with pytest.raises(Overloaded):
            await writing.answer(ASKED, RESULT)
    async with room.room(MESSAGE_BYTES):
        assert held
    await asyncio.sleep(0)
