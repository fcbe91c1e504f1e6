"""How Cohere says what went wrong. Its SDK takes 400 for every fault of a body, so the common statuses stand."""

from __future__ import annotations

from vectord.errors import VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import STATUSES, headers_of, row_of
from vectord.products.common.vectors import dump_json

ERRORS = STATUSES


def render_error(error: VectordError) -> Rendered:
    body = dump_json({"message": error.message})
    return Rendered(body=body, status=row_of(ERRORS, error), headers=headers_of(error))
