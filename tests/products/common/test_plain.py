"""An error on a path that belongs to nobody yet: whatever key a client reads holds the message."""

from __future__ import annotations

import json

import pytest

from vectord import errors
from vectord.errors import InvalidField, NoSuchRoute, Overloaded, PayloadTooLarge, Unauthorized, VectordError
from vectord.products.common.errors import STATUSES, TEI_ERROR_TYPES, UNPROCESSABLE, render_any


@pytest.mark.parametrize("kind", UNPROCESSABLE, ids=lambda kind: kind.__name__)
def test_the_message_stands_under_every_key(kind: type[VectordError]) -> None:
    """FastAPI's `detail`, TEI's `error` and Cohere's `message`; the status is the table's."""
    own: dict[str, object] = {"retry_after_s": 1} if issubclass(kind, Overloaded) else {}
    if kind is errors.MethodNotAllowed:
        own = {"allowed": ("GET",)}
    rendered = render_any(kind("Not so.", **own))  # type: ignore[arg-type]
    shown = json.loads(rendered.body)
    assert {shown[key] for key in ("detail", "error", "message")} == {"Not so."}
    assert shown["error_type"] in TEI_ERROR_TYPES.values()
    assert rendered.status == UNPROCESSABLE[kind]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidField("No."), 422, "Validation"),
        (errors.EmptyInput("No."), 400, "Empty"),
        (PayloadTooLarge("No."), 413, "Validation"),
        (NoSuchRoute("No."), 404, "Validation"),
        (Overloaded("No.", retry_after_s=1), 429, "Overloaded"),
        (errors.OutOfMemory("No."), 500, "Backend"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_kinds_are_teis(error: VectordError, status: int, kind: str) -> None:
    """Since most paths outside /v1 are."""
    rendered = render_any(error)
    assert (rendered.status, json.loads(rendered.body)["error_type"]) == (status, kind)


def test_headers_come_with_it() -> None:
    """A client that is to wait, or to bring a key, learns so here too."""
    assert render_any(Overloaded("Later.", retry_after_s=2)).headers == {"retry-after": "2"}
    assert render_any(Unauthorized("No.")).headers == {"www-authenticate": "Bearer"}


def test_the_table_is_whole() -> None:
    """A status for every error that a client can meet."""
    assert set(UNPROCESSABLE) == set(STATUSES)
