"""How Jina says what went wrong. It stands on FastAPI: 422 for every fault of a body, with a string for `detail`."""

from __future__ import annotations

from collections.abc import Mapping

from vectord import errors
from vectord.errors import VectordError
from vectord.wire.failures import STATUSES, headers_of, row_of
from vectord.wire.rendered import Rendered
from vectord.wire.vectors import dump_json

ERRORS: Mapping[type[VectordError], int] = {
    **STATUSES,
    **dict.fromkeys(
        (
            errors.MalformedBody,
            errors.InvalidField,
            errors.WrongType,
            errors.EmptyInput,
            errors.TooManyInputs,
            errors.InputTooLong,
            errors.TooManyCharacters,
            errors.ForeignIds,
            errors.Untokenizable,
        ),
        422,
    ),
    errors.ModelNotFound: 400,
}


def render_error(error: VectordError) -> Rendered:
    body = dump_json({"detail": error.message})
    return Rendered(body=body, status=row_of(ERRORS, error), headers=headers_of(error))
