"""`vectord check` with a real vectord, and with stand-ins that each have one fault."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.stand_in import stand_in
from tests.real_server import running

from vectord.cli.main import run
from vectord.products.common.profiles import profiles

# Profiles with settings of their own. The others only order the APIs.
PROFILES = [name for name, path in profiles().items() if re.search(r"^\[", path.read_text("utf-8"), re.MULTILINE)]
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
# The settings of the models, in profiles that have several.
ROLES = {
    "semantic-explorer": ("default-embedding-model", "reranker-model"),
    "smart-embedder": ("model-id", "reranker-model"),
}


def checked(capsys: pytest.CaptureFixture[str], url: str, *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["check", "--url", url, "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def names(report: dict[str, Any], verdict: str) -> list[str]:
    return [one["name"] for one in report["checks"] if one["verdict"] == verdict]


def test_vectord_passes_every_test(vectord_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Among them every route with an example in /openapi.json."""
    code, report = checked(capsys, vectord_url, "--backpressure-requests", "32")
    assert (code, names(report, "failed")) == (0, [])
    passed = set(names(report, "passed"))
    assert {"POST /vectord/rerank, vectord", "POST /embed, text-embeddings-inference", "GET /stats"} <= passed
    assert report["passed"] == report["ran"] == len(passed)


def test_the_output_has_a_line_for_each_test(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line has the counts. There are no colours outside a terminal."""
    with stand_in() as server:
        assert run(["check", "--url", server.url, "--backpressure-requests", "4"]) == 0
    printed = capsys.readouterr().out
    *lines, last = printed.strip().splitlines()
    passed = sum(line.startswith("passed") for line in lines)
    assert last.startswith(f"{passed}/{passed} tests passed (")
    assert "\x1b" not in printed


def test_a_missing_feature_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither passed nor failed: no /metrics, no token."""
    with stand_in() as server:
        code, report = checked(capsys, server.url, "--backpressure-requests", "0")
    assert code == 0
    assert {
        "metrics for Prometheus",
        "a request without the token is refused",
    } <= set(names(report, "not offered"))


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ({"fault": "swapped"}, "results keep the order of the texts"),
        ({"fault": "html"}, "truncated JSON gets a 4xx error"),
        ({"fault": "unhealthy"}, "healthy"),
    ],
    ids=str,
)
def test_a_faulty_server_fails(fault: dict[str, Any], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 1. Each failed test has a reason."""
    with stand_in(**fault) as server:
        code, report = checked(capsys, server.url, "--backpressure-requests", "0")
    assert code == 1
    assert name in names(report, "failed")
    assert all(one["why"] for one in report["checks"] if one["verdict"] == "failed")


@pytest.mark.parametrize("habit", [{"most_texts": 2}, {"fault": "plain"}], ids=str)
def test_a_products_own_habits_are_no_fault(habit: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """embedding-server accepts two texts in a request; text-embeddings-inference answers bad JSON with plain text."""
    with stand_in(**habit) as server:
        code, report = checked(capsys, server.url, "--backpressure-requests", "0")
    assert (code, names(report, "failed")) == (0, [])


@pytest.mark.parametrize("profile", PROFILES)
def test_vectord_passes_with_the_defaults_of_each_profile(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The profile's own limits of texts, concurrency, and form of errors. Its models are replaced by a small one."""
    models = [f"--{name}={MODEL}" for name in ROLES.get(profile, ())] or [MODEL]
    with running(tmp_path / "log", "--profile", profile, "--host", "127.0.0.1", *models) as (url, _):
        code, report = checked(capsys, url)
    assert (code, names(report, "failed")) == (0, [])


def test_a_server_without_finite_vectors_offers_none(capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in(fault="nan") as server:
        _, report = checked(capsys, server.url, "--backpressure-requests", "0")
    assert "one finite vector for each text" in names(report, "not offered")


def test_the_token_is_sent_and_required(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that answers without it fails."""
    with stand_in(token="secret") as server:
        code, report = checked(capsys, server.url, "--token", "secret", "--backpressure-requests", "0")
        assert (code, names(report, "failed")) == (0, [])
    with stand_in() as server:
        _, report = checked(capsys, server.url, "--token", "secret", "--backpressure-requests", "0")
        assert names(report, "failed") == ["a request without the token is refused"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--url", "localhost:8000"], "--url: expected http://HOST:PORT"),
        (["--url", "http://127.0.0.1:1"], "--url: no server answers at http://127.0.0.1:1"),
        (["--backpressure-requests", "x"], "'x' is not a valid integer range"),
        (["--timeout", "0"], "0.0 is not in the range 0.1<=x<=3600"),
        (["--sparkle"], "unknown option '--sparkle'"),
    ],
    ids=str,
)
def test_a_bad_option_is_one_line_and_exit_code_2(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", *words]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert len(error.splitlines()) == 1
