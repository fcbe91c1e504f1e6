"""Deadlines in request headers."""

from __future__ import annotations

import time

import pytest

from vectord.errors import InvalidField
from vectord.server.admission.caller import ENVOY_TIMEOUT_MS, TIMEOUT_MS, caller_of


@pytest.mark.parametrize("header", [TIMEOUT_MS, ENVOY_TIMEOUT_MS])
def test_a_timeout_is_a_deadline(header: str) -> None:
    """Our header or Envoy's, counted from the arrival of the request."""
    before_s = time.monotonic()
    deadline_s = caller_of({header: "1500"}, "10.0.0.1").deadline_s
    assert deadline_s is not None
    assert before_s + 1.5 <= deadline_s <= time.monotonic() + 1.5


def test_the_callers_timeout_overrides_the_proxys() -> None:
    deadline_s = caller_of({TIMEOUT_MS: "1000", ENVOY_TIMEOUT_MS: "15000"}, "").deadline_s
    assert deadline_s is not None
    assert deadline_s <= time.monotonic() + 1


def test_without_a_timeout_there_is_no_deadline() -> None:
    """The server may have its own (request_timeout_s)."""
    assert caller_of({}, "").deadline_s is None


@pytest.mark.parametrize("text", ["", "-1", "1.5", "soon", "1e3", "9" * 10, "\u0663"])
def test_an_invalid_timeout_is_refused_by_name(text: str) -> None:
    """The error does not contain the value."""
    with pytest.raises(InvalidField) as caught:
        caller_of({TIMEOUT_MS: text}, "")
    assert caught.value.field == TIMEOUT_MS
