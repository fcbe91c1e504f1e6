"""What goes over the socket beside requests and results. Plain values: codec.py turns them into bytes and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from vectord.observability.exchange import Exchange
from vectord.products.common.dialect import Rate
from vectord.schema import ModelList
from vectord.server.admission.buckets import Draw, Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the engine serves at this moment, for the calls that cannot wait."""

    readiness: dict[str, str]
    models: ModelList
    names: Mapping[str, str]  # every name that clients may use, and the served name it stands for


# --- calls of a front-end's, each with a reply ----------------------------------------------------------------


class DrawAll(msgspec.Struct, tag=True):
    """Draw from buckets. The reply: the Refusal, None if there is none."""

    draws: list[Draw]


class Spend(msgspec.Struct, tag=True):
    """Take `amount`, also what is not there. The reply: None."""

    rate: Rate
    bucket: str
    amount: int


class Expose(msgspec.Struct, tag=True):
    """The reply: the Page of all metrics, None where none are kept. accept: the header of whoever scrapes."""

    accept: str


class Page(msgspec.Struct):
    body: bytes
    content_type: str


class Live(msgspec.Struct, tag=True):
    """The reply: what the console draws, as JSON; None where nothing is kept."""


Call: TypeAlias = DrawAll | Spend | Expose | Live
Reply: TypeAlias = Refusal | Page | bytes | None


# --- notes of a front-end's, without one ----------------------------------------------------------------------


class Routes(msgspec.Struct, tag=True):
    """(dialect, path) of what is served, to be shown at zero."""

    routes: list[tuple[str, str]]


Note: TypeAlias = Routes | Exchange
