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

WIDTH, HEIGHT = 980, 360
PLOT = (60, 50, 320, 240)  # of the latencies: left, top, width, height
PEERS_LEFT, LOADS_RIGHT, BARS_LEFT, BAR_WIDTH, BAR_STEP = 430, 788, 796, 130, 22
TICKS = 4
STYLE = (
    "text{font:12px sans-serif;fill:#333}.axis{stroke:#999;fill:none}.p50{stroke:#3f51b5;fill:none;stroke-width:2}"
    ".p99{stroke:#e67e22;fill:none;stroke-width:2}.faster{fill:#3f51b5}.slower{fill:#e67e22}"
    ".title{font-weight:bold;font-size:14px}.small{font-size:11px}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.p50{stroke:#8c9eff}.faster{fill:#8c9eff}}"
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
    """vectord's tokens per second divided by each peer's, by `PEER, LOAD`: what the report's rows say."""
    values = {row["what"]: row["value"].split() for row in report.get("rows", ())}
    return {what: float(value[0]) for what, value in values.items() if value[1:] == ["x"]}


def draw(points: Sequence[Loaded], peers: Mapping[str, float], kept: Mapping[str, Any]) -> str:
    """Return the SVG. kept: the reports, whose machine and commit stand below their half."""
    height = max(HEIGHT, 100 + BAR_STEP * len(peers))
    parts = [*(_latencies(points) if points else ()), *(_bars(peers) if peers else ())]
    for name, left in (("bench", PLOT[0]), ("peers", PEERS_LEFT)):
        if name in kept:
            conditions = kept[name]["conditions"]
            processor, _, instructions = conditions["processor"].rpartition(", ")
            parts.append(_text(left, height - 24, processor, "small"))
            parts.append(_text(left, height - 8, f"{instructions}, commit {conditions['commit']}", "small"))
    width = WIDTH if peers else PEERS_LEFT
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
    scale = BAR_WIDTH / max(peers.values())
    yield _text(PEERS_LEFT, 24, "vectord's tokens/s divided by the peer's", "title")
    shown = ""
    for row, (name, ratio) in enumerate(peers.items()):
        peer, _, load = name.rpartition(", ")
        y = 40 + BAR_STEP * row
        if peer != shown:
            yield _text(PEERS_LEFT, y + 12, peer)
        shown = peer
        kind = "faster" if ratio >= 1 else "slower"
        yield _text(LOADS_RIGHT, y + 12, load, "small", anchor="end")
        yield f'<rect class="{kind}" x="{BARS_LEFT}" y="{y}" width="{scale * ratio:.1f}" height="{BAR_STEP - 6}"/>'
        yield _text(BARS_LEFT + scale * ratio + 4, y + 12, f"{ratio:.2f}")
    equal = BARS_LEFT + scale
    yield f'<path class="axis" d="M{equal:.1f} 36V{40 + BAR_STEP * len(peers)}"/>'


def _text(x: float, y: float, words: str, kind: str = "", *, anchor: str = "start") -> str:
    styled = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{styled}>{escape(words)}</text>'
