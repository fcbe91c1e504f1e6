"""The messages between a front-end and the engine's process, other than requests and results. codec.py encodes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from vectord.observability.exchange import ConnectionsCounted, Exchange
from vectord.observability.metrics import FigurePart
from vectord.products.common.dialect import Rate
from vectord.schema import Caller, ModelList, Operation
from vectord.server.admission.buckets import Draw, Refusal

HEARTBEAT_S = 0.3  # between two announcements of the engine's state


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """Announced by the engine every HEARTBEAT_S, for calls that must not wait, and as a sign that it runs."""

    readiness: dict[str, str]
    models: ModelList
    names: Mapping[str, str]  # every name that clients may use -> the served name


# --- queries of a front-end, each with a reply ----------------------------------------------------------------


class CheckBusy(msgspec.Struct, tag=True):
    """EngineClient.check_busy. The reply is None, or its error."""

    operation: Operation
    caller: Caller


class DrawTokens(msgspec.Struct, tag=True):
    """Draw from rate-limit buckets. The reply is the Refusal, or None."""

    draws: list[Draw]


class SpendTokens(msgspec.Struct, tag=True):
    """Take `amount` from a bucket, below zero if necessary. The reply is None."""

    rate: Rate
    bucket: str
    amount: int


class ExposeMetrics(msgspec.Struct, tag=True):
    """The reply is a MetricsPage, or None without metrics. accept: the header of the scraper."""

    accept: str


class MetricsPage(msgspec.Struct):
    body: bytes
    content_type: str


class ShowFigures(msgspec.Struct, tag=True):
    """The reply is a part of the console's figures as JSON, or None without metrics."""

    part: FigurePart


Query: TypeAlias = CheckBusy | DrawTokens | SpendTokens | ExposeMetrics | ShowFigures
QueryReply: TypeAlias = Refusal | MetricsPage | bytes | None


# --- reports of a front-end, without a reply ------------------------------------------------------------------


Report: TypeAlias = Exchange | ConnectionsCounted
