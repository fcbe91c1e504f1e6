"""Which status every error has, and what all dialects do alike with one. A dialect's table is this one, changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from vectord import errors
from vectord.errors import MethodNotAllowed, Overloaded, Unauthorized, Unavailable, VectordError

Row = TypeVar("Row")
Statuses = Mapping[type[VectordError], int]

# The OpenAI SDK does not retry at all when it is told to wait longer than this.
MAX_RETRY_AFTER_S = 120

# Each error that a client can meet. A dialect that says otherwise has a table {**STATUSES, ...} of its own.
# SDKs retry 408, 409, 429 and 5xx: what will fail again must be none of those.
STATUSES: Statuses = MappingProxyType(
    {
        errors.VectordError: 500,
        errors.InvalidRequest: 400,
        errors.MalformedBody: 400,
        errors.UnsupportedMediaType: 415,
        errors.NotAcceptable: 406,
        errors.PayloadTooLarge: 413,
        errors.InvalidField: 400,
        errors.WrongType: 400,
        errors.MissingField: 400,
        errors.EmptyInput: 400,
        errors.TooManyInputs: 400,
        errors.InputTooLong: 400,
        errors.TooManyCharacters: 400,
        errors.ForeignIds: 400,
        errors.Untokenizable: 400,
        errors.ModelNotFound: 404,
        errors.ModelCannot: 400,
        errors.FingerprintMismatch: 412,
        errors.Unauthorized: 401,
        errors.Forbidden: 403,
        errors.NoSuchRoute: 404,
        errors.MethodNotAllowed: 405,
        errors.Overloaded: 429,
        errors.RateLimited: 429,
        errors.Unavailable: 503,
        errors.ShuttingDown: 503,
        errors.TimedOut: 504,
        errors.UploadTooSlow: 408,
        errors.InferenceFailed: 500,
        errors.OutOfMemory: 500,
        errors.InferenceTimedOut: 504,
    }
)

# 422 for a body that can be read and asks for what cannot be served, as TEI has it.
UNPROCESSABLE: Statuses = MappingProxyType(
    {
        **STATUSES,
        **dict.fromkeys(
            (
                errors.InvalidRequest,
                errors.InvalidField,
                errors.WrongType,
                errors.MissingField,
                errors.TooManyInputs,
                errors.InputTooLong,
                errors.TooManyCharacters,
                errors.ForeignIds,
                errors.Untokenizable,
            ),
            422,
        ),
    }
)


def row_of(table: Mapping[type[VectordError], Row], error: VectordError) -> Row:
    """The row of the error's class, or of its nearest ancestor; every table has a row for VectordError."""
    for kind in type(error).__mro__:
        if kind in table:
            return table[kind]
    raise KeyError(type(error))


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
