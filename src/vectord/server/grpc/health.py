"""grpc.health.v1: what orchestrators and load balancers ask of a gRPC port. No key needed, as for HTTP's probes.

Served beside tei.v1 by server.py. Ready means what it means everywhere (wire/readiness.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1.health_pb2_grpc import HealthServicer

from vectord.engine.client import EngineClient
from vectord.products.common.models import ready_models
from vectord.server.grpc.tei_pb2 import DESCRIPTOR
from vectord.server.http.shutdown import Shutdown

SERVICES = frozenset(service.full_name for service in DESCRIPTOR.services_by_name.values())
HEALTH = pb.DESCRIPTOR.services_by_name["Health"].full_name
LOOK_EVERY_S = 1.0


class Health(HealthServicer):  # type: ignore[misc] # generated, without types
    def __init__(self, engine: EngineClient, shutdown: Shutdown) -> None:
        self._engine = engine
        self._shutdown = shutdown

    async def Check(self, request: Any, context: Any) -> Any:
        status = self._status(request.service)
        if status == pb.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "No such service.")
        return pb.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """The status now, and whenever it changes."""
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                yield pb.HealthCheckResponse(status=status)
            await asyncio.sleep(LOOK_EVERY_S)

    def _status(self, service: str) -> int:
        """service: "" asks for the whole port."""
        if service and service not in SERVICES:
            return int(pb.HealthCheckResponse.SERVICE_UNKNOWN)
        ready = ready_models(self._engine.models()) and not self._shutdown.begun
        return int(pb.HealthCheckResponse.SERVING if ready else pb.HealthCheckResponse.NOT_SERVING)
