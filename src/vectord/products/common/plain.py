"""How an error reads that came before any dialect was chosen, on a path outside /v1: every shape's keys at once."""

from __future__ import annotations

from collections.abc import Mapping

from vectord import errors
from vectord.errors import VectordError
from vectord.products.common.failures import UNPROCESSABLE, headers_of, row_of
from vectord.products.common.rendered import Rendered
from vectord.products.common.vectors import dump_json

# TEI's words for what went wrong and its statuses, since most paths outside /v1 are TEI's.
KINDS: Mapping[type[VectordError], str] = {
    errors.VectordError: "Backend",
    errors.InvalidRequest: "Validation",
    errors.EmptyInput: "Empty",
    errors.Untokenizable: "Tokenizer",
    errors.ModelNotFound: "Validation",
    errors.FingerprintMismatch: "Validation",
    errors.Unauthorized: "Unauthorized",  # TEI has no word, and no body, for these two
    errors.Forbidden: "Forbidden",
    errors.NoSuchRoute: "Validation",
    errors.Overloaded: "Overloaded",
    errors.Unavailable: "Unhealthy",
}
ERRORS = UNPROCESSABLE


def render_error(error: VectordError) -> Rendered:
    """`detail`, `error` and `message` all hold the message: whichever key the client reads, it is there."""
    message = error.message
    shown = {"detail": message, "error": message, "error_type": row_of(KINDS, error), "message": message}
    return Rendered(body=dump_json(shown), status=row_of(ERRORS, error), headers=headers_of(error))
