"""Which trace a request says it belongs to."""

from __future__ import annotations

import pytest

from vectord.observability.trace_context import sampled_trace_id

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.mark.parametrize("sent", [f"00-{TRACE}-{PARENT}-01", f" 00-{TRACE}-{PARENT}-03", f"01-{TRACE}-{PARENT}-01-new"])
def test_a_trace_that_is_kept_has_a_name(sent: str) -> None:
    """Of this version of the header and, as W3C demands, of later ones."""
    assert sampled_trace_id({"traceparent": sent}) == TRACE


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{PARENT}-00",
        f"00-{'0' * 32}-{PARENT}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f'00-{TRACE[:-1]}"-{PARENT}-01',
    ],
    ids=repr,
)
def test_anything_else_has_none(sent: str) -> None:
    """Not kept, not valid, or made to break a metric's line."""
    assert sampled_trace_id({"traceparent": sent}) is None
    assert sampled_trace_id({}) is None
