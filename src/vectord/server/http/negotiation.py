"""Content negotiation: the format of the vectors (Accept) and the compression of a response (Accept-Encoding).

Vectors have the product's own format, unless the Accept header prefers application/octet-stream: one matrix. Its
parameter, such as `;dtype=float16`, selects float32, float16, int8 or ubinary; without it, the int8 or ubinary of the
body counts, else float32.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, cast

from msgspec.structs import replace

from vectord.errors import NotAcceptable
from vectord.products.common.dialect import Call
from vectord.products.common.vectors import OCTETS, PRECISIONS, Dtype, check_octets, render_octets
from vectord.schema import DocumentsRequest, EmbedRequest

Coding: TypeAlias = Literal["zstd", "gzip"]

MAX_ACCEPT_LENGTH = 1024  # of Accept and Accept-Encoding; a longer header counts as absent

UNKNOWN_DTYPE = f"The dtype of {OCTETS} must be one of {', '.join(PRECISIONS)}."
SEVERAL_PRECISIONS = (
    f"{OCTETS} has one of {', '.join(PRECISIONS)}; select it with Accept: {OCTETS};dtype=..., or accept JSON."
)


@functools.lru_cache(maxsize=256)
def vector_format(accept: str | None) -> Accepted | None:
    """The entry for OCTETS, if an Accept header prefers it; None for the product's own format."""
    # `max` returns the first of several entries with the same quality.
    preferred = max(accepted(accept), key=lambda entry: entry.quality, default=None)
    return preferred if preferred is not None and preferred.quality and preferred.name == OCTETS else None


def negotiated(call: Call, headers: Mapping[str, str]) -> Call:
    """`call`, rendered in the format that the client prefers.

    Raises NotAcceptable, before anything is computed, if that format cannot represent the vectors.
    """
    form = vector_format(headers.get("accept"))
    if form is None or not isinstance(call.request, EmbedRequest | DocumentsRequest):
        return call
    if not call.binary:
        raise NotAcceptable("This response is JSON only, because its vectors are scaled for JSON.", field="accept")
    request = call.request
    colbert = request.colbert if isinstance(request, EmbedRequest) and "colbert" in request.outputs else None
    dtype = form.parameters.get("dtype")
    if not dtype:  # that of the precision in the body
        precisions = request.precisions if colbert is None else (colbert.precision,)
        dtype = next((name for name, precision in PRECISIONS.items() if (precision,) == precisions), None)
        if dtype is None:
            raise NotAcceptable(SEVERAL_PRECISIONS, field="accept")
    if dtype not in PRECISIONS:
        raise NotAcceptable(UNKNOWN_DTYPE, field="accept")
    shown = cast("Dtype", dtype)
    check_octets(request, shown)
    precision = PRECISIONS[shown]
    if colbert is None:
        request = replace(request, precisions=(precision,))
    else:
        request = replace(request, colbert=replace(colbert, precision=precision))
    return replace(call, request=request, render=partial(render_octets, shown))


class Accepted(NamedTuple):
    """One entry of an Accept or Accept-Encoding header, in lower case. quality: from 0 to 1."""

    name: str
    quality: float
    parameters: Mapping[str, str]


def accepted(header: str | None) -> Sequence[Accepted]:
    """The entries of an Accept or Accept-Encoding header, in order."""
    if not header or len(header) > MAX_ACCEPT_LENGTH:
        return ()
    entries = []
    for part in header.lower().split(","):
        name, *pieces = (piece.strip() for piece in part.split(";"))
        parameters = dict(map(_parameter, pieces))
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            quality = 1.0
        entries.append(Accepted(name, quality if 0 <= quality <= 1 else 1.0, parameters))
    return entries


def quality_of(name: str, header: str | None, default: float = 0.0) -> float:
    """The quality of a media type or coding in its header, 0 to 1; `default` if the header does not name it."""
    return next((entry.quality for entry in accepted(header) if entry.name == name), default)


def _parameter(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip().strip('"')


@functools.lru_cache(maxsize=256)
def coding_for(accept_encoding: str | None) -> Coding | None:
    """The preferred coding that an Accept-Encoding header accepts, by name or by `*`; None if it accepts neither."""
    if quality_of("zstd", accept_encoding):  # only by name: a client that sends * may not support zstd
        return "zstd"
    return "gzip" if accepts_gzip(accept_encoding) else None


def accepts_gzip(accept_encoding: str | None) -> bool:
    return quality_of("gzip", accept_encoding, default=quality_of("*", accept_encoding)) > 0
