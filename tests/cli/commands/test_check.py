"""`vectord check` against a real vectord, and against stand-ins that do one thing wrong each."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.commands.stand_in import stand_in

from vectord.cli.main import run


def checked(capsys: pytest.CaptureFixture[str], url: str, *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["check", "--url", url, "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def failed(report: dict[str, Any]) -> list[str]:
    return [one["name"] for one in report["checks"] if one["verdict"] == "failed"]


def test_a_real_server_passes_all(vectord_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every route that /openapi.json names with an example is asked, and the last line says N/N."""
    code, report = checked(capsys, vectord_url, "--backpressure-requests", "32")
    assert (code, failed(report)) == (0, [])
    names = {one["name"] for one in report["checks"] if one["verdict"] == "passed"}
    assert {"POST /vectord/rerank, vectord", "POST /embed, text-embeddings-inference", "GET /stats"} <= names
    assert report["passed"] == report["ran"] == len(names)


def test_people_see_a_line_a_test_and_the_count(capsys: pytest.CaptureFixture[str]) -> None:
    """Without colours where there is no terminal."""
    with stand_in() as server:
        assert run(["check", "--url", server.url, "--backpressure-requests", "4"]) == 0
    printed = capsys.readouterr().out
    *lines, last = printed.strip().splitlines()
    passed = sum(line.startswith("passed") for line in lines)
    assert last.startswith(f"{passed}/{passed} tests passed (")
    assert "\x1b" not in printed


def test_what_a_server_does_not_have_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither passed nor failed: no /metrics, no sparse vectors, no token to check."""
    with stand_in() as server:
        code, report = checked(capsys, server.url, "--backpressure-requests", "0")
    absent = {one["name"] for one in report["checks"] if one["verdict"] == "not offered"}
    assert code == 0
    assert {"metrics for Prometheus", "dense, sparse and ColBERT of one text", "no answer without the token"} <= absent


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"fault": "swapped"}, "order in is order out"),
        ({"fault": "html"}, "a body that is cut off is the caller's error, in JSON"),
        ({"fault": "unhealthy"}, "healthy"),
        ({"most_texts": 3}, "16 callers at once each get their own"),
    ],
    ids=str,
)
def test_a_server_that_does_wrong_fails(said: dict[str, Any], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 1, and the test that saw it says what came."""
    with stand_in(**said) as server:
        code, report = checked(capsys, server.url, "--backpressure-requests", "0")
    assert code == 1
    assert name in failed(report)
    assert all(one["why"] for one in report["checks"] if one["verdict"] == "failed")


def test_a_server_without_finite_vectors_has_nothing_to_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """No form of asking is taken for one that works."""
    with stand_in(fault="nan") as server:
        _, report = checked(capsys, server.url, "--backpressure-requests", "0")
    verdicts = {one["name"]: one["verdict"] for one in report["checks"]}
    assert verdicts["one finite vector a text"] == "not offered"


def test_a_token_is_sent_and_its_absence_tested(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that answers without it fails."""
    with stand_in(token="secret") as server:
        code, report = checked(capsys, server.url, "--token", "secret", "--backpressure-requests", "0")
        assert (code, failed(report)) == (0, [])
    with stand_in() as server:
        _, report = checked(capsys, server.url, "--token", "secret", "--backpressure-requests", "0")
        assert failed(report) == ["no answer without the token"]


def test_limits_that_are_named_are_tested(capsys: pytest.CaptureFixture[str]) -> None:
    """One more than the limit is refused, or the test fails."""
    with stand_in(most_texts=30) as server:
        words = ("--max-sentences", "30", "--max-sentence-chars", "50", "--backpressure-requests", "0")
        _, report = checked(capsys, server.url, *words)
    assert failed(report) == ["max sentence chars: 51 is refused"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--url", "localhost:8000"], "--url: expected http://HOST:PORT"),
        (["--url", "http://127.0.0.1:1"], "--url: no server answers at http://127.0.0.1:1"),
        (["--backpressure-requests", "x"], "'x' is not a valid integer range"),
        (["--timeout", "0"], "0.0 is not in the range 0.1<=x<=3600"),
        (["--sparkle"], "unknown option '--sparkle'"),
    ],
    ids=str,
)
def test_a_check_that_cannot_be_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And exit code 2."""
    assert run(["check", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1
