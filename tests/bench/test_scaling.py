"""The model of throughput on more cores."""

from __future__ import annotations

import pytest
from bench.http_load import Round
from bench.scaling import Parts, Scaling, rows


def test_the_scarcest_part_limits_the_rate() -> None:
    """All cores, then the event loops, then the engine process."""
    parts = Parts(loop_s=0.001, engine_s=0.0, compute_s=0.003, client_s=0.001)
    assert parts.requests_per_s(2) == pytest.approx(500)
    assert parts.requests_per_s(2, with_client=True) == pytest.approx(400)
    assert parts.requests_per_s(64) == pytest.approx(1000)
    apart = Parts(loop_s=0.001, engine_s=0.0005, compute_s=0.003, client_s=0.001)
    assert apart.requests_per_s(64, 2) == pytest.approx(2000)
    assert apart.requests_per_s(64, 8) == pytest.approx(2000)
    assert apart.requests_per_s(64, 1) == pytest.approx(1000)


def test_each_row_has_its_share_of_the_model() -> None:
    """And rows after the limit of a loop are left out."""
    parts = Parts(loop_s=0.001, engine_s=0.0, compute_s=0.003, client_s=0.001)
    measured = Round(requests=400, texts=400, tokens=4000, elapsed_s=1.0, latencies_ms=[1.0], client_us=1000.0)
    one = Scaling(
        what="m",
        computes=True,
        texts=1,
        tokens=10.0,
        front_ends=1,
        parts=parts,
        measured=[(1, measured), (2, measured)],
    )
    found = rows([one])
    assert [row.what.strip() for row in found[1:]] == ["1 core", "2 cores", "4 cores, computed"]
    assert found[1].value == "1.60 of the model's 250"
    assert found[2].value == "1.00 of the model's 400"
    assert found[3].requests_per_s == pytest.approx(1000)
