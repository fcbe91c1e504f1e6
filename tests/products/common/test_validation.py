"""Faults of a body as FastAPI's clients read them."""

from __future__ import annotations

import pytest

from vectord import errors
from vectord.errors import (
    InvalidField,
    InvalidRequest,
    MalformedBody,
    MissingField,
    ModelNotFound,
    TooManyInputs,
    WrongType,
)
from vectord.products.common.errors import FASTAPI, STATUSES, faults


@pytest.mark.parametrize(
    ("error", "kind", "place"),
    [
        pytest.param(MalformedBody("Cut off."), "json_invalid", ["body"], id="no JSON"),
        pytest.param(MissingField("{field} is required.", field="input"), "missing", ["body", "input"], id="missing"),
        pytest.param(
            WrongType("`input` must be a string.", field="input"), "value_error", ["body", "input"], id="type"
        ),
        pytest.param(InvalidField("Bad.", field="input", index=0), "value_error", ["body", "input", 0], id="the first"),
        pytest.param(InvalidField("Bad.", field="a.b", index=2), "value_error", ["body", "a", "b", 2], id="within"),
        pytest.param(TooManyInputs("Many."), "value_error", ["body"], id="no field"),
    ],
)
def test_a_fault_has_its_type_and_place(error: InvalidRequest, kind: str, place: list[str | int]) -> None:
    """A path is a list there; the message is ours, and what was sent is not shown back."""
    assert faults(error) == [{"type": kind, "loc": place, "msg": error.message, "input": None}]


def test_every_fault_of_a_body_is_422() -> None:
    """And nothing else is: what stands in headers or paths, is not allowed, or is ours keeps its status."""
    not_the_bodys = {errors.UnsupportedMediaType, errors.NotAcceptable, errors.PayloadTooLarge}
    for kind, status in STATUSES.items():
        if issubclass(kind, InvalidRequest) and kind not in not_the_bodys:
            assert FASTAPI[kind] == 422, kind
        elif kind is not ModelNotFound:
            assert FASTAPI[kind] == status, kind


def test_a_model_that_is_not_served_is_no_missing_path() -> None:
    """The clients take a 404 for a wrong address."""
    assert FASTAPI[ModelNotFound] == 400
