from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bench.child import Child
from bench.in_process import arrival_batches


def test_batches_keep_the_order_and_the_budget() -> None:
    """Only a text longer than the budget exceeds it, in a batch of its own."""
    ids = [[1] * length for length in (4, 5, 2, 12, 1, 9, 1)]
    batches = arrival_batches(ids, max_tokens=10)
    assert [batch.texts.cu_seqlens.tolist() for batch in batches] == [[0, 4, 9], [0, 2], [0, 12], [0, 1, 10], [0, 1]]
    assert [token for batch in batches for token in batch.texts.ids] == [token for text in ids for token in text]


def test_batches_have_a_maximum_of_texts() -> None:
    """In addition to the budget."""
    batches = arrival_batches([[1] * length for length in (4, 5, 2, 1)], max_tokens=10, max_texts=2)
    assert [batch.texts.cu_seqlens.tolist() for batch in batches] == [[0, 4, 9], [0, 2, 3]]
    batches = arrival_batches([[1] * length for length in (4, 7, 2, 1)], max_tokens=10, max_texts=2)
    assert [batch.texts.cu_seqlens.tolist() for batch in batches] == [[0, 4], [0, 7, 9], [0, 1]]


def test_a_child_measures_a_backend(tmp_path: Path) -> None:
    """Questions and figures are JSON lines; other output of the child is ignored."""
    corpus = tmp_path / "corpus.json"
    corpus.write_text(json.dumps({"texts": [], "ids": [[101, 2000 + i, 102] for i in range(64)]}))
    with Child(sys.executable, "bench.in_process", "fake", "auto", str(corpus)) as child:
        assert child.ask(measure="facts")["backend"] == "fake"
        measured = child.ask(measure="throughput", texts=32)
        assert measured["tokens"] == 96
        assert child.ask(measure="throughput", texts=32, outstanding=8)["tokens"] == 96
        assert measured["elapsed_s"] > 0
        latency = child.ask(measure="latency", positions=[0, 1], rest_ms=1)
        assert 0 < latency["p50_ms"] <= latency["p99_ms"]


def test_a_dead_child_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A failed measurement stops the run, and is not a missing row."""
    with (
        Child(sys.executable, "bench.in_process", "fake", "auto", str(tmp_path / "missing.json")) as child,
        pytest.raises(RuntimeError, match="exit code 1"),
    ):
        child.ask(measure="facts")
    assert "missing.json" in capfd.readouterr().err
