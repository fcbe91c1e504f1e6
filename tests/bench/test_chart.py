from __future__ import annotations

from xml.etree import ElementTree

from bench import chart

NAMES = {"svg": "http://www.w3.org/2000/svg"}
CONDITIONS = {"processor": "a processor, 2 cores", "commit": "abc"}


def a_round(requests: int, p50_ms: float, p99_ms: float) -> dict[str, float]:
    return {"requests": requests, "tokens": 10 * requests, "elapsed_s": 2.0, "p50_ms": p50_ms, "p99_ms": p99_ms}


BENCH = {
    "conditions": CONDITIONS,
    "rounds": {
        "http 8 x 1": [a_round(100, 90, 99), a_round(160, 40, 80)],
        "http 1 x 1": [a_round(40, 10, 20)],
        "http 8 x 16": [a_round(20, 400, 800)],
        "in process": [{"tokens": 9, "elapsed_s": 1.0}],
    },
}
PEERS = {
    "conditions": CONDITIONS,
    "rows": [
        {"what": "a < b, torch, 8 connections x 1 text", "value": "2.50 x"},
        {"what": "a < b, torch, calls of 1 text", "value": "0.50 x"},
        {"what": "a < b, torch, agreement with vectord", "value": "1.00000"},
    ],
}


def test_the_best_round_of_each_number_of_connections_is_a_point() -> None:
    assert chart.loads(BENCH) == [chart.Loaded(1, 20.0, 10, 20), chart.Loaded(8, 80.0, 40, 80)]


def test_the_picture_shows_latencies_bars_and_the_commit_of_each() -> None:
    drawn = chart.draw(chart.loads(BENCH), chart.ratios(PEERS), {"bench": BENCH, "peers": PEERS})
    root = ElementTree.fromstring(drawn)
    words = [text.text for text in root.iterfind(".//svg:text", NAMES)]
    assert {"8 connections x 1 text", "2.50", "calls of 1 text", "0.50", "p99, 8 connections", "80"} <= set(words)
    assert words.count("a < b, torch") == 1
    assert words.count("2 cores, commit abc") == 2
    lines = [line.get("points", "").split() for line in root.iterfind(".//svg:polyline", NAMES)]
    assert [len(line) for line in lines] == [2, 2]
    bars = [(bar.get("class"), float(bar.get("width", ""))) for bar in root.iterfind(".//svg:rect", NAMES)]
    assert bars == [("faster", chart.BAR_WIDTH), ("slower", chart.BAR_WIDTH / 5)]


def test_without_peers_the_picture_has_latencies_only() -> None:
    drawn = chart.draw(chart.loads(BENCH), {}, {"bench": BENCH})
    assert "<rect" not in drawn
    assert 'class="p50"' in drawn
