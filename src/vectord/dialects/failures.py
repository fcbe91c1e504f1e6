"""What all dialects do alike with an error: find its row in their table, and set the headers HTTP asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from vectord.errors import MethodNotAllowed, Overloaded, Unauthorized, Unavailable, VectordError

Row = TypeVar("Row")

# The OpenAI SDK does not retry at all when it is told to wait longer than this.
MAX_RETRY_AFTER_S = 120


def row_of(table: Mapping[type[VectordError], Row], error: VectordError) -> Row:
    """The row of the error's class, or of its nearest ancestor; every table has a row for VectordError."""
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


def headers_of(error: VectordError) -> dict[str, str]:
    """Retry-After in whole seconds, Allow, WWW-Authenticate: whichever the error calls for."""
    if isinstance(error, Overloaded | Unavailable):
        return {"retry-after": str(math.ceil(retry_after_s(error)))}
    if isinstance(error, MethodNotAllowed):
        return {"allow": ", ".join(error.allowed)}
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    return {}


def retry_after_s(error: Overloaded | Unavailable) -> float:
    """The wait that may be told to a client: above 0 and never so long that clients give up instead."""
    return min(max(error.retry_after_s, 0.001), MAX_RETRY_AFTER_S)
