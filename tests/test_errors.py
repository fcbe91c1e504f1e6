"""Errors are data: a template and a place. They can be copied, and sent to another process."""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from pathlib import Path

import pytest

from vectord import errors
from vectord.errors import InvalidField, MethodNotAllowed, Overloaded, ShuttingDown, Unavailable, VectordError

WAITS = (Overloaded, *Overloaded.__subclasses__())


def made() -> Iterator[VectordError]:
    """One of every class, with the attributes of its own."""
    own = {
        MethodNotAllowed: MethodNotAllowed("Not so.", allowed=("GET", "HEAD")),
        Unavailable: Unavailable("Soon.", retry_after_s=3.5),
        ShuttingDown: ShuttingDown(),
        InvalidField: InvalidField("`a` is 9.", field="a", index=3, limit=8, given=9),
    }
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, VectordError):
            yield own.get(kind) or (kind("Later.", retry_after_s=2.5) if kind in WAITS else kind("No.", field="a"))


def unpickled(error: VectordError) -> VectordError:
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, VectordError)
    return again


@pytest.mark.parametrize("again", [copy, deepcopy, unpickled], ids=["copy", "deepcopy", "pickle"])
def test_a_copy_is_the_same_error(again: Callable[[VectordError], VectordError]) -> None:
    """With its class, its message and its attributes."""
    for error in list(made()):
        error.part = 2
        other = again(error)
        assert type(other) is type(error), error
        assert (str(other), other.message, vars(other)) == (str(error), error.message, vars(error)), error


# --- messages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "index", "place"),
    [("inputs", 3, "`inputs[3]`"), ("inputs", None, "`inputs`"), (None, 3, "input 3"), (None, None, "the input")],
)
def test_a_message_names_the_place_at_fault(field: str | None, index: int | None, place: str) -> None:
    """The field, the index, or both."""
    assert InvalidField("{field} is wrong.", field=field, index=index).message == f"{place} is wrong."


def test_a_message_has_the_numbers_and_the_values() -> None:
    """A placeholder without a value stays, and so does a template without placeholders."""
    error = InvalidField("{field}: {given} {unit} of {limit}, {other}.", field="a", limit=8, given=9, unit="tokens")
    assert error.message == str(error) == "`a`: 9 tokens of 8, {other}."
    assert InvalidField("`inputs` is wrong.").named({"inputs": "input"}).message == "`inputs` is wrong."


def test_a_named_error_uses_the_fields_of_the_product() -> None:
    """For the field at fault, and for other fields that the message mentions. The original is unchanged."""
    error = InvalidField("{field} conflicts with {body.chunk.max_tokens}.", field="inputs", index=1)
    named = error.named({"inputs": "input", "chunk.max_tokens": "chunk_size"})
    assert (named.field_name, named.message) == ("input", "`input[1]` conflicts with `chunk_size`.")
    assert (error.field_name, error.message) == ("inputs", "`inputs[1]` conflicts with `chunk.max_tokens`.")


def test_an_error_is_placed_in_a_copy() -> None:
    """Parts of the place that are not given stay, and so does the cause."""
    error = InvalidField("{field} is wrong.", index=3)
    error.__cause__ = ValueError("cause")
    placed = error.at(field="inputs", part=1)
    assert (placed.message, placed.index, placed.part) == ("`inputs[3]` is wrong.", 3, 1)
    assert placed.__cause__ is error.__cause__
    assert (error.field, error.part) == (None, None)


def test_an_error_of_a_start_is_one_line() -> None:
    """A value of a model's file may contain any character; a log line and a terminal get none that controls them."""
    assert str(errors.ModelUnavailable("x.json: pooling_mode a\n\x1b[2Jb é is not supported")) == (
        "x.json: pooling_mode a\\n\\x1b[2Jb é is not supported"
    )


# --- words for messages ---------------------------------------------------------------------------------------


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (raised_from(RuntimeError("of a library"), socket.gaierror(-2, "Name not known")), "Name not known"),
        (raised_from(RuntimeError("of a library"), TimeoutError()), "timeout"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "not UTF-8"),
        (KeyError("x"), "unexpected error"),
    ],
    ids=str,
)
def test_a_reason_has_no_class_name(error: Exception, reason: str) -> None:
    """The system's words for the first cause that has them."""
    assert errors.plain_reason(error) == reason


def test_an_extra_is_installed_from_where_vectord_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a checkout; without one, pip finds the installed vectord. The interpreter is the one that runs."""
    checkout = Path(__file__).parents[1]
    assert errors.installing("grpc") == f"{sys.executable} -m pip install -e '{checkout}[grpc]'"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages" / "vectord" / "errors.py"))
    assert errors.installing("grpc") == f"{sys.executable} -m pip install 'vectord[grpc]'"
