"""How Simple Inference Server says what went wrong: `detail`, in its own words where it has any."""

from __future__ import annotations

from collections.abc import Mapping

from vectord import errors
from vectord.errors import MalformedBody, TooManyInputs, VectordError, WrongType
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import STATUSES, Statuses, faults, headers_of, row_of
from vectord.products.common.vectors import dump_json

ERRORS: Statuses = {**STATUSES, errors.MalformedBody: 422, errors.WrongType: 422, errors.MissingField: 422}

# "{}" for our message.
TEXTS: Mapping[type[VectordError], str] = {
    errors.VectordError: "{}",
    errors.ModelNotFound: "Model not found",
    errors.ShuttingDown: "Service is shutting down",
    errors.Overloaded: "Request queue full",
    errors.RateLimited: "{}",
    errors.InferenceFailed: "Embedding generation failed",
}
RERANK_TEXTS = {**TEXTS, errors.InferenceFailed: "Rerank failed"}


def render_error(error: VectordError) -> Rendered:
    return _render(error, TEXTS)


def render_rerank_error(error: VectordError) -> Rendered:
    return _render(error, RERANK_TEXTS)


def _render(error: VectordError, texts: Mapping[type[VectordError], str]) -> Rendered:
    status = row_of(ERRORS, error)
    detail = faults(error) if isinstance(error, MalformedBody | WrongType) else _text(error, texts)
    return Rendered(body=dump_json({"detail": detail}), status=status, headers=headers_of(error))


def _text(error: VectordError, texts: Mapping[type[VectordError], str]) -> str:
    if isinstance(error, TooManyInputs) and error.limit is not None:
        return f"Batch too large; max {error.limit} items"
    return row_of(texts, error).format(error.message)
