"""The HTTP status and headers of every error, and the bodies of errors that several products share.

Each product has a table `ERRORS`: STATUSES, or a copy with other statuses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from vectord import errors
from vectord.errors import (
    InputTooLong,
    InvalidRequest,
    MalformedBody,
    MethodNotAllowed,
    MissingField,
    Overloaded,
    Unauthorized,
    Unavailable,
    VectordError,
)
from vectord.products.common.dialect import Rendered, RenderError
from vectord.products.common.vectors import dump_json

Row = TypeVar("Row")
Statuses = Mapping[type[VectordError], int]

MAX_RETRY_AFTER_S = 120  # OpenAI's SDK does not retry at all if the wait is longer

# An error without a row has that of its nearest ancestor. SDKs retry 408, 409, 429 and 5xx, so an error that would
# repeat has none of these.
STATUSES: Statuses = MappingProxyType(
    {
        errors.VectordError: 500,
        errors.InvalidRequest: 400,
        errors.UnsupportedMediaType: 415,
        errors.NotAcceptable: 406,
        errors.PayloadTooLarge: 413,
        errors.ModelNotFound: 404,
        errors.ModelCannot: 400,
        errors.FingerprintMismatch: 412,
        errors.Unauthorized: 401,
        errors.Forbidden: 403,
        errors.NoSuchRoute: 404,
        errors.MethodNotAllowed: 405,
        errors.Overloaded: 429,
        errors.Unavailable: 503,
        errors.TimedOut: 504,
        errors.UploadTooSlow: 408,
        errors.InferenceTimedOut: 504,
    }
)

# FastAPI's: 422 for every fault of a body. 404 would mean a wrong path, so an unknown model is 400.
FASTAPI: Statuses = MappingProxyType(
    {**STATUSES, errors.InvalidRequest: 422, errors.MalformedHead: 400, errors.ModelNotFound: 400}
)

# TEI's: 422 for a readable body that cannot be served.
UNPROCESSABLE: Statuses = MappingProxyType(
    {**FASTAPI, errors.MalformedBody: 400, errors.EmptyInput: 400, errors.ModelNotFound: 404}
)


def row_of(table: Mapping[type[VectordError], Row], error: VectordError) -> Row:
    """The row of the error's class, or of its nearest ancestor; every table has a row for VectordError."""
    for kind in type(error).__mro__:
        if kind in table:
            return table[kind]
    raise KeyError(type(error))


def error_response(
    error: VectordError, body: object, statuses: Statuses = STATUSES, headers: Mapping[str, str] | None = None
) -> Rendered:
    """`body` as JSON, with the error's status and headers. headers: further ones."""
    all_headers = {**headers_of(error), **(headers or {})}
    return Rendered(body=dump_json(body), status=row_of(statuses, error), headers=all_headers)


def render_message(key: str, statuses: Statuses) -> RenderError:
    """A renderer of errors whose body has the message alone, under `key`."""
    return lambda error: error_response(error, {key: error.message}, statuses)


def headers_of(error: VectordError) -> dict[str, str]:
    """The headers that HTTP requires: Retry-After in whole seconds, Allow, or WWW-Authenticate."""
    if isinstance(error, Overloaded | Unavailable):
        return {"retry-after": str(math.ceil(retry_after_s(error)))}
    if isinstance(error, MethodNotAllowed):
        return {"allow": ", ".join(error.allowed)}
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    return {}


def retry_after_s(error: Overloaded | Unavailable) -> float:
    """The wait that a client is advised: above 0, and at most MAX_RETRY_AFTER_S."""
    return min(max(error.retry_after_s, 0.001), MAX_RETRY_AFTER_S)


# --- FastAPI's list of faults ---------------------------------------------------------------------------------


def faults(error: InvalidRequest) -> list[dict[str, Any]]:
    """FastAPI's `detail` for an invalid body. Generated clients of products that use FastAPI read loc, msg and type.

    It has one fault, because validation stops at the first. `input`, the client's value in FastAPI, is null.
    """
    kind = "json_invalid" if isinstance(error, MalformedBody) else "value_error"
    if isinstance(error, MissingField):
        kind = "missing"
    place = ["body", *(error.field_name.split(".") if error.field_name else ())]
    loc = place if error.index is None else [*place, error.index]
    return [{"type": kind, "loc": loc, "msg": error.message, "input": None}]


# --- errors before a product is selected, on paths outside /v1 ------------------------------------------------

# TEI's names, since most paths outside /v1 are TEI's. TEI has no name, and no body, for Unauthorized and Forbidden.
TEI_ERROR_TYPES: Mapping[type[VectordError], str] = {
    errors.VectordError: "Backend",
    errors.InvalidRequest: "Validation",
    errors.EmptyInput: "Empty",
    errors.Untokenizable: "Tokenizer",
    errors.ModelNotFound: "Validation",
    errors.FingerprintMismatch: "Validation",
    errors.Unauthorized: "Unauthorized",
    errors.Forbidden: "Forbidden",
    errors.NoSuchRoute: "Validation",
    errors.Overloaded: "Overloaded",
    errors.Unavailable: "Unhealthy",
}


def message_with_ways_out(error: VectordError) -> str:
    """For APIs that know `truncate` and refuse long texts by default: a long text is often a client's first request."""
    if type(error) is not InputTooLong or error.limit is None or "chunk" in error.values:  # a chunk is split already
        return error.message
    return (
        f'{error.message}. Send "truncate": true to cut it, or split it with /vectord/documents; the option '
        "--auto-truncate cuts every text"
    )


def render_any(error: VectordError) -> Rendered:
    """The message under the keys of every product: `detail`, `error` and `message`."""
    message = error.message
    body = {"detail": message, "error": message, "error_type": row_of(TEI_ERROR_TYPES, error), "message": message}
    return error_response(error, body, UNPROCESSABLE)
