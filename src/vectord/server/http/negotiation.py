"""Selects the form of a response from the Accept header. Called by handler.py for every call.

    application/octet-stream             one matrix; `;dtype=float16` selects float32, float16, int8 or ubinary; the
                                         default is int8 or ubinary if the body requests it, else float32
    application/vnd.apache.arrow.stream  all vectors of a request in columns

Otherwise, and for routes that return no vectors, the response has the product's own form.
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

JSON_ONLY = "This response is JSON only, because its vectors are scaled for JSON."
NOT_AS_ARROW = f"Documents are returned as JSON or as {OCTETS}."
UNKNOWN_DTYPE = f"The dtype of {OCTETS} must be one of {', '.join(PRECISIONS)}."
SEVERAL_PRECISIONS = (
    f"{OCTETS} has one of {', '.join(PRECISIONS)}; select it with Accept: {OCTETS};dtype=..., or accept JSON."
)


def negotiated(call: Call, headers: Mapping[str, str]) -> Call:
    """`call` with the form that the client prefers.

    Raises NotAcceptable, before anything is computed, if the vectors do not fit into that form.
    """
    preferred = _preferred(headers.get("accept", "")[:MAX_ACCEPT_LENGTH])
    if preferred is None or not isinstance(call.request, EmbedRequest | DocumentsRequest):
        return call
    if not call.binary:
        raise NotAcceptable(JSON_ONLY, field="accept")
    return _as_arrow(call) if preferred.kind == ARROW else _as_octets(call, preferred.dtype)


def _as_arrow(call: Call) -> Call:
    if isinstance(call.request, DocumentsRequest):
        raise NotAcceptable(NOT_AS_ARROW, field="accept")
    check_arrow()
    return replace(call, render=render_arrow)


def _as_octets(call: Call, named: str | None) -> Call:
    """named: the dtype in the header; None: the one in the body."""
    dtype = named or _dtype_of(call.request)
    if dtype not in PRECISIONS:
        raise NotAcceptable(UNKNOWN_DTYPE, field="accept")
    precision = cast("Dtype", dtype)
    request = call.request
    assert isinstance(request, EmbedRequest | DocumentsRequest)
    check_octets(request, precision)
    request = replace(request, precisions=(PRECISIONS[precision],))
    return replace(call, request=request, render=partial(render_octets, precision))


def _dtype_of(request: Request) -> str:
    """The dtype of the body's one precision. Raises NotAcceptable for several, or for one without a dtype."""
    requested = getattr(request, "precisions", ("float",))
    for name, precision in PRECISIONS.items():
        if (precision,) == requested:
            return name
    raise NotAcceptable(SEVERAL_PRECISIONS, field="accept")


@dataclass(frozen=True, slots=True)
class Preferred:
    kind: str
    dtype: str | None = None


@functools.lru_cache(maxsize=256)
def _preferred(accept: str) -> Preferred | None:
    """The binary form with the highest quality in an Accept header; None if another type has it."""
    best, best_quality = None, 0.0
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        named = dict(_parameter(parameter) for parameter in parameters)
        quality = _quality(named.get("q", "1"))
        if quality > best_quality:
            best_quality = quality
            best = Preferred(kind, named.get("dtype")) if kind in (OCTETS, ARROW) else None
    return best


def quality_of(kind: str, accept: str) -> float:
    """The quality of a media type in an Accept header, 0 to 1; 0 if the header does not name it."""
    for part in accept.lower().split(","):
        named, *parameters = (piece.strip() for piece in part.split(";"))
        if named == kind:
            return _quality(dict(map(_parameter, parameters)).get("q", "1"))
    return 0.0


def _parameter(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip().strip('"')


def _quality(text: str) -> float:
    """From 0 to 1; anything else counts as 1."""
    try:
        quality = float(text)
    except ValueError:
        return 1.0
    return quality if 0 <= quality <= 1 else 1.0
