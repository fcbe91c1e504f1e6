"""How Smart Embedder says what went wrong: FastAPI's `detail`, its own sentence where its document fixes one."""

from __future__ import annotations

from collections.abc import Mapping

from vectord import errors
from vectord.errors import InvalidRequest, VectordError
from vectord.wire.failures import STATUSES, Statuses, headers_of, row_of
from vectord.wire.rendered import Rendered
from vectord.wire.validation import faults
from vectord.wire.vectors import dump_json

ERRORS: Statuses = {
    **STATUSES,
    errors.MalformedBody: 422,
    errors.InvalidField: 422,
    errors.WrongType: 422,
    errors.TooManyInputs: 422,
    errors.TooManyCharacters: 422,
    errors.Overloaded: 503,
}

TEXTS: Mapping[type[VectordError], str] = {
    errors.Unauthorized: "Invalid or missing bearer token.",
    errors.Overloaded: "Server is overloaded. Please retry later.",
    errors.ShuttingDown: "Server is shutting down",
    errors.InferenceFailed: "Internal server error.",
    errors.OutOfMemory: "Internal server error.",
}


def render_error(error: VectordError) -> Rendered:
    status = row_of(ERRORS, error)
    detail: object = TEXTS.get(type(error), error.message)
    if isinstance(error, InvalidRequest) and status == 422:
        detail = faults(error)
    return Rendered(body=dump_json({"detail": detail}), status=status, headers=headers_of(error))
