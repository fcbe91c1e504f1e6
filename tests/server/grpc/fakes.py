"""A fake engine for every request of tei.v1, a real server over it, and a client from the proto."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import grpc
import numpy as np
import pytest
from google.protobuf.message_factory import GetMessageClass
from tests.products.results import classify_result, embed_result, rerank_result, usage
from tests.server import fakes

from vectord.config import ServerConfig
from vectord.schema import (
    Caller,
    ClassifyRequest,
    DecodeRequest,
    DecodeResult,
    EmbedRequest,
    EmbedResult,
    Request,
    RerankRequest,
    Result,
    Sparse,
    Token,
    TokenizeRequest,
    TokenizeResult,
)
from vectord.server.admission.gate import Gate
from vectord.server.grpc import server
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.server import serve_grpc
from vectord.server.pipeline import RequestPipeline, Shutdown

PATIENCE_S = 60.0
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class FakeEngine(fakes.FakeEngine):
    """Its numbers are the lengths of the texts, so that a result identifies its text.

    failures: raised instead of the next results.
    """

    answered = Request

    def __init__(self, *, held: bool = False) -> None:
        super().__init__(held=held)
        self.requests: list[Request] = []
        self.failures: list[Exception] = []
        self.most_running = 0

    async def answer(self, request: Request, caller: Caller) -> Result:
        self.requests.append(request)
        return await super().answer(request, caller)

    async def before_answer(self) -> None:
        self.most_running = max(self.most_running, self.running)
        await super().before_answer()

    def result_of(self, request: Request) -> Result:
        if self.failures:
            raise self.failures.pop(0)
        return result_of(request)


def result_of(request: Request) -> Result:
    match request:
        case EmbedRequest(inputs=[text], outputs=outputs):
            return _vectors(len(text), outputs)
        case ClassifyRequest():
            return classify_result([0.2, 0.7, 0.1])
        case RerankRequest(passages=passages):
            return rerank_result(*map(len, passages))
        case TokenizeRequest(inputs=[text]):
            tokens = [Token(101, "[CLS]", True, None, None), Token(7, text, False, 0, len(text))]
            return TokenizeResult(model="served", tokens=[tokens], usage=usage([(2, 2)]))
        case DecodeRequest(ids=[ids]):
            return DecodeResult(model="served", texts=[" ".join(map(str, ids))])
    raise AssertionError(f"tei.v1 asks for no {request}")


def _vectors(number: int, outputs: frozenset[str]) -> EmbedResult:
    if outputs == {"dense"}:
        return embed_result(np.array([[number, 0.1]], np.float32), usage([(9, 4)]))
    if outputs == {"sparse"}:
        words = Sparse(np.array([number, 3], np.int32), np.array([0.1, 2], np.float32))
        return EmbedResult(model="served", fingerprint="f00d", usage=usage([(9, 4)]), sparse=[words])
    tokens = np.full((2, 3), number, np.float32)
    return EmbedResult(model="served", fingerprint="f00d", usage=usage([(9, 4)]), tokens=[tokens])


@dataclass
class Live:
    """A running server, and one connection to it."""

    channel: grpc.aio.Channel
    port: int
    shutdown: Shutdown

    def call(self, path: str, messages: Any, **options: Any) -> Any:
        """A method from tei.proto. messages: one message, or an iterable if the method takes a stream."""
        method = METHODS[path]
        kind = _KINDS[method.client_streaming, method.server_streaming]
        send, receive = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        stub = getattr(self.channel, kind)(
            path, request_serializer=send.SerializeToString, response_deserializer=receive.FromString
        )
        return stub(messages, **options)


_KINDS = {
    (False, False): "unary_unary",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}


async def failed(call: Any) -> grpc.aio.AioRpcError:
    """The error of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def code_of(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@asynccontextmanager
async def live(engine: FakeEngine | None = None, tracer: Any = None, **settings: Any) -> AsyncIterator[Live]:
    """settings: fields of ServerConfig. Fails after PATIENCE_S. Its shutdown waits only for the engine."""
    config = ServerConfig(grpc_port=0, **settings)
    shutdown = Shutdown()
    with patch.object(server, "MIN_DRAIN_S", 0.0):
        async with (
            asyncio.timeout(PATIENCE_S),
            serve_grpc(engine or FakeEngine(), config, pipeline(config, shutdown, tracer=tracer)) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            yield Live(channel, port, shutdown)


def pipeline(config: ServerConfig, shutdown: Shutdown | None = None, **reports: Any) -> RequestPipeline:
    """reports: the observer and the tracer."""
    return RequestPipeline(Gate(config), shutdown or Shutdown(), **reports)
