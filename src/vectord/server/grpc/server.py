"""Opens the port of tei.v1 and grpc.health.v1. compose.py calls this in the app's lifespan, on the engine's event loop.

The shutdown is HTTP's: new calls are refused, accepted ones are answered, and calls that exceed the timeout, or idle
streams, are cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from vectord.budget import Budget
from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.errors import ConfigError
from vectord.products.common.models import ready_models
from vectord.server.grpc.services import MAX_MESSAGE_BYTES, Services
from vectord.server.grpc.tei_pb2 import DESCRIPTOR
from vectord.server.http.hardening.connection_limits import grpc_limit
from vectord.server.http.listener import certificate_of
from vectord.server.pipeline import Reload, RequestPipeline, Shutdown

MAX_CALLS = 1024  # in progress; more get RESOURCE_EXHAUSTED
MAX_HEALTH_CALLS = 64  # of each method of grpc.health.v1; among MAX_CALLS
IDLE_S = 300  # how long a connection without calls stays open
HANDSHAKE_S = 10.0  # for TLS and HTTP/2's first frames; 120 by grpc's default
KEEPALIVE_S = 60  # idle time before a keepalive ping, and the timeout of the reply to it
MIN_DRAIN_S = 0.25  # how long new calls still get UNAVAILABLE during shutdown
SEND_S = 1.0  # time to send responses after the last result
MAX_STREAMS = 128  # of one connection
INT32_MAX = 2**31 - 1
HEALTH_INTERVAL_S = 1.0

SERVICES = frozenset(service.full_name for service in DESCRIPTOR.services_by_name.values())
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_log = logging.getLogger("vectord.server.grpc")


@asynccontextmanager
async def serve_grpc(engine: EngineClient, config: ServerConfig, pipeline: RequestPipeline) -> AsyncIterator[int]:
    """Serves at `config.host` and `config.grpc_port` during the block; yields the port, any free one for 0.

    The end of the block begins the shutdown, unless it has begun, and waits for the engine to drain, at most
    shutdown_timeout_secs from its beginning. Raises ConfigError if the port cannot be bound.
    pipeline: HTTP's.
    """
    assert config.grpc_port is not None, "called only if the port is configured"
    loop = asyncio.get_running_loop()
    shutdown = pipeline.shutdown
    server = grpc.aio.server(options=_options(config), maximum_concurrent_rpcs=MAX_CALLS)
    server.add_generic_rpc_handlers((HealthService(engine, shutdown), Services(engine, config, pipeline)))
    if not config.demands_key:  # grpc answers reflection without a key
        reflection.enable_server_reflection((*SERVICES, HEALTH), server)
    credentials = _credentials(config, pipeline.reload)
    address = _address(config.host, config.grpc_port)
    try:
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        raise ConfigError(
            f"--grpc-port {config.grpc_port} of {config.host!r} cannot be bound: another program may use it."
        ) from None
    begun_s: asyncio.Future[float] = loop.create_future()
    shutdown.on_begin(lambda: begun_s.set_result(loop.time()))
    await server.start()
    scheme = "grpc" if credentials is None else "grpcs"
    _log.info("listening", extra={"fields": {"url": f"{scheme}://{_address(config.host, port)}"}})
    try:
        yield port
    finally:
        shutdown.begin()
        # Not set if the shutdown began before the port was open.
        start_s = begun_s.result() if begun_s.done() else loop.time()
        await asyncio.sleep(start_s + MIN_DRAIN_S - loop.time())
        with suppress(TimeoutError):  # streams may be idle forever: the engine decides when all requests are answered
            async with asyncio.timeout_at(start_s + config.shutdown_timeout_secs):
                await engine.drain()
        await server.stop(SEND_S)


def _options(config: ServerConfig) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_receive_message_length", min(config.payload_limit, MAX_MESSAGE_BYTES)),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_allowed_incoming_connections", grpc_limit()),  # a further one is closed at once
        ("grpc.max_send_message_length", -1),  # vectors of all tokens of a text are larger than the text
        ("grpc.max_metadata_size", min(config.header_limit_bytes, INT32_MAX)),
        ("grpc.absolute_max_metadata_size", min(config.header_limit_bytes, INT32_MAX)),
        # Identity only, as in TEI. With grpcio 1.81, 800 kB of gzip become 800 MB before the size is checked.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_connection_idle_ms", IDLE_S * 1000),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_S * 1000),
        ("grpc.so_reuseport", 0),  # otherwise a second server would get half of the connections
    )


def _credentials(config: ServerConfig, reload: Reload) -> Any:
    """None without TLS. grpc asks for the certificate at each handshake, on a thread of its own."""
    current: Any = None

    def read() -> None:
        nonlocal current
        if (files := certificate_of(config)) is not None:
            chain, key = (Path(file).read_bytes() for file in files)
            current = grpc.ssl_server_certificate_configuration([(key, chain)])

    read()
    if current is None:
        return None
    reload.on_begin(read)
    return grpc.dynamic_ssl_server_credentials(current, lambda: current)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class HealthService(grpc.GenericRpcHandler):  # type: ignore[misc] # without types
    """grpc.health.v1, for orchestrators and load balancers. No key needed, as for HTTP's probes.

    Its methods have a limit of their own, which counts from before the message is read: a client without a key cannot
    take the places of MAX_CALLS.
    """

    def __init__(self, engine: EngineClient, shutdown: Shutdown) -> None:
        self._engine = engine
        self._shutdown = shutdown
        self._handlers = {
            f"/{HEALTH}/{method}": grpc.stream_stream_rpc_method_handler(
                partial(self._answer, Budget(MAX_HEALTH_CALLS), watches),
                health_pb2.HealthCheckRequest.FromString,
                health_pb2.HealthCheckResponse.SerializeToString,
            )
            for method, watches in (("Check", False), ("Watch", True))
        }

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method)

    async def _answer(self, places: Budget, watches: bool, messages: AsyncIterator[Any], context: Any) -> None:
        """The status now and, if `watches`, after every change."""
        if not places.hold(1):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many health checks are open.")
        context.add_done_callback(lambda _: places.release(1))
        request = await anext(messages, health_pb2.HealthCheckRequest())
        if not watches and request.service not in ("", *SERVICES):
            await context.abort(grpc.StatusCode.NOT_FOUND, "No such service.")
        reported = None
        while reported is None or watches:
            ready = ready_models(self._engine.models()) and not self._shutdown.begun
            status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
            if request.service not in ("", *SERVICES):  # "" is the whole port
                status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if status != reported:
                reported = status
                await context.write(health_pb2.HealthCheckResponse(status=status))
            if watches:
                await asyncio.sleep(HEALTH_INTERVAL_S)
