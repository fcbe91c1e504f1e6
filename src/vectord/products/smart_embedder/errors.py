"""How Smart Embedder says what went wrong: FastAPI's `detail`, its own sentence where its document fixes one."""

from __future__ import annotations

from collections.abc import Mapping

from vectord import errors
from vectord.errors import InferenceTimedOut, InvalidRequest, RateLimited, VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import STATUSES, Statuses, faults, headers_of, row_of
from vectord.products.common.vectors import dump_json

ERRORS: Statuses = {
    **STATUSES,
    errors.MalformedBody: 422,
    errors.InvalidField: 422,
    errors.WrongType: 422,
    errors.MissingField: 422,
    errors.TooManyInputs: 422,
    errors.TooManyCharacters: 422,
    errors.Overloaded: 503,
    errors.RateLimited: 429,
}

RERANK_TIMED_OUT = "Timeout during rerank GPU processing."
TEXTS: Mapping[type[VectordError], str] = {
    errors.Unauthorized: "Invalid or missing bearer token.",
    errors.Overloaded: "Server is overloaded. Please retry later.",
    errors.ShuttingDown: "Server is shutting down",
    errors.InferenceFailed: "Internal server error.",
    errors.OutOfMemory: "Internal server error.",
    errors.TimedOut: "Request timed out.",
    errors.InferenceTimedOut: "Timeout during GPU processing.",
}


RATE_LIMITED_S = 60  # the product's answer to when to come back, whatever the limit


def render_rerank_error(error: VectordError) -> Rendered:
    """As `render_error`, but for the one sentence that is another."""
    if isinstance(error, InferenceTimedOut):
        return Rendered(body=dump_json({"detail": RERANK_TIMED_OUT}), status=row_of(ERRORS, error))
    return render_error(error)


def render_error(error: VectordError) -> Rendered:
    if isinstance(error, RateLimited):
        return _rate_limited(error)
    status = row_of(ERRORS, error)
    detail: object = TEXTS.get(type(error), error.message)
    if isinstance(error, InvalidRequest) and status == 422:
        detail = faults(error)
    return Rendered(body=dump_json({"detail": detail}), status=status, headers=headers_of(error))


def _rate_limited(error: RateLimited) -> Rendered:
    shown = {"detail": error.message, "retry_after": RATE_LIMITED_S}
    headers = {"retry-after": str(RATE_LIMITED_S)}
    return Rendered(body=dump_json(shown), status=row_of(ERRORS, error), headers=headers)
