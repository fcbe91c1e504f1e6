"""Time from exec to the first response, and memory before any load."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.server_process import Server

SETTLE_S = 5.0  # the last memory of the start is freed


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    first_answer_s: float
    settled_bytes: int  # resident, SETTLE_S after the first response
    most_bytes: int  # the peak until then


def measure_starts(start: Callable[[], Server], count: int) -> list[Start]:
    """`count` starts, one after the other, after an uncounted one that fills the page cache."""
    with start() as server:
        server.wait_until_answering()
    return [_measure(start) for _ in range(count)]


def _measure(start: Callable[[], Server]) -> Start:
    with start() as server:
        first_answer_s = server.wait_until_answering()
        sizes = []
        until = time.perf_counter() + SETTLE_S
        while time.perf_counter() < until:
            sizes.append(server.resident_bytes())
            time.sleep(0.05)
        return Start(first_answer_s=first_answer_s, settled_bytes=sizes[-1], most_bytes=max(sizes))
