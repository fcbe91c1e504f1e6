"""How Jina says what went wrong. It stands on FastAPI: 422 for every fault of a body, with a string for `detail`."""

from __future__ import annotations

from vectord.errors import VectordError
from vectord.products.common import validation
from vectord.products.common.failures import headers_of, row_of
from vectord.products.common.rendered import Rendered
from vectord.products.common.vectors import dump_json

ERRORS = validation.ERRORS


def render_error(error: VectordError) -> Rendered:
    body = dump_json({"detail": error.message})
    return Rendered(body=body, status=row_of(ERRORS, error), headers=headers_of(error))
