"""How Voyage says what went wrong. Its SDK takes 422 for a body it cannot read and 400 for any other fault of one."""

from __future__ import annotations

from collections.abc import Mapping

from vectord import errors
from vectord.errors import VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import STATUSES, headers_of, row_of
from vectord.products.common.vectors import dump_json

ERRORS: Mapping[type[VectordError], int] = {
    **STATUSES,
    errors.MalformedBody: 422,
    errors.WrongType: 422,
    errors.MissingField: 422,
    errors.EmptyInput: 422,
    errors.ModelNotFound: 400,
}


def render_error(error: VectordError) -> Rendered:
    body = dump_json({"detail": error.message})
    return Rendered(body=body, status=row_of(ERRORS, error), headers=headers_of(error))
