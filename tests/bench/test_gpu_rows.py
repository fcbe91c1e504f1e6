from __future__ import annotations

from typing import Any

import pytest
from bench.gpu_rows import rows
from bench.gpu_section import Finding, Section
from bench.report import Row

ON_GPU: Finding = {"kind": "device", "name": "a GPU", "capability": "9.0", "torch": "2", "CUDA": "13.0"}
MATRIX: Finding = {"kind": "matrix", "flop_per_s": 800e12, "side": 8192, "dtype": "bfloat16"}


def a_rate(how: str, tokens_per_s: float, model: str = "bge-base", length: int = 512) -> Finding:
    about = {"model": model, "how": how, "length": length, "texts": 16, "flop_per_token": 200e6}
    return {"kind": "rate", **about, "tokens_per_s": tokens_per_s}


def a_query(how: str, p50_ms: float, model: str = "bge-base") -> Finding:
    return {"kind": "latency", "model": model, "how": how, "tokens": 12, "p50_ms": p50_ms, "p99_ms": 2 * p50_ms}


def row_of(findings: list[Finding], what: str) -> Row:
    (row,) = [row for row in rows([Section("a section", findings)]) if what in row.what]
    return row


@pytest.mark.parametrize(
    ("findings", "what", "value", "met"),
    [
        ([a_rate("in process", 2e6)], "in process", "0.50 of ceiling", True),
        ([a_rate("in process", 1.9e6)], "in process", "0.47 of ceiling", False),
        ([a_rate("in process", 2e6, length=64)], "in process", "0.50 of ceiling", None),
        ([a_rate("in process", 2e6), a_rate("over HTTP", 1.8e6)],
         "bge-base, 512 tokens, over HTTP", "0.90 of in process", True),
        ([a_rate("in process", 2e6), a_rate("over HTTP", 1.6e6)],
         "bge-base, 512 tokens, over HTTP", "0.80 of in process", False),
        ([a_rate("over HTTP", 1.7e6)], "arctic", "", True),
        ([a_rate("over HTTP", 1.5e6)], "arctic", "", False),
        ([a_rate("over HTTP", 1.7e6, length=50)], "arctic", "", True),
        ([a_rate("over HTTP", 1.5e6, length=50)], "arctic", "", False),
        ([a_rate("over HTTP", 12 * 61e3, "minilm", 12)], "16 texts per request", "61,000 texts/s", True),
        ([a_rate("over HTTP", 12 * 59e3, "minilm", 12)], "16 texts per request", "59,000 texts/s", False),
        ([a_rate("over HTTP", 12 * 61e3, "minilm", 16)], "16 texts per request", "", None),
        ([a_rate("in process", 2e6, "bge-m3"), a_rate("in process, three vectors", 1.7e6, "bge-m3")],
         "three vectors", "0.85 of dense", False),
        ([a_rate("in process", 2e6, "bge-m3"), a_rate("in process, three vectors", 1.9e6, "bge-m3")],
         "three vectors", "0.95 of dense", True),
        ([a_rate("over HTTP", 5e5, length=16),
          a_rate("sentence-transformers, 32 texts per batch", 4e4, length=16)],
         "sentence-transformers", "HTTP 12.5 x", True),
        ([a_rate("over HTTP", 5e5, length=16),
          a_rate("sentence-transformers, 256 texts per batch", 1e5, length=16)],
         "sentence-transformers", "HTTP 5.0 x", None),
        ([a_query("with graphs", 0.9)], "with graphs", "", True),
        ([a_query("with graphs", 1.1)], "with graphs", "", False),
        ([a_query("without graphs", 1.1)], "without graphs", "", None),
        ([a_query("over HTTP", 1.4, "minilm")], "over HTTP", "", True),
        ([a_query("over HTTP", 1.6, "minilm")], "over HTTP", "", False),
        ([a_query("over HTTP", 1.6)], "over HTTP", "", None),
    ],
)  # fmt: skip
def test_a_gpu_has_targets(findings: list[Finding], what: str, value: str, met: bool | None) -> None:
    """Each target is met by one case, and missed by another; other lengths and models have none."""
    row = row_of([ON_GPU, MATRIX, *findings], what)
    assert (row.value, row.met) == (value, met)


def test_a_cpu_has_no_targets() -> None:
    """A quick run on a laptop misses no target."""
    assert row_of([MATRIX, a_rate("in process", 1e3)], "in process").met is None


@pytest.mark.parametrize("findings", [[a_rate("in process", 2e6)], [a_rate("over HTTP", 2e6)]])
def test_a_rate_without_its_bound_is_shown(findings: list[Finding]) -> None:
    """Also if the ceiling or the forward could not be measured."""
    row = row_of([ON_GPU, *findings], "bge-base, 512 tokens")
    assert (row.value, row.tokens_per_s) == ("", 2e6)


def test_each_failure_is_a_row() -> None:
    """A section that ended early, a failed measurement, and a missing library."""
    findings: list[dict[str, Any]] = [
        {"kind": "failed", "what": "16 tokens", "error": "RuntimeError: no"},
        {"kind": "absent", "what": "FlagEmbedding", "error": "No module named 'FlagEmbedding'"},
    ]
    found = {row.what: row.value for row in rows([Section("one", findings), Section("two", error="exit code 1: why")])}
    assert found == {
        "one: 16 tokens": "failed: RuntimeError: no",
        "FlagEmbedding": "not installed here",
        "two": "failed: exit code 1: why",
    }
