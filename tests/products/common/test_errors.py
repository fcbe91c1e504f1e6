"""Statuses, headers and shared bodies of errors."""

from __future__ import annotations

import json

import pytest

from vectord import errors
from vectord.errors import (
    InvalidField,
    Overloaded,
    PayloadTooLarge,
    Unauthorized,
    VectordError,
)
from vectord.products.common.errors import (
    MAX_RETRY_AFTER_S,
    headers_of,
    render_any,
    retry_after_s,
)


@pytest.mark.parametrize(
    ("seconds", "wait_s", "header"),
    [(0.0, 0.001, "1"), (-3.0, 0.001, "1"), (0.2, 0.2, "1"), (1.0, 1.0, "1"), (1.01, 1.01, "2"), (9e9, 120, "120")],
)
def test_a_wait_is_bounded_and_rounded_up_to_seconds(seconds, wait_s, header) -> None:
    """A wait of 0 would cause an immediate retry, and clients do not retry after a long one."""
    error = Overloaded("Later.", retry_after_s=seconds)
    assert retry_after_s(error) == wait_s <= MAX_RETRY_AFTER_S
    assert headers_of(error) == {"retry-after": header}


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
