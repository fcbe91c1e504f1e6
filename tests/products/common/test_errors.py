"""Statuses, headers and shared bodies of errors."""

from __future__ import annotations

import json

import pytest

from vectord import errors
from vectord.errors import (
    InvalidField,
    InvalidRequest,
    MalformedBody,
    MethodNotAllowed,
    MissingField,
    ModelNotFound,
    Overloaded,
    PayloadTooLarge,
    ShuttingDown,
    Unauthorized,
    VectordError,
    WrongType,
)
from vectord.products.common.errors import (
    FASTAPI,
    MAX_RETRY_AFTER_S,
    STATUSES,
    UNPROCESSABLE,
    faults,
    headers_of,
    render_any,
    retry_after_s,
    row_of,
)


@pytest.mark.parametrize(
    ("table", "status"),
    [
        ({VectordError: 500, InvalidField: 400}, 400),
        ({VectordError: 500, InvalidRequest: 401, InvalidField: 402}, 402),
        ({VectordError: 500, InvalidRequest: 401}, 401),
        ({VectordError: 500, WrongType: 400}, 500),
    ],
    ids=["own", "nearest", "ancestor", "not a subclass"],
)
def test_a_row_is_that_of_the_class_or_of_its_nearest_ancestor(table, status) -> None:
    """A subclass's row is never used."""
    assert row_of(table, InvalidField("No.")) == status


@pytest.mark.parametrize(
    ("seconds", "wait_s", "header"),
    [(0.0, 0.001, "1"), (-3.0, 0.001, "1"), (0.2, 0.2, "1"), (1.0, 1.0, "1"), (1.01, 1.01, "2"), (9e9, 120, "120")],
)
def test_a_wait_is_bounded_and_rounded_up_to_seconds(seconds, wait_s, header) -> None:
    """A wait of 0 would cause an immediate retry, and clients do not retry after a long one."""
    error = Overloaded("Later.", retry_after_s=seconds)
    assert retry_after_s(error) == wait_s <= MAX_RETRY_AFTER_S
    assert headers_of(error) == {"retry-after": header}


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (ShuttingDown(), {"retry-after": "1"}),
        (MethodNotAllowed("No.", allowed=("GET", "HEAD")), {"allow": "GET, HEAD"}),
        (Unauthorized("No."), {"www-authenticate": "Bearer"}),
        (errors.NoSuchRoute("No."), {}),
        (InvalidField("No."), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_has_the_headers_that_http_requires(error, headers) -> None:
    """RFC 9110: Allow with 405, WWW-Authenticate with 401, Retry-After if a retry helps."""
    assert headers_of(error) == headers


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [
        (InvalidRequest, (400, 422, 422)),
        (MissingField, (400, 422, 422)),
        (errors.TooManyCharacters, (400, 422, 422)),
        (MalformedBody, (400, 400, 422)),
        (errors.EmptyInput, (400, 400, 422)),
        (errors.MalformedHead, (400, 400, 400)),
        (PayloadTooLarge, (413, 413, 413)),
        (ModelNotFound, (404, 404, 400)),
        (errors.ModelCannot, (400, 400, 400)),
        (errors.UploadTooSlow, (408, 408, 408)),
        (errors.OutOfMemory, (500, 500, 500)),
    ],
)
def test_a_table_has_the_status_of_its_products(kind, statuses) -> None:
    """TEI has 422 for a readable body, and 400 for an empty input. FastAPI has 422 for every fault of a body; 404 would
    mean a wrong path there."""
    assert tuple(row_of(table, kind("No.")) for table in (STATUSES, UNPROCESSABLE, FASTAPI)) == statuses


# --- FastAPI's list of faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "place"),
    [
        pytest.param(MalformedBody("Cut off."), "json_invalid", ["body"], id="not JSON"),
        pytest.param(MissingField("{field} is required.", field="input"), "missing", ["body", "input"], id="missing"),
        pytest.param(WrongType("Bad.", field="input"), "value_error", ["body", "input"], id="type"),
        pytest.param(InvalidField("Bad.", field="a.b", index=2), "value_error", ["body", "a", "b", 2], id="nested"),
        pytest.param(InvalidRequest("Bad."), "value_error", ["body"], id="no field"),
    ],
)
def test_a_fault_has_its_type_and_place(error: InvalidRequest, kind: str, place: list[str | int]) -> None:
    """The place is a list, and the client's value is not repeated."""
    assert faults(error) == [{"type": kind, "loc": place, "msg": error.message, "input": None}]


def test_a_fault_has_the_products_field() -> None:
    """Names are applied to the place, too."""
    (fault,) = faults(InvalidField("{field} is wrong", field="inputs", index=0).named({"inputs": "input"}))
    assert (fault["loc"], fault["msg"]) == (["body", "input", 0], "`input[0]` is wrong")


# --- errors before a product is selected ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidField("No."), 422, "Validation"),
        (errors.EmptyInput("No."), 400, "Empty"),
        (PayloadTooLarge("No."), 413, "Validation"),
        (errors.NoSuchRoute("No."), 404, "Validation"),
        (Overloaded("No.", retry_after_s=2), 429, "Overloaded"),
        (errors.OutOfMemory("No."), 500, "Backend"),
        (Unauthorized("No."), 401, "Unauthorized"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_message_is_under_the_key_of_every_product(error: VectordError, status: int, kind: str) -> None:
    """FastAPI's `detail`, TEI's `error` and Cohere's `message`. Status and type are TEI's."""
    rendered = render_any(error)
    assert json.loads(rendered.body) == {"detail": "No.", "error": "No.", "error_type": kind, "message": "No."}
    assert (rendered.status, rendered.headers) == (status, headers_of(error))
