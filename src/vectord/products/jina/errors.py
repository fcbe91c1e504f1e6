"""How Jina says what went wrong. It stands on FastAPI: 422 for every fault of a body, with a string for `detail`."""

from __future__ import annotations

from vectord.errors import VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import FASTAPI, headers_of, row_of
from vectord.products.common.vectors import dump_json

ERRORS = FASTAPI


def render_error(error: VectordError) -> Rendered:
    body = dump_json({"detail": error.message})
    return Rendered(body=body, status=row_of(ERRORS, error), headers=headers_of(error))
