"""docs/performance.svg: latency against load, and vectord next to its peers.

`make bench` and `make bench-peers` keep their reports in bench/results/ and draw the picture of what is there. Its
colours fit light and dark pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from bench.child import REPOSITORY

RESULTS = REPOSITORY / "bench/results"
PICTURE = REPOSITORY / "docs/performance.svg"

WIDTH, HEIGHT = 860, 360
PLOT = (60, 50, 340, 240)  # of the latencies: left, top, width, height
BARS_LEFT, BAR_LEFT, BAR_WIDTH, BAR_STEP = 450, 690, 110, 22  # of the names, and of the bars
TICKS = 4
STYLE = (
    "text{font:12px sans-serif;fill:#333}.axis{stroke:#999;fill:none}.p50{stroke:#3f51b5;fill:none;stroke-width:2}"
    ".p99{stroke:#e67e22;fill:none;stroke-width:2}.bar{fill:#3f51b5}.title{font-weight:bold;font-size:14px}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.p50{stroke:#8c9eff}.bar{fill:#8c9eff}}"
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The best round with this many connections of one text each."""

    connections: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float


def keep(name: str, report: Mapping[str, Any]) -> None:
    """Keep a report, as `report.plain` writes it, as bench/results/NAME.json, and draw all that are kept."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    kept = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    PICTURE.write_text(draw(loads(kept.get("bench", {})), ratios(kept.get("peers", {})), kept))


def loads(report: Mapping[str, Any]) -> list[Loaded]:
    """The measurements `http CONNECTIONS x 1` of `make bench`, fewest connections first."""
    found = []
    for name, rounds in report.get("rounds", {}).items():
        words = name.split()
        if words[0] != "http" or words[-1] != "1":
            continue
        best = max(rounds, key=lambda one: one["requests"] / one["elapsed_s"])
        rate = best["requests"] / best["elapsed_s"]
        found.append(Loaded(int(words[1]), rate, best["p50_ms"], best["p99_ms"]))
    return sorted(found, key=lambda one: one.connections)


def ratios(report: Mapping[str, Any]) -> dict[str, float]:
    """vectord's tokens per second divided by each peer's, by peer and load: the best rounds of both."""
    found = {}
    for name, rounds in report.get("rounds", {}).items():
        ours, theirs = (
            max(pair[side]["tokens"] / pair[side]["elapsed_s"] for pair in rounds) for side in ("vectord", "peer")
        )
        found[name] = ours / theirs
    return found


def draw(points: Sequence[Loaded], peers: Mapping[str, float], kept: Mapping[str, Any]) -> str:
    """Return the SVG. kept: the reports, whose machine and commit stand below their half."""
    height = max(HEIGHT, 90 + BAR_STEP * len(peers))
    parts = [*(_latencies(points) if points else ()), *(_bars(peers) if peers else ())]
    for name, left in (("bench", PLOT[0]), ("peers", BARS_LEFT)):
        if name in kept:
            conditions = kept[name]["conditions"]
            about = f"{conditions['processor']}, commit {conditions['commit']}"
            parts.append(_text(left, height - 10, about[:70]))
    width = WIDTH if peers else BARS_LEFT
    label = "Latency against load, and other servers and libraries"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
    return f"{head}<style>{STYLE}</style>{''.join(parts)}</svg>\n"


def _latencies(points: Sequence[Loaded]) -> Iterator[str]:
    left, top, width, height = PLOT
    most_rate, most_ms = max(one.requests_per_s for one in points), max(one.p99_ms for one in points)

    def place(rate: float, ms: float) -> tuple[float, float]:
        return left + width * rate / most_rate, top + height * (1 - ms / most_ms)

    yield _text(left, 24, "One text per request: latency against load", "title")
    yield f'<path class="axis" d="M{left} {top}V{top + height}H{left + width}"/>'
    for step in range(TICKS + 1):
        x, y = place(most_rate * step / TICKS, most_ms * step / TICKS)
        yield _text(left - 6, y + 4, f"{most_ms * step / TICKS:,.0f}", anchor="end")
        yield _text(x, top + height + 16, f"{most_rate * step / TICKS:,.0f}", anchor="middle")
    yield _text(left, top - 8, "ms")
    yield _text(left + width, top + height + 32, "requests/s", anchor="end")
    for kind in ("p50", "p99"):
        line = [place(one.requests_per_s, getattr(one, f"{kind}_ms")) for one in points]
        yield f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in line)}"/>'
        x, y = line[-1]
        yield _text(x, y - 6, f"{kind}, {points[-1].connections} connections", anchor="end")


def _bars(peers: Mapping[str, float]) -> Iterator[str]:
    most = max(peers.values())
    yield _text(BARS_LEFT, 24, "vectord's tokens/s divided by the peer's", "title")
    for row, (name, ratio) in enumerate(sorted(peers.items(), key=lambda one: -one[1])):
        y = 44 + BAR_STEP * row
        width = BAR_WIDTH * ratio / most
        yield _text(BAR_LEFT - 6, y + 12, name, anchor="end", size=11)
        yield f'<rect class="bar" x="{BAR_LEFT}" y="{y}" width="{width:.1f}" height="{BAR_STEP - 6}"/>'
        yield _text(BAR_LEFT + width + 4, y + 12, f"{ratio:.2f}")


def _text(x: float, y: float, words: str, kind: str = "", *, anchor: str = "start", size: int | None = None) -> str:
    styled = f' class="{kind}"' if kind else f' style="font-size:{size}px"' if size else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{styled}>{escape(words)}</text>'
