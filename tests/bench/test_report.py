from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from bench.http_load import Round
from bench.report import Report, Row, show
from bench.soak import growth
from bench.startup import Start

from bench import peers, run


def a_round(tokens_per_s: float, latencies_ms: Sequence[float] = (1.0, 2.0, 3.0)) -> Round:
    return Round(
        requests=3,
        texts=3,
        tokens=round(tokens_per_s),
        elapsed_s=1.0,
        latencies_ms=latencies_ms,
        client_us=20.0,
    )


def a_ceiling(tokens_per_s: float) -> dict[str, float]:
    return {"tokens_per_s": tokens_per_s, "gflop_per_s": tokens_per_s / 50}


def found(**changes: Any) -> run.Found:
    """A machine of 1,000 tokens/s bf16, a backend of 800 and a server of 760."""
    rounds: dict[str, Any] = {
        "ceiling bfloat16": [a_ceiling(900.0), a_ceiling(1000.0)],
        "ceiling float32": [a_ceiling(200.0)],
        "in process": [{"tokens": 700, "elapsed_s": 1.0}, {"tokens": 1600, "elapsed_s": 2.0}],
        "32 outstanding": [{"tokens": 780, "elapsed_s": 1.0}],
        "8 outstanding": [{"tokens": 720, "elapsed_s": 1.0}, {"tokens": 100, "elapsed_s": 1.0}],
        **{f"forward 12 after {rest_ms} ms": [{"p50_ms": 1.0, "p99_ms": 2.0}] for rest_ms in run.RESTS_MS},
        **{f"forward 61 after {rest_ms} ms": [{"p50_ms": 2.0, "p99_ms": 3.0}] for rest_ms in run.RESTS_MS},
        "embedder 12": [{"p50_ms": 1.9, "p99_ms": 3.0}],
        "embedder 61": [{"p50_ms": 2.9, "p99_ms": 4.0}],
        "alone 12": [a_round(10, [9.0] * 3), a_round(10, [1.5] * 3)],
        "alone 61": [a_round(10, [2.5] * 3)],
        **{f"empty {tokens}": [{"p50_ms": 0.2, "p99_ms": 0.3}] for tokens in run.ALONE},
    }
    rounds |= {f"http {connections} x {n}": [a_round(500), a_round(760)] for connections, n in run.GRID}
    start = Start(first_answer_s=0.9, settled_bytes=200_000_000, most_bytes=350_000_000)
    facts = {"backend": "openvino", "dtype": "bfloat16", "streams": 2}
    return run.Found(rounds | changes, [start], 300_000_000, 250_000_000, facts)


def row_of(rows: Sequence[Row], what: str) -> Row:
    (row,) = [row for row in rows if what in row.what]
    return row


def test_shares_are_of_the_best_rounds() -> None:
    """Noise only slows: the best backend round is compared with the best ceiling, and the server with both."""
    rows = run.rows(found())
    assert row_of(rows, "in process, openvino bfloat16").value == "0.80 of ceiling"
    assert row_of(rows, "in process, 8 texts").value == "0.90 of in process"
    assert row_of(rows, "32 connections x 1 text").value == "0.95 of in process"
    assert row_of(rows, "one connection, one text of 12").value == "+0.30 ms more than an empty one, 1.50 x"
    assert all(row.met is not False for row in rows)


def test_a_missed_target_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A table without NO meets all targets."""
    slow = found(**{"in process": [{"tokens": 699, "elapsed_s": 1.0}]})
    row = row_of(run.rows(slow), "in process, openvino bfloat16")
    assert row.met is False
    show(Report(title="t", conditions={}, rows=[row], rounds={}), as_json=False)
    assert "at least 0.7: NO" in capsys.readouterr().out


def test_without_bfloat16_the_backend_is_compared_with_float32() -> None:
    """An older CPU has no bfloat16 ceiling."""
    facts = {"backend": "openvino", "dtype": "float32", "streams": 2}
    plain = run.Found({**found().rounds, "ceiling bfloat16": []}, found().starts, 0, 0, facts)
    rows = run.rows(plain)
    assert not [row for row in rows if "ceiling, bfloat16" in row.what]
    assert row_of(rows, "in process, openvino float32").value == "4.00 of ceiling"


def test_peers_are_compared_by_tokens() -> None:
    """`9.00 x` means nine times the peer's tokens per second, best rounds compared; a missing peer has its reason."""
    infinity, missing = peers.PEERS[0], peers.PEERS[1]
    found = [peers.Found(infinity, agreement=0.99995), peers.Found(missing, reason="no wheel")]
    found[0].rounds[32, 1] = [(a_round(900), a_round(50)), (a_round(800), a_round(100))]
    rows = peers.rows(found)
    assert row_of(rows, f"{infinity.name}, 32 connections").value == "9.00 x"
    assert row_of(rows, f"{infinity.name}, 32 connections").tokens_per_s == 100
    assert row_of(rows, f"{infinity.name}, agreement").value == "0.99995"
    assert row_of(rows, missing.name).what.endswith("not measured: no wheel")


def test_json_holds_every_round(capsys: pytest.CaptureFixture[str]) -> None:
    """The best rounds can be checked against all of them."""
    report = Report(title="t", conditions={"a": "b"}, rows=run.rows(found()), rounds=found().rounds)
    show(report, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert [measured["tokens"] for measured in shown["rounds"]["http 8 x 1"]] == [500, 760]
    assert shown["rounds"]["http 8 x 1"][0]["p50_ms"] == 2.0


def test_growth_counts_from_the_second_minute() -> None:
    """Memory of the warm-up is no leak; later growth may be one."""
    assert growth([(30, 100), (60, 200), (120, 250), (150, 210)]) == pytest.approx(0.05)
    assert growth([(30, 100), (60, 150)]) is None
