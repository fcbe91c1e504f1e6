"""How infinity says what went wrong: three shapes, since FastAPI answers what it refuses before infinity sees it.

infinity's own client returns the answer to a 422 as a value and drops that of any other status, so every fault of a
body is a 422, where infinity has 400 for some.
"""

from __future__ import annotations

from typing import Any

from vectord.errors import Forbidden, InvalidRequest, NoSuchRoute, Unauthorized, VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import FASTAPI, faults, headers_of, row_of
from vectord.products.common.vectors import dump_json

ERRORS = FASTAPI


def render_error(error: VectordError) -> Rendered:
    status = row_of(ERRORS, error)
    return Rendered(body=dump_json(_shown(error, status)), status=status, headers=headers_of(error))


def _shown(error: VectordError, status: int) -> dict[str, Any]:
    if isinstance(error, Unauthorized):
        return {"detail": "Unauthorized"}
    if isinstance(error, Forbidden | NoSuchRoute):
        return {"detail": error.message}
    if isinstance(error, InvalidRequest) and status == 422:
        return {"detail": faults(error)}
    return {"error": {"message": error.message, "type": None, "param": None, "code": status}}
