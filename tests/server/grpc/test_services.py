"""tei.v1 on a real port: methods, errors, keys, streams and shutdown."""

from __future__ import annotations

import asyncio
import logging
import struct

import grpc
import numpy as np
import pytest
from grpc import StatusCode
from tests.attack import grpc_frames as frames
from tests.attack.grpc_frames import frame
from tests.attack.target import Target
from tests.products.results import usage
from tests.server.grpc.fakes import METHODS, PATIENCE_S, FakeEngine, code_of, failed, live

from vectord.errors import InferenceFailed, ModelCannot, Overloaded
from vectord.schema import Caller, EmbedRequest, EmbedResult, Request, Result
from vectord.server.grpc import services
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.services import MAX_ACTIVE, MAX_ACTIVE_LARGE, MAX_MESSAGES

EMBED = "/tei.v1.Embed/Embed"
EMBED_ALL = "/tei.v1.Embed/EmbedAll"
EMBED_STREAM = "/tei.v1.Embed/EmbedStream"

# A message of each kind, and where in its answer the fake engine's number, the length of "abc", stands.
EXAMPLES = {
    "InfoRequest": (pb.InfoRequest(), lambda answer: answer.max_input_length == 256),
    "EmbedRequest": (pb.EmbedRequest(inputs="abc"), lambda answer: answer.embeddings[0] == 3),
    "EmbedSparseRequest": (pb.EmbedSparseRequest(inputs="abc"), lambda answer: answer.sparse_embeddings[0].index == 3),
    "EmbedAllRequest": (pb.EmbedAllRequest(inputs="abc"), lambda answer: answer.token_embeddings[1].embeddings[2] == 3),
    "PredictRequest": (pb.PredictRequest(inputs="abc"), lambda answer: answer.predictions[0].label == "glad"),
    "PredictPairRequest": (
        pb.PredictPairRequest(inputs=["abc", "d"]),
        lambda answer: answer.predictions[0].label == "glad",
    ),
    "RerankRequest": (pb.RerankRequest(query="q", texts=["abc"]), lambda answer: answer.ranks[0].score == 3),
    "RerankStreamRequest": (pb.RerankStreamRequest(query="q", text="abc"), lambda answer: answer.ranks[0].score == 3),
    "EncodeRequest": (pb.EncodeRequest(inputs="abc"), lambda answer: answer.tokens[1].stop == 3),
    "DecodeRequest": (pb.DecodeRequest(ids=[1, 2]), lambda answer: answer.text == "1 2"),
}


async def answers(running, path, **options):
    """All responses of a method to its example."""
    message, _ = EXAMPLES[METHODS[path].input_type.name]
    method = METHODS[path]
    call = running.call(path, [message] if method.client_streaming else message, **options)
    return [answer async for answer in call] if method.server_streaming else [await call]


async def and_no_more(*messages):
    """A stream that stays open, because grpc's client reports an internal error for messages that are not read."""
    for message in messages:
        yield message
    await asyncio.Event().wait()


async def drained(call):
    return [answer async for answer in call]


# --- methods --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", METHODS)
async def test_every_method_answers(path):
    """As tei.proto declares it, streaming or not."""
    async with live() as running:
        (answer,) = await answers(running, path)
    is_right = EXAMPLES[METHODS[path].input_type.name][1]
    assert is_right(answer), answer


async def test_a_response_reports_its_cost_twice():
    """In the message and in metadata, with the lengths of the inputs."""
    async with live() as running:
        call = running.call(EMBED, pb.EmbedRequest(inputs="abc"), metadata=(("x-request-id", "mine"),))
        answer = await call
        told = dict([*await call.initial_metadata()])
    assert (answer.metadata.compute_chars, answer.metadata.compute_tokens) == (40, 4)
    assert answer.metadata.total_time_ns == 1_234_500_000
    assert (told["x-request-id"], told["x-vectord-fingerprint"]) == ("mine", "f00d")
    assert (told["x-vectord-tokens-seen"], told["x-vectord-truncated"], told["x-compute-tokens"]) == ("9", "1", "4")


async def test_the_engine_receives_the_caller():
    """Its address, and what the metadata say, which correspond to HTTP's headers."""
    engine = FakeEngine()
    metadata = (
        ("x-vectord-lane", "bulk"),
        ("x-request-id", "mine"),
        ("x-vectord-expect-fingerprint", "0123abcd"),
        ("trace-bin", b"\xff"),
    )
    async with live(engine) as running:
        await running.call(EMBED, pb.EmbedRequest(inputs="abc"), metadata=metadata)
    (caller,) = engine.callers
    assert (caller.client, caller.lane, caller.request_id) == ("127.0.0.1", "bulk", "mine")
    assert (caller.expect_fingerprint, caller.operator) == ("0123abcd", True)


async def test_an_unknown_method_is_unimplemented():
    """Also in a served service."""
    async with live() as running:
        for path in ("/tei.v1.Embed/EmbedMore", "/other.v1.Embed/Embed"):
            assert (await failed(running.channel.unary_unary(path)(b""))).code() is StatusCode.UNIMPLEMENTED


# --- keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)], ids=["no key", "wrong key"])
async def test_every_method_needs_the_key(path, metadata):
    """Before a message is read and before the engine is called."""
    engine = FakeEngine()
    message, _ = EXAMPLES[METHODS[path].input_type.name]
    async with live(engine, api_key="right") as running:
        call = running.call(path, and_no_more() if METHODS[path].client_streaming else message, metadata=metadata)
        assert await call.code() is StatusCode.UNAUTHENTICATED
    assert engine.requests == []


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "code", "details"),
    [
        (ModelCannot("No."), StatusCode.FAILED_PRECONDITION, "Backend error: No."),
        (InferenceFailed("No."), StatusCode.FAILED_PRECONDITION, "Backend error: No."),
        (Overloaded("No.", retry_after_s=2), StatusCode.RESOURCE_EXHAUSTED, "Model is overloaded"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_an_error_is_a_status_with_teis_message(failure, code, details):
    """With the request id and the time to retry."""
    engine = FakeEngine()
    engine.failures.append(failure)
    async with live(engine) as running:
        error = await failed(answers(running, EMBED, metadata=(("x-request-id", "mine"),)))
    assert (error.code(), error.details()) == (code, details)
    trailers = dict([*error.trailing_metadata()])
    assert trailers["x-request-id"] == "mine"
    assert trailers.get("grpc-retry-pushback-ms") == ("2000" if isinstance(failure, Overloaded) else None)


async def test_an_unexpected_exception_stays_in_the_log(caplog):
    """The client gets a general message."""
    engine = FakeEngine()
    engine.failures.append(RuntimeError("secret"))
    async with live(engine) as running:
        error = await failed(answers(running, EMBED, metadata=(("x-request-id", "mine"),)))
    assert error.code() is StatusCode.INTERNAL
    assert "secret" not in error.details()
    (logged,) = [record for record in caplog.records if record.name == "vectord.failures"]
    assert logged.fields["id"] == "mine"
    assert "secret" in str(logged.exc_info[1])


@pytest.mark.parametrize(
    ("content", "code"),
    [
        pytest.param(b"\xff\xff", StatusCode.INVALID_ARGUMENT, id="no message"),
        pytest.param(bytes(2000), StatusCode.RESOURCE_EXHAUSTED, id="too many bytes"),
    ],
)
async def test_an_invalid_message_does_not_affect_later_calls(content, code):
    async with live(payload_limit=1024) as running:
        assert (await failed(running.channel.unary_unary(EMBED)(content))).code() is code
        assert await answers(running, EMBED)


async def test_the_bytes_of_messages_in_progress_are_bounded():
    """Further messages are refused until others are answered."""
    engine = FakeEngine(held=True)
    large = pb.EmbedRequest(inputs="x" * 1015)
    async with live(engine, payload_limit=1024) as running:
        accepted = [running.call(EMBED, large) for _ in range(MAX_MESSAGES)]
        for _ in accepted:
            await engine.entered.acquire()
        assert (await failed(running.call(EMBED, large))).code() is StatusCode.RESOURCE_EXHAUSTED
        engine.gate.set()
        for call in accepted:
            await call
        assert (await running.call(EMBED, large)).embeddings[0] == 1015


async def test_compressed_messages_are_refused():
    """A few bytes of gzip could be gigabytes; the status is UNIMPLEMENTED."""
    async with live() as running:
        error = await failed(answers(running, EMBED, compression=grpc.Compression.Gzip))
    assert error.code() is StatusCode.UNIMPLEMENTED


async def test_a_call_is_one_log_line(caplog):
    """With method and gRPC status, without content."""
    caplog.set_level(logging.INFO)
    engine = FakeEngine()
    async with live(engine) as running:
        await running.call(EMBED, pb.EmbedRequest(inputs="private"))
        await failed(running.call(EMBED, pb.EmbedRequest()))
        await drained(running.call(EMBED_STREAM, [pb.EmbedRequest(inputs="private")] * 3))
    lines = [record.fields for record in caplog.records if record.name == "vectord.requests"]
    shown = [(line["method"], line["route"], line["status"], line.get("tokens")) for line in lines]
    assert shown == [("gRPC", EMBED, 0, 4), ("gRPC", EMBED, 3, None), ("gRPC", EMBED_STREAM, 0, 12)]
    assert "private" not in str(lines)


# --- streams --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "message", "at_once"),
    [
        (EMBED_STREAM, pb.EmbedRequest, MAX_ACTIVE),
        ("/tei.v1.Embed/EmbedAllStream", pb.EmbedAllRequest, MAX_ACTIVE_LARGE),
        ("/tei.v1.Tokenize/TokenizeStream", pb.EncodeRequest, MAX_ACTIVE_LARGE),
    ],
    ids=["short answers", "vectors of all tokens", "pieces of all tokens"],
)
async def test_a_stream_is_answered_in_order(path, message, at_once):
    """With a bound on messages in progress, which is lower for large responses."""
    engine = FakeEngine(held=True)
    async with live(engine) as running:
        call = running.call(path, [message(inputs="x" * n) for n in range(1, 201)])
        for _ in range(at_once):
            await engine.entered.acquire()
        engine.gate.set()
        answered = await drained(call)
    assert [reported_size(answer) for answer in answered] == list(range(1, 201))
    assert engine.most_running == at_once


def reported_size(answer):
    """The length of the fake engine's text."""
    if isinstance(answer, pb.EmbedResponse):
        return answer.embeddings[0]
    return answer.tokens[1].stop if isinstance(answer, pb.EncodeResponse) else answer.token_embeddings[1].embeddings[2]


async def test_a_stream_waits_if_a_single_call_would_be_refused():
    """Every message is answered."""
    engine = FakeEngine()
    engine.failures += [Overloaded("busy", retry_after_s=0.001)] * 5
    async with live(engine) as running:
        call = running.call(EMBED_STREAM, [pb.EmbedRequest(inputs="x" * n) for n in (1, 2, 3)])
        assert [answer.embeddings[0] for answer in await drained(call)] == [1, 2, 3]
    assert len(engine.requests) == 8


async def test_texts_of_a_stream_are_ranked_together():
    """By their index; requests that the engine refuses as overload are retried."""
    engine = FakeEngine()
    engine.failures.append(Overloaded("busy", retry_after_s=0.001))
    async with live(engine) as running:
        texts = ("aa", "dddd", "c")
        messages = [pb.RerankStreamRequest(query="q", text=text, return_text=True) for text in texts]
        answer = await running.call("/tei.v1.Rerank/RerankStream", messages)
    assert [(rank.index, rank.text, rank.score) for rank in answer.ranks] == [(1, "dddd", 4), (0, "aa", 2), (2, "c", 1)]


# --- unread responses -----------------------------------------------------------------------------------------


class Verbose(FakeEngine):
    """Its responses with vectors have 2 MB."""

    async def answer(self, request: Request, caller: Caller) -> Result:
        result = await super().answer(request, caller)
        if not isinstance(request, EmbedRequest):
            return result
        return EmbedResult(model="m", fingerprint="f", usage=usage([(9, 4)]), tokens=[np.zeros((5, 100_000), "<f4")])


async def until(running, code):
    """A single call with a large response ends with this status; each try takes time, since it is computed."""
    async with asyncio.timeout(PATIENCE_S):
        while await code_of(running.call(EMBED_ALL, pb.EmbedAllRequest(inputs="abc"))) is not code:
            pass


@pytest.mark.parametrize("path", [EMBED_ALL, f"{EMBED_ALL}Stream"])
async def test_a_response_that_is_not_read_leaves_no_room_for_further_large_ones(path, monkeypatch):
    """They are refused until its client is gone. Small ones are answered."""
    monkeypatch.setattr(services, "UNREAD_BYTES", 1_000_000)
    engine = Verbose()
    async with live(engine) as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        no_window = frames.PREFACE + frame(frames.SETTINGS, payload=struct.pack(">HI", 4, 0))
        call = frames.call(Target("http://127.0.0.1"), path)
        message = frames.message(pb.EmbedAllRequest(inputs="abc").SerializeToString())
        writer.write(no_window + frame(frames.HEADERS, frames.END_HEADERS, 1, call))
        writer.write(frame(frames.DATA, frames.END_STREAM, 1, message))
        await engine.entered.acquire()  # else one of the others could hold the room, and this call be refused
        await until(running, StatusCode.RESOURCE_EXHAUSTED)
        assert await answers(running, "/tei.v1.Tokenize/Decode")
        writer.close()
        await until(running, StatusCode.OK)


# --- ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [EMBED, EMBED_STREAM, "/tei.v1.Rerank/RerankStream"])
async def test_a_cancelled_call_cancels_its_work(path, caplog):
    """And logs no failure."""
    engine = FakeEngine(held=True)
    message, _ = EXAMPLES[METHODS[path].input_type.name]
    streams = METHODS[path].client_streaming
    async with live(engine) as running:
        call = running.call(path, [message] * 3 if streams else message)
        for _ in range(3 if streams else 1):
            await engine.entered.acquire()
        call.cancel()
        for _ in range(3 if streams else 1):
            await engine.cancelled.acquire()
        assert engine.running == 0
        engine.gate.set()
        assert await answers(running, EMBED)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_server_that_shuts_down_refuses_new_calls():
    """Accepted calls are answered."""
    engine = FakeEngine(held=True)
    async with live(engine) as running:
        accepted = running.call(EMBED, pb.EmbedRequest(inputs="abc"))
        await engine.entered.acquire()
        running.shutdown.begin()
        error = await failed(answers(running, EMBED))
        assert (error.code(), error.details()) == (StatusCode.UNAVAILABLE, "unhealthy")
        engine.gate.set()
        assert (await accepted).embeddings[0] == 3
