"""Who calls, and until when the answer is wanted."""

from __future__ import annotations

import time

import pytest

from vectord.errors import InvalidField
from vectord.server.admission.caller import ENVOY_TIMEOUT_MS, TIMEOUT_MS, caller_of


@pytest.mark.parametrize("header", [TIMEOUT_MS, ENVOY_TIMEOUT_MS])
def test_a_timeout_is_a_deadline(header: str) -> None:
    """Ours, or the one that Envoy adds; from when the request came."""
    before_s = time.monotonic()
    deadline_s = caller_of({header: "1500"}, "10.0.0.1").deadline_s
    assert deadline_s is not None
    assert before_s + 1.5 <= deadline_s <= time.monotonic() + 1.5


def test_the_callers_own_word_outranks_the_proxys() -> None:
    """The proxy knows what it would wait, the caller what is of use."""
    deadline_s = caller_of({TIMEOUT_MS: "1000", ENVOY_TIMEOUT_MS: "15000"}, "").deadline_s
    assert deadline_s is not None
    assert deadline_s <= time.monotonic() + 1


def test_nobody_says_is_no_deadline() -> None:
    """The server may have one of its own (request_timeout_s)."""
    assert caller_of({}, "").deadline_s is None


@pytest.mark.parametrize("text", ["", "-1", "1.5", "soon", "1e3", "9" * 10, "\u0663"])
def test_a_timeout_that_is_none_is_refused_by_name(text: str) -> None:
    """Without the value."""
    with pytest.raises(InvalidField) as caught:
        caller_of({TIMEOUT_MS: text}, "")
    assert caught.value.field == TIMEOUT_MS
