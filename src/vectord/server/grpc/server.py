"""The port of tei.v1: opened and closed by compose, in the app's lifespan, on the engine's event loop.

The end is HTTP's: new calls are refused, those on their way included; what was accepted is answered; what runs out of
time, and streams that say nothing, are cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.errors import ConfigError
from vectord.observability.exchange import Exchange
from vectord.server.admission.gate import Gate
from vectord.server.grpc.call import Telling
from vectord.server.grpc.health import HEALTH, SERVICES, Health
from vectord.server.grpc.services import Services
from vectord.server.http.handler import Tracer
from vectord.server.http.hardening.unsent import Unsent
from vectord.server.http.shutdown import Shutdown
from vectord.server.http.tls import Certificate, certificate_of

MAX_CALLS = 1024  # under way at once; more are refused with RESOURCE_EXHAUSTED
IDLE_S = 300  # how long a connection without a call stays open
FAREWELL_S = 0.25  # how long calls on their way are still told that the server ends
LAST_WORDS_S = 1.0  # for answers to be written, once the last was given
# A message is one text, but for a few calls. services.py says how many may be on their way at once. It is gRPC's own
# default.
MAX_MESSAGE_BYTES = 4 * 2**20
MAX_STREAMS = 128  # of one connection at once
INT32_MAX = 2**31 - 1

_log = logging.getLogger("vectord.server.grpc")


@asynccontextmanager
async def serve_grpc(
    engine: EngineClient,
    config: ServerConfig,
    shutdown: Shutdown,
    gate: Gate | None = None,
    *,
    observer: Callable[[Exchange], None] | None = None,
    tracer: Tracer | None = None,
    unsent: Unsent | None = None,
) -> AsyncIterator[int]:
    """Answers at `config.host` and `config.grpc_port` while the block runs; gives the port, any free one for 0.

    Leaving the block begins `shutdown` if that has not begun, and waits for the engine to drain, but no longer than
    shutdown_timeout_secs from that beginning. Raises ConfigError if the port cannot be bound.
    gate, unsent: HTTP's; None makes one of `config`. observer, tracer: who is told of each call.
    """
    assert config.grpc_port is not None, "whoever wants no port does not call this"
    loop = asyncio.get_running_loop()
    server = grpc.aio.server(options=_options(config), maximum_concurrent_rpcs=MAX_CALLS)
    telling, room = Telling(observer, tracer), unsent or Unsent(config.payload_limit)
    server.add_generic_rpc_handlers((Services(engine, config, shutdown, gate or Gate(config), telling, room),))
    add_HealthServicer_to_server(Health(engine, shutdown), server)
    if not config.demands_key:  # grpc would answer it without one
        reflection.enable_server_reflection((*SERVICES, HEALTH), server)
    certificate = certificate_of(config)
    port = _bind(server, config.host, config.grpc_port, certificate)
    begun_s: asyncio.Future[float] = loop.create_future()
    shutdown.on_begin(lambda: begun_s.set_result(loop.time()))
    await server.start()
    scheme = "grpc" if certificate is None else "grpcs"
    _log.info("listening", extra={"fields": {"url": f"{scheme}://{_address(config.host, port)}"}})
    try:
        yield port
    finally:
        shutdown.begin()
        # Not set: it had begun before there was a port.
        await _drained(engine, begun_s.result() if begun_s.done() else loop.time(), config.shutdown_timeout_secs)
        await server.stop(LAST_WORDS_S)


async def _drained(engine: EngineClient, begun_s: float, timeout_s: float) -> None:
    """Both in the loop's time. Streams may be silent for ever, so it is the engine that says when all is answered."""
    await asyncio.sleep(begun_s + FAREWELL_S - asyncio.get_running_loop().time())
    with suppress(TimeoutError):
        async with asyncio.timeout_at(begun_s + timeout_s):
            await engine.drain()


def _options(config: ServerConfig) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_receive_message_length", min(config.payload_limit, MAX_MESSAGE_BYTES)),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_send_message_length", -1),  # vectors of all tokens of a text are larger than the text
        ("grpc.max_metadata_size", min(config.header_limit_bytes, INT32_MAX)),
        ("grpc.absolute_max_metadata_size", min(config.header_limit_bytes, INT32_MAX)),
        # None but identity, as TEI. With grpcio 1.81, 800 kB of gzip become 800 MB before their size is looked at.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_connection_idle_ms", IDLE_S * 1000),
        ("grpc.so_reuseport", 0),  # or a second server would take half of this one's connections
    )


def _bind(server: Any, host: str, port: int, certificate: Certificate | None) -> int:
    bound: int
    try:
        if certificate is None:
            bound = server.add_insecure_port(_address(host, port))
        else:
            bound = server.add_secure_port(_address(host, port), _credentials(certificate))
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise ConfigError(f"--grpc-port {port} of {host!r} cannot be bound: another program may have it.")
    return bound


def _credentials(certificate: Certificate) -> Any:
    chain, key = Path(certificate.chain_file).read_bytes(), Path(certificate.key_file).read_bytes()
    return grpc.ssl_server_credentials([(key, chain)])


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
