"""What every dialect does alike with an error."""

from __future__ import annotations

import pytest

from vectord import errors
from vectord.errors import InvalidField, MethodNotAllowed, Overloaded, ShuttingDown, Unauthorized, VectordError
from vectord.products.common.errors import MAX_RETRY_AFTER_S, STATUSES, UNPROCESSABLE, headers_of, retry_after_s, row_of


def test_every_error_that_a_client_can_meet_has_a_status_of_its_own() -> None:
    """Not its ancestor's by accident: a class that is added without a row fails here."""
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, VectordError)}
    assert set(STATUSES) == {kind for kind in kinds if not issubclass(kind, errors.StartError)}


@pytest.mark.parametrize(
    ("table", "status"),
    [
        ({VectordError: 500, InvalidField: 400}, 400),
        ({VectordError: 500, errors.InvalidRequest: 401, errors.InvalidField: 402}, 402),
        ({VectordError: 500, errors.InvalidRequest: 401}, 401),
        ({VectordError: 500}, 500),
        ({VectordError: 500, errors.WrongType: 400}, 500),
    ],
    ids=["its own", "the nearest", "an ancestor's", "the root's", "never a child's"],
)
def test_the_row_is_of_the_class_or_of_its_nearest_ancestor(table, status) -> None:
    """A table says only what it has to say."""
    assert row_of(table, InvalidField("No.")) == status


@pytest.mark.parametrize(
    ("seconds", "told", "header"),
    [(0.0, 0.001, "1"), (-3.0, 0.001, "1"), (0.2, 0.2, "1"), (1.0, 1.0, "1"), (1.01, 1.01, "2"), (9e9, 120, "120")],
)
def test_a_wait_is_told_in_whole_seconds_and_within_what_clients_heed(seconds, told, header) -> None:
    """Never 0, which would have them back at once, and never so long that they give up."""
    error = Overloaded("Later.", retry_after_s=seconds)
    assert retry_after_s(error) == told <= MAX_RETRY_AFTER_S
    assert headers_of(error) == {"retry-after": header}


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (ShuttingDown(), {"retry-after": "1"}),
        (MethodNotAllowed("No.", allowed=("GET", "HEAD")), {"allow": "GET, HEAD"}),
        (Unauthorized("No."), {"www-authenticate": "Bearer"}),
        (errors.NoSuchRoute("No."), {}),
        (errors.Forbidden("No."), {}),
        (InvalidField("No."), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_headers_that_http_demands_of_an_error(error, headers) -> None:
    """RFC 9110: Allow with 405, WWW-Authenticate with 401; Retry-After where a retry helps."""
    assert headers_of(error) == headers


def test_a_body_that_can_be_read_is_unprocessable_and_one_that_cannot_is_bad() -> None:
    """TEI's statuses; an empty input is bad there, too."""
    changed = {kind for kind in STATUSES if UNPROCESSABLE[kind] != STATUSES[kind]}
    assert {UNPROCESSABLE[kind] for kind in changed} == {422}
    assert {errors.InvalidField, errors.WrongType, errors.TooManyInputs, errors.InputTooLong} <= changed
    assert changed.isdisjoint({errors.MalformedBody, errors.EmptyInput, errors.PayloadTooLarge, errors.ModelNotFound})
