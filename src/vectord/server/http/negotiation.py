"""Accept: whether an answer goes out as its dialect writes it, or as bytes. Called by handler.py on every call.

    application/octet-stream             one matrix (wire/octets.py); `;dtype=float16` picks float32, float16, int8,
                                         ubinary; absent: int8 or ubinary if the body asks for that, else float32
    application/vnd.apache.arrow.stream  all vectors of a request in columns (wire/arrow.py)

Whoever names neither, or prefers JSON, gets the dialect's own answer. So does whoever asks for them of a route that
does not embed: such answers have no such form.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from vectord.errors import NotAcceptable
from vectord.products.common.dialect import Call
from vectord.products.common.vectors import (
    ARROW,
    OCTETS,
    PRECISIONS,
    Dtype,
    check_arrow,
    check_octets,
    render_arrow,
    render_octets,
)
from vectord.schema import DocumentsRequest, EmbedRequest, Request

MAX_ACCEPT_LENGTH = 1024


def negotiated(call: Call, headers: Mapping[str, str]) -> Call:
    """`call`, answered in the form that the client prefers.

    Raises NotAcceptable for vectors that do not fit into that form, before anything is computed.
    """
    wanted = _wanted(headers.get("accept", "")[:MAX_ACCEPT_LENGTH])
    if wanted is None or not isinstance(call.request, EmbedRequest | DocumentsRequest):
        return call
    if not call.binary:
        raise NotAcceptable("This answer comes as JSON alone: its numbers are made for it.", field="accept")
    return _as_arrow(call) if wanted.kind == ARROW else _as_octets(call, wanted.dtype)


def _as_arrow(call: Call) -> Call:
    if isinstance(call.request, DocumentsRequest):
        raise NotAcceptable(f"Documents come as JSON or as {OCTETS}.")
    check_arrow()
    return replace(call, render=render_arrow)


def _as_octets(call: Call, named: str | None) -> Call:
    """named: the dtype that the header names; None: that of the body."""
    dtype = named or _dtype_of(call.request)
    if dtype not in PRECISIONS:
        raise NotAcceptable(f"The dtype of {OCTETS} must be one of {', '.join(PRECISIONS)}.", field="accept")
    wanted = cast("Dtype", dtype)
    request = call.request
    assert isinstance(request, EmbedRequest | DocumentsRequest)
    check_octets(request, wanted)
    request = replace(request, precisions=(PRECISIONS[wanted],))
    return replace(call, request=request, render=partial(render_octets, wanted))


def _dtype_of(request: Request) -> str:
    """That of the one precision the body asks for. Raises NotAcceptable for several, or one that bytes do not have."""
    asked = getattr(request, "precisions", ("float",))
    for name, precision in PRECISIONS.items():
        if (precision,) == asked:
            return name
    raise NotAcceptable(
        f"{OCTETS} holds one of {', '.join(PRECISIONS)}; name it as {OCTETS};dtype=..., or ask for JSON.",
        field="accept",
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    kind: str
    dtype: str | None = None


@functools.lru_cache(maxsize=256)
def _wanted(accept: str) -> Wanted | None:
    """The binary form that stands highest in an Accept header; None where something else stands higher or nothing."""
    best, best_quality = None, 0.0
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        named = dict(_parameter(parameter) for parameter in parameters)
        quality = _quality(named.get("q", "1"))
        if quality > best_quality:
            best_quality = quality
            best = Wanted(kind, named.get("dtype")) if kind in (OCTETS, ARROW) else None
    return best


def quality_of(kind: str, accept: str) -> float:
    """How much a media type is wanted, 0 to 1, by an Accept header that names it; 0 for one that does not."""
    for part in accept.lower().split(","):
        named, *parameters = (piece.strip() for piece in part.split(";"))
        if named == kind:
            return _quality(dict(map(_parameter, parameters)).get("q", "1"))
    return 0.0


def _parameter(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip().strip('"')


def _quality(text: str) -> float:
    """From 0 to 1; what is no such number counts as 1."""
    try:
        quality = float(text)
    except ValueError:
        return 1.0
    return quality if 0 <= quality <= 1 else 1.0
