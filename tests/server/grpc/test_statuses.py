"""The status of every error."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc")

from grpc import StatusCode

from vectord import errors
from vectord.errors import Overloaded, Unavailable
from vectord.products.common.errors import row_of
from vectord.products.tei.errors import ERRORS
from vectord.server.grpc.call import CODES, code_of, trailers_of


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Unavailable("x"), StatusCode.UNAVAILABLE),
        (errors.InferenceFailed("x"), StatusCode.FAILED_PRECONDITION),
        (errors.OutOfMemory("x"), StatusCode.FAILED_PRECONDITION),
        (errors.ModelCannot("x"), StatusCode.FAILED_PRECONDITION),
        (errors.Overloaded("x", retry_after_s=1), StatusCode.RESOURCE_EXHAUSTED),
        (errors.Untokenizable("x"), StatusCode.INVALID_ARGUMENT),
        (errors.InvalidField("x"), StatusCode.INVALID_ARGUMENT),
        (errors.InputTooLong("x"), StatusCode.INVALID_ARGUMENT),
        (errors.EmptyInput("x"), StatusCode.INVALID_ARGUMENT),
        (errors.PayloadTooLarge("x"), StatusCode.INVALID_ARGUMENT),
        (errors.Unauthorized("x"), StatusCode.UNAUTHENTICATED),
        (errors.VectordError("x"), StatusCode.INTERNAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_errors_have_teis_statuses(error, code):
    """TEI's where it has one."""
    assert code_of(error) is code


def test_permanent_errors_are_not_retried():
    """Clients retry UNAVAILABLE and RESOURCE_EXHAUSTED."""
    passing = {StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED}
    retried = {kind for kind in ERRORS if row_of(CODES, kind.__new__(kind)) in passing}
    assert retried == {kind for kind in ERRORS if issubclass(kind, Overloaded | Unavailable)}


def test_the_wait_is_in_grpcs_form():
    """Whole milliseconds, rounded up; absent if waiting does not help."""
    assert trailers_of(Overloaded("x", retry_after_s=1.2341)) == (("grpc-retry-pushback-ms", "1235"),)
    assert trailers_of(errors.EmptyInput("x")) == ()
