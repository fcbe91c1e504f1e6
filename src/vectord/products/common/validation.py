"""What FastAPI answers to a body of the wrong shape: a list of faults, each with its place.

Smart Embedder, Simple Inference Server and infinity are built on it. Their clients are generated from its own
description, and read `detail[].loc`, `msg` and `type`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from vectord.errors import EmptyInput, InvalidRequest, MalformedBody, ModelNotFound
from vectord.products.common.failures import UNPROCESSABLE, Statuses

# 422 for every fault of a body, one that cannot be read too; a model that is not served is no missing path.
ERRORS: Statuses = MappingProxyType({**UNPROCESSABLE, MalformedBody: 422, EmptyInput: 422, ModelNotFound: 400})


def faults(error: InvalidRequest) -> list[dict[str, Any]]:
    """One fault: ours stop at the first. `input`, where FastAPI repeats what was sent, is null."""
    return [{"type": _type(error), "loc": _place(error), "msg": error.message, "input": None}]


def _type(error: InvalidRequest) -> str:
    if isinstance(error, MalformedBody):
        return "json_invalid"
    return "missing" if error.message.endswith("is required.") else "value_error"


def _place(error: InvalidRequest) -> list[str | int]:
    place: list[str | int] = ["body", *(error.field.split(".") if error.field else ())]
    if error.index is not None:
        place.append(error.index)
    return place
