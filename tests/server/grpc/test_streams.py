"""The order and the bounds of streams, and rankings over a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable

import numpy as np
import pytest
from msgspec.structs import replace
from tests.products.results import rerank_result, usage
from tests.server.grpc.fakes import PATIENCE_S
from tests.server.live import until

from vectord.budget import Budget
from vectord.errors import EmptyInput, MalformedBody, PayloadTooLarge
from vectord.schema import RerankRequest, TextOptions, Timings
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.streams import TEXT_OVERHEAD_BYTES, RankStream, in_order

AT_ONCE = 8


async def ordered(messages, answer, deliver, limit_bytes):
    await in_order(messages, answer, deliver, max_active=AT_ONCE, room=Budget(limit_bytes))


async def sent(messages: Iterable[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def ended(stream: Awaitable[None]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await stream


class Answers:
    """Answers each message on request and records deliveries."""

    def __init__(self) -> None:
        self.gates: dict[bytes, asyncio.Event] = {}
        self.running = 0
        self.most_running = 0
        self.delivered: list[bytes] = []

    async def answer(self, message: bytes) -> bytes:
        gate = self.gates.setdefault(message, asyncio.Event())
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await gate.wait()
        finally:
            self.running -= 1
        if message.startswith(b"bad"):
            raise ValueError(message)
        return message.upper()

    async def deliver(self, answer: bytes) -> None:
        self.delivered.append(answer)

    def release(self, *messages: bytes) -> None:
        for message in messages:
            self.gates.setdefault(message, asyncio.Event()).set()


async def test_an_answer_does_not_wait_for_the_next_message():
    """A client may wait for each answer before it sends again."""
    answers = Answers()
    answers.release(b"a", b"b")
    heard = asyncio.Event()

    async def asking() -> AsyncIterator[bytes]:
        yield b"a"
        await heard.wait()
        yield b"b"

    running = asyncio.create_task(ordered(asking(), answers.answer, answers.deliver, 100))
    await until(lambda: answers.delivered == [b"A"])
    heard.set()
    await ended(running)
    assert answers.delivered == [b"A", b"B"]


@pytest.mark.parametrize(
    ("size", "limit_bytes", "most"),
    [pytest.param(3, 10**6, AT_ONCE, id="messages"), pytest.param(300, 1000, 3, id="bytes")],
)
async def test_the_number_of_active_messages_is_bounded(size, limit_bytes, most):
    answers = Answers()
    messages = [b"%0*d" % (size, number) for number in range(200)]
    running = asyncio.create_task(ordered(sent(messages), answers.answer, answers.deliver, limit_bytes))
    for _ in range(2000):  # turns of the loop: far more than it takes to begin all of them
        await asyncio.sleep(0)
    assert answers.running == most
    answers.release(*messages)
    await ended(running)
    assert answers.most_running == most
    assert answers.delivered == messages


async def test_a_failure_comes_after_earlier_answers():
    """And cancels later ones."""
    answers = Answers()
    running = asyncio.create_task(ordered(sent([b"a", b"bad", b"c"]), answers.answer, answers.deliver, 100))
    await until(lambda: answers.running == 3)
    answers.release(b"bad")
    await until(lambda: answers.running == 2)
    assert answers.delivered == []
    answers.release(b"a")
    with pytest.raises(ValueError, match="bad"):
        await ended(running)
    assert answers.delivered == [b"A"]
    assert answers.running == 0


# --- rankings --------------------------------------------------------------------------------------------------


def message(text: str, **options) -> bytes:
    return pb.RerankStreamRequest(**{"query": "q", "text": text, **options}).SerializeToString()


def test_each_text_is_a_separate_request():
    """With its own query and truncation; the first message decides on raw scores."""
    stream = RankStream(10_000)
    first = stream.begin(
        message("a", raw_scores=True, truncate=True, truncation_direction=pb.TRUNCATION_DIRECTION_LEFT)
    )()
    assert first.request == RerankRequest(
        query="q", passages=["a"], text=TextOptions(truncate=True, truncate_side="left"), raw=True
    )
    second = stream.begin(message("", query="r", raw_scores=False))()
    assert second.request == RerankRequest(query="r", passages=[""], text=TextOptions(truncate=False), raw=True)


def test_a_text_keeps_its_score_if_a_later_one_is_read_first():
    """Large messages are read in threads, small ones at once."""
    stream = RankStream(10_000)
    large, small = stream.begin(message("large", return_text=True)), stream.begin(message("small"))
    assert [read().request.passages for read in (small, large)] == [["small"], ["large"]]
    for score in (0.2, 0.8):
        stream.add(rerank_result(score))
    response = pb.RerankResponse.FromString(stream.response())
    assert [rank.text for rank in response.ranks] == ["small", "large"]


def test_texts_of_equal_scores_are_ranked_by_their_logits():
    """A sigmoid rounds them all to 1."""
    stream = RankStream(10_000)
    for logit in (29, 41, 33, 36):
        stream.begin(message("a"))()
        stream.add(rerank_result(1.0, logits=np.array([logit], np.float32)))
    response = pb.RerankResponse.FromString(stream.response())
    assert [rank.index for rank in response.ranks] == [1, 3, 2, 0]


@pytest.mark.parametrize("return_text", [False, True])
def test_the_response_is_one_ranking(return_text):
    """Best first; tokens are summed, and times are means except for the total."""
    stream = RankStream(10_000)
    for text, score, seconds in (("a", 0.5, 1.0), ("bb", 0.5, 2.0), ("c", 1.0, 6.0)):
        stream.begin(message(text, return_text=return_text if text == "a" else not return_text))()
        timings = Timings(tokenizing_s=seconds, first_s=seconds / 2, last_s=seconds * 3 / 4, ended_s=90 + seconds)
        stream.add(rerank_result(score, usage=replace(usage([(9, 9)]), characters=len(text) + 1, timings=timings)))
    response = pb.RerankResponse.FromString(stream.response())
    assert [(rank.index, rank.score) for rank in response.ranks] == [(2, 1), (1, 0.5), (0, 0.5)]
    assert [rank.text for rank in response.ranks] == (["c", "bb", "a"] if return_text else [""] * 3)
    cost = response.metadata
    assert (cost.compute_chars, cost.compute_tokens) == (7, 27)
    seconds = (cost.tokenization_time_ns / 1e9, cost.queue_time_ns / 1e9, cost.inference_time_ns / 1e9)
    assert seconds == (3, 1.5, 0.75)
    assert cost.total_time_ns == 96e9


@pytest.mark.parametrize(
    ("content", "error"),
    [
        pytest.param(message("", query=""), EmptyInput, id="an empty pair"),
        pytest.param(b"\xff", MalformedBody, id="no message"),
    ],
)
def test_an_invalid_text_is_refused(content, error):
    """As in a single request."""
    with pytest.raises(error):
        RankStream(10_000).begin(content)


def test_the_bytes_of_a_stream_are_bounded():
    """A stream may be endless."""
    stream = RankStream(3 * (TEXT_OVERHEAD_BYTES + len(message("a"))))
    for _ in range(3):
        stream.begin(message("a"))()
    with pytest.raises(PayloadTooLarge):
        stream.begin(message("a"))()


def test_a_stream_without_texts_is_an_error():
    """As an empty list of texts."""
    with pytest.raises(EmptyInput, match="`texts` cannot be empty"):
        RankStream(10_000).response()
