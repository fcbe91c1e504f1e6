"""Attacks on the gRPC port with raw HTTP/2 frames and gRPC messages. After each attack, a valid call must succeed."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.attack.target import Attempt, Target

from vectord.server.grpc import tei_pb2 as pb

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
ANSWER_S = 20.0
REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", length: int | None = None) -> bytes:
    """The bytes of an HTTP/2 frame. length: the announced length; None: the payload's."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call(target: Target, path: str = "/tei.v1.Embed/Embed", padding: int = 0) -> bytes:
    """The headers of a call in HPACK, without compression."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "x",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    if target.keys:
        fields["authorization"] = f"Bearer {target.keys[0]}"
    fields |= {f"x-{number}": "v" * 100 for number in range(padding)}
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def message(content: bytes, *, compressed: bool = False, length: int | None = None) -> bytes:
    return struct.pack(">BI", compressed, len(content) if length is None else length) + content


def open_calls(target: Target, streams: range) -> bytes:
    return b"".join(frame(HEADERS, END_HEADERS, stream, call(target)) for stream in streams)


def _streams(round_number: int, count: int) -> range:
    """The ids of the streams that a client opens in a round: odd ones."""
    return range(2 * round_number * count + 1, 2 * (round_number + 1) * count, 2)


def _floods(target: Target) -> dict[str, tuple[bytes, Callable[[int], bytes]]]:
    """For each flood: the first bytes, and a function from the round number to the bytes of that round."""
    hello = PREFACE + frame(SETTINGS)
    content = pb.EmbedRequest(inputs="flood").SerializeToString()
    no_window = PREFACE + frame(SETTINGS, payload=struct.pack(">HI", 4, 0))
    return {
        "reset at once": (
            hello,
            lambda round_number: b"".join(
                frame(HEADERS, END_HEADERS, stream, call(target)) + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
                for stream in _streams(round_number, 100)
            ),
        ),
        "settings": (hello, lambda round_number: frame(SETTINGS) * 500),
        "pings": (hello, lambda round_number: frame(PING, payload=b"a" * 8) * 500),
        "window updates": (hello, lambda round_number: frame(WINDOW_UPDATE, payload=b"\0\0\0\x01") * 500),
        "endless headers": (
            hello + frame(HEADERS, 0, 1, call(target)),
            lambda round_number: frame(CONTINUATION, 0, 1, b"\0\x03x-a\x40" + b"v" * 64) * 100,
        ),
        "empty data": (hello + open_calls(target, range(1, 2)), lambda round_number: frame(DATA, 0, 1) * 500),
        "open streams": (hello, lambda round_number: open_calls(target, _streams(round_number, 100))),
        "unread responses": (
            no_window,
            lambda round_number: b"".join(
                frame(HEADERS, END_HEADERS, stream, call(target)) + frame(DATA, END_STREAM, stream, message(content))
                for stream in _streams(round_number, 20)
            ),
        ),
    }  # fmt: skip


async def frame_floods(target: Target, attempt: Attempt) -> None:
    """Streams reset at once, settings, pings, endless headers, open streams, unread responses."""
    if target.grpc_port is None:
        attempt.skipped = "no --grpc-port"
        return
    floods = _floods(target)
    names = list(floods)

    async def one(number: int) -> None:
        first_bytes, bytes_of_round = floods[names[number % len(names)]]
        async with target.connection(port=target.grpc_port) as (reader, writer):
            writer.write(first_bytes)
            reads = asyncio.create_task(reader.read())
            try:
                round_number = 0
                while attempt.goes_on() and not reads.done() and round_number < 2000:
                    writer.write(bytes_of_round(round_number))
                    async with asyncio.timeout(max(0.1, attempt.left_s())):
                        await writer.drain()
                    await asyncio.sleep(0.01)
                    round_number += 1
                attempt.saw("closed" if reads.done() else "open")
            finally:
                reads.cancel()
                await asyncio.gather(reads, return_exceptions=True)

    await attempt.crowd(one, min(attempt.connections, 2 * len(floods)))
    await _check_call_succeeds(target, attempt)


async def hostile_calls(target: Target, attempt: Attempt) -> None:
    """The gRPC twins of the HTTP attacks: hostile texts and many passages, short calls in a flood, and departures."""
    if target.grpc_port is None or target.is_tls:
        attempt.skipped = "no --grpc-port, or a certificate that grpcio cannot skip"
        return
    metadata = [("authorization", f"Bearer {target.keys[0]}")] if target.keys else None
    texts = ("", "\0", " \n", "x" * 3_000_000, "a " * 1_000_000, "\ufdfa" * 20_000, "flood", "flood")
    requests: list[tuple[str, bytes]] = [
        ("/tei.v1.Embed/Embed", pb.EmbedRequest(inputs=text, truncate=True).SerializeToString()) for text in texts
    ]
    requests.append(("/tei.v1.Rerank/Rerank", pb.RerankRequest(query="q", texts=["a"] * 100_000).SerializeToString()))
    requests.append(("/tei.v1.Embed/Embed", b"\xff" * 1000))

    async with grpc.aio.insecure_channel(f"{target.host}:{target.grpc_port}") as channel:
        calls = {path: channel.unary_unary(path) for path, _ in requests}

        async def one(number: int) -> None:
            path, content = requests[attempt.tried % len(requests)]
            leaves = number % 8 == 0
            try:
                await calls[path](content, metadata=metadata, timeout=0.05 if leaves else 60)
                attempt.saw("OK")
            except grpc.aio.AioRpcError as error:
                attempt.saw(error.code().name)
                if error.code() not in REFUSALS and not (leaves and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED):
                    attempt.fault(f"{path}: {error.code().name}: {error.details()}")
                await asyncio.sleep(0.01)

        await attempt.crowd(one, min(attempt.connections, 32))
    await _check_call_succeeds(target, attempt)


async def silent_grpc(target: Target, attempt: Attempt) -> None:
    """Connections to the gRPC port that send nothing."""
    if target.grpc_port is None:
        attempt.skipped = "no --grpc-port"
        return

    async def one(number: int) -> None:
        async with target.connection(tls=False, port=target.grpc_port) as (reader, _):
            try:
                async with asyncio.timeout(attempt.left_s() + 0.1):
                    while await reader.read(100):
                        pass
                attempt.saw("closed")
                await asyncio.sleep(0.1)
            except TimeoutError:
                attempt.saw("held")

    await attempt.crowd(one, 2 * attempt.connections)
    await _check_call_succeeds(target, attempt)


async def _check_call_succeeds(target: Target, attempt: Attempt) -> None:
    """Report a fault unless a call on a new connection succeeds."""
    address = f"{target.host}:{target.grpc_port}"
    if target.is_tls:
        return  # grpcio cannot skip the check of a certificate; the witness client tests the process over HTTP
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_S)
            if (await check).status != health_pb2.HealthCheckResponse.SERVING:
                attempt.fault("the gRPC port does not serve after the attack")
            metadata = [("authorization", f"Bearer {target.keys[0]}")] if target.keys else None
            embed = channel.unary_unary("/tei.v1.Embed/Embed")
            content = pb.EmbedRequest(inputs="a valid call").SerializeToString()
            answer = pb.EmbedResponse.FromString(await embed(content, timeout=ANSWER_S, metadata=metadata))
            if not answer.embeddings:
                attempt.fault("a valid gRPC call has no vector")
        except grpc.aio.AioRpcError as error:
            attempt.fault(f"a valid gRPC call after the attack failed: {error.code().name}")


ATTACKS = (frame_floods, hostile_calls, silent_grpc)
