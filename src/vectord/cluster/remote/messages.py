"""What a front-end and the engine's process send each other, besides requests and results. codec.py encodes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from vectord.observability.exchange import ConnectionsCounted, Exchange
from vectord.observability.metrics import FigurePart
from vectord.products.common.dialect import Rate
from vectord.schema import Caller, ModelList, Operation
from vectord.server.admission.buckets import Draw

HEARTBEAT_S = 0.3  # between two announcements of the engine's state

Report: TypeAlias = Exchange | ConnectionsCounted

# The methods of the engine's process, with the types of their arguments. The method ANSWER takes a request.
ARGUMENTS: Mapping[str, Any] = {
    "check_busy": tuple[Operation, Caller],
    "draw": tuple[list[Draw]],
    "spend": tuple[Rate, str, int],
    "observe": tuple[list[Report]],
    "exposition": tuple[str],
    "figures": tuple[FigurePart],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """Announced by the engine every HEARTBEAT_S, for calls that must not wait, and as a sign that it runs."""

    readiness: dict[str, str]
    models: ModelList
    names: Mapping[str, str]  # every name that clients may use -> the served name
