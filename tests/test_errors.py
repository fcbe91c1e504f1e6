"""Errors are values too: they are copied for each request they meet, and may cross to another process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from copy import copy, deepcopy

import pytest

from vectord import errors
from vectord.errors import InvalidField, MethodNotAllowed, Overloaded, ShuttingDown, Unavailable, VectordError

WAITS = (Overloaded, *Overloaded.__subclasses__())


def made() -> Iterator[VectordError]:
    """One of every class, each with what only it has."""
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
@pytest.mark.parametrize("error", list(made()), ids=lambda error: type(error).__name__)
def test_a_copy_is_the_same_error(error: VectordError, again: Callable[[VectordError], VectordError]) -> None:
    """Its class, its message and all that its class has beside them."""
    error.part = 2
    other = again(error)
    assert type(other) is type(error)
    assert (str(other), other.message, vars(other)) == (str(error), error.message, vars(error))


def test_a_copys_message_is_its_own() -> None:
    """And is what str() says of it, as a log does."""
    error = Overloaded("Later.", retry_after_s=1)
    other = copy(error)
    other.message = "Much later."
    assert (str(other), other.message) == ("Much later.", "Much later.")
    assert (str(error), error.message) == ("Later.", "Later.")
