"""How Jina says what went wrong. It stands on FastAPI: 422 for every fault of a body, with a string for `detail`."""

from __future__ import annotations

from vectord.errors import VectordError
from vectord.wire import validation
from vectord.wire.failures import headers_of, row_of
from vectord.wire.rendered import Rendered
from vectord.wire.vectors import dump_json

ERRORS = validation.ERRORS


def render_error(error: VectordError) -> Rendered:
    body = dump_json({"detail": error.message})
    return Rendered(body=body, status=row_of(ERRORS, error), headers=headers_of(error))
