"""The header Server-Timing: where the time of an answer went, in milliseconds, as browsers' tools show it.

`parse` and `render` are the dialect's, `tokenize` making tokens, `queue` the wait for the first forward, `inference`
from there to the end of the last one. Called by handler.py for every answer that the engine gave.
"""

from __future__ import annotations

from vectord.observability.exchange import Steps
from vectord.schema import Timings

HEADER = "server-timing"


def server_timing(steps: Steps, timings: Timings | None) -> str:
    """timings: None for an answer that no model had to do with, such as a list of them."""
    parse = f"parse;dur={steps.parse_s * 1000:.3f}"
    render = f"render;dur={steps.render_s * 1000:.3f}"
    if timings is None:
        return f"{parse}, {render}"
    return (
        f"{parse}, tokenize;dur={timings.tokenizing_s * 1000:.3f}, queue;dur={timings.waiting_s * 1000:.3f}, "
        f"inference;dur={timings.computing_s * 1000:.3f}, {render}"
    )
