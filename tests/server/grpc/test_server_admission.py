"""Keys, limits, proxies and TLS over gRPC, shared with HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from tests.keys import entry, keys_file
from tests.server.grpc.fakes import FakeEngine, code_of, live, pipeline

from vectord.config import ServerConfig
from vectord.server.admission.gate import Gate
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.server import serve_grpc
from vectord.server.pipeline import RequestPipeline, Shutdown

EMBED = "/tei.v1.Embed/Embed"


@pytest.fixture
def keys(tmp_path: Path) -> str:
    """One key, `secret`, with every limit."""
    return keys_file(tmp_path, entry("team", "secret", models='["m"]', lane='"bulk"', requests_per_minute=2))


def embed(running: Any, **metadata: str) -> Any:
    sent = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    return running.call(EMBED, pb.EmbedRequest(inputs="abc"), metadata=sent)


async def test_a_named_key_identifies_the_client(keys: str) -> None:
    """With its lane and models; a wrong key is refused."""
    engine = FakeEngine()
    async with live(engine, api_keys_file=keys) as running:
        assert await code_of(embed(running)) == grpc.StatusCode.UNAUTHENTICATED
        await embed(running, authorization="Bearer secret")
    (caller,) = engine.callers
    assert (caller.client, caller.lane, caller.models) == ("team", "bulk", {"m"})


async def test_http_and_grpc_share_a_keys_quota(keys: str) -> None:
    config = ServerConfig(api_keys_file=keys, grpc_port=0)
    gate = Gate(config)
    await gate.limits.check("10.0.0.1", gate.keys.lookup({"x-api-key": "secret"}), None)
    async with (
        serve_grpc(FakeEngine(), config, RequestPipeline(gate, Shutdown())) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        call = channel.unary_unary(EMBED)
        message = pb.EmbedRequest(inputs="abc").SerializeToString()
        await call(message, metadata=(("x-api-key", "secret"),))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(message, metadata=(("x-api-key", "secret"),))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == "Rate limit exceeded. Max 2 requests per minute."
    assert int(dict(refused.value.trailing_metadata() or ())["grpc-retry-pushback-ms"]) > 0


async def test_each_message_of_a_stream_counts(keys: str) -> None:
    """A limited stream waits instead of failing."""
    engine = FakeEngine()

    async def messages() -> AsyncIterator[pb.EmbedRequest]:
        for _ in range(3):
            yield pb.EmbedRequest(inputs="abc")

    async with live(engine, api_keys_file=keys) as running:
        call = running.call("/tei.v1.Embed/EmbedStream", messages(), metadata=(("x-api-key", "secret"),), timeout=1)
        answers = []
        with pytest.raises(grpc.aio.AioRpcError) as late:
            async for answer in call:
                answers.append(answer)
    assert (len(answers), late.value.code()) == (2, grpc.StatusCode.DEADLINE_EXCEEDED)


async def test_a_trusted_proxys_header_counts() -> None:
    """As for HTTP."""
    for proxies, client in ((("127.0.0.0/8",), "1.2.3.4"), ((), "127.0.0.1")):
        engine = FakeEngine()
        async with live(engine, trusted_proxies=proxies) as running:
            await embed(running, x_forwarded_for="6.6.6.6, 1.2.3.4")
        assert [caller.client for caller in engine.callers] == [client]


async def test_tls_covers_grpc(tmp_path: Path) -> None:
    """With a certificate, plain connections are refused. New connections get a reloaded certificate."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(chain)
    config = ServerConfig(grpc_port=0, tls_cert_file=str(chain), tls_key_file=str(key))
    trusting = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    message = pb.EmbedRequest(inputs="abc").SerializeToString()
    requests = pipeline(config)
    async with serve_grpc(FakeEngine(), config, requests) as port:
        async with grpc.aio.secure_channel(f"localhost:{port}", trusting) as channel:
            await channel.unary_unary(EMBED)(message)
        other = trustme.CA()
        issued = other.issue_cert("localhost")
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(chain)
        requests.reload.begin()
        trusting = grpc.ssl_channel_credentials(other.cert_pem.bytes())
        async with grpc.aio.secure_channel(f"localhost:{port}", trusting) as channel:
            await channel.unary_unary(EMBED)(message)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as plain:
            assert await code_of(plain.unary_unary(EMBED)(message)) == grpc.StatusCode.UNAVAILABLE
