"""How Semantic Explorer says what went wrong: a message that begins with the kind of failure, and a code for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from vectord import errors
from vectord.errors import InferenceFailed, VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import STATUSES, Statuses, headers_of, row_of
from vectord.products.common.vectors import dump_json

Words: TypeAlias = tuple[str, str]  # the code, and how the message begins

ERRORS: Statuses = {**STATUSES, errors.ModelNotFound: 400, errors.Overloaded: 503, errors.RateLimited: 429}

INTERNAL: Words = ("INTERNAL_ERROR", "Internal error")
EMBEDDING: Words = ("EMBEDDING_ERROR", "Embedding generation failed")
RERANKING: Words = ("RERANK_ERROR", "Reranking failed")

# The source's, and in its manner for what it does not know: keys and paths.
_WORDS: Mapping[type[VectordError], Words] = {
    errors.VectordError: INTERNAL,
    errors.InvalidRequest: ("BAD_REQUEST", "Bad request"),
    errors.ModelNotFound: ("UNSUPPORTED_MODEL", "Unsupported model"),
    errors.ModelCannot: ("UNSUPPORTED_MODEL", "Unsupported model"),
    errors.FingerprintMismatch: ("BAD_REQUEST", "Bad request"),
    errors.Unauthorized: ("UNAUTHORIZED", "Unauthorized"),
    errors.Forbidden: ("FORBIDDEN", "Forbidden"),
    errors.NoSuchRoute: ("NOT_FOUND", "Not found"),
    errors.MethodNotAllowed: ("METHOD_NOT_ALLOWED", "Method not allowed"),
    errors.Overloaded: ("SERVICE_UNAVAILABLE", "Service unavailable"),
    errors.RateLimited: ("RATE_LIMITED", "Too many requests"),
    errors.Unavailable: ("SERVICE_UNAVAILABLE", "Service unavailable"),
    errors.TimedOut: ("TIMEOUT", "Timed out"),
}


def render_error(error: VectordError, failed: Words = INTERNAL) -> Rendered:
    """failed: what the source says on the route where a model failed at its work."""
    code, beginning = failed if isinstance(error, InferenceFailed) else row_of(_WORDS, error)
    shown = {"error": f"{beginning}: {error.message}", "code": code}
    return Rendered(body=dump_json(shown), status=row_of(ERRORS, error), headers=headers_of(error))
