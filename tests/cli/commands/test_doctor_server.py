"""`vectord doctor --url` with a real vectord, and with stand-ins that each have one fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cli.commands.stand_in import stand_in
from tests.real_server import running

from vectord.cli.main import run

# Statuses of an example that needs another type of model, or the operator's key.
NOT_OFFERED = (400, 401, 403, 404, 405, 409, 415, 422, 424, 501)
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
# Profiles with small limits of texts, tokens and concurrency, and their settings of the models.
PROFILES = {
    "embedding-server": [MODEL],
    "tei": [MODEL],
    "semantic-explorer": [f"--default-embedding-model={MODEL}", f"--reranker-model={MODEL}"],
}


def report_of(capsys: pytest.CaptureFixture[str], url: str, *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["doctor", "--url", url, "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def names(report: dict[str, Any], verdict: str) -> list[str]:
    return [one["name"] for one in report["tests"] if one["verdict"] == verdict]


def test_vectord_passes_every_test(vectord_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its vectors are the stored ones, and long texts of all streams are answered."""
    code, report = report_of(capsys, vectord_url)
    assert (code, names(report, "failed")) == (0, [])
    assert names(report, "not offered") == ["a request without the token is refused"]
    assert {
        "long texts of concurrent clients are embedded or refused",
        "the stored vectors of sentence-transformers",
    } <= set(names(report, "passed"))
    counts = (report["passed"], report["failed"], report["not_offered"])
    assert counts == (len(report["tests"]) - 1, 0, 1)


def test_the_output_has_a_line_for_each_test(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line has the counts. There are no colours outside a terminal."""
    with stand_in() as server:
        assert run(["doctor", "--url", server.url]) == 0
    printed = capsys.readouterr().out
    *lines, last = printed.strip().splitlines()
    counts = {
        verdict: sum(line.startswith(verdict) for line in lines) for verdict in ("passed", "failed", "not offered")
    }
    assert last == ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    assert "\x1b" not in printed


def test_a_missing_feature_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither passed nor failed: no /health/ready, no token."""
    with stand_in() as server:
        code, report = report_of(capsys, server.url)
    assert code == 0
    assert {
        "ready",
        "a request without the token is refused",
    } <= set(names(report, "not offered"))


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ({"fault": "swapped"}, "results keep the order of the texts"),
        ({"model": "all-MiniLM-L6-v2"}, "the stored vectors of sentence-transformers"),
        ({"fault": "unhealthy"}, "healthy"),
    ],
    ids=str,
)
def test_a_faulty_server_fails(fault: dict[str, Any], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 1. Each failed test has a reason."""
    with stand_in(**fault) as server:
        code, report = report_of(capsys, server.url)
    assert code == 1
    assert name in names(report, "failed")
    assert all(one["why"] for one in report["tests"] if one["verdict"] == "failed")


def test_a_server_of_two_texts_in_a_request_has_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """As embedding-server by default."""
    with stand_in(most_texts=2) as server:
        code, report = report_of(capsys, server.url)
    assert (code, names(report, "failed")) == (0, [])


@pytest.mark.parametrize(("profile", "models"), PROFILES.items(), ids=PROFILES)
def test_vectord_passes_with_the_defaults_of_each_profile(
    profile: str, models: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The profile's own limits of texts and concurrency. Its models are replaced by a small one. Each route of the
    OpenAPI document answers its own examples, or lacks the kind of model."""
    with running(tmp_path / "log", "--profile", profile, "--host", "127.0.0.1", *models) as (url, _):
        code, report = report_of(capsys, url)
        assert (code, names(report, "failed")) == (0, [])
        with httpx.Client(base_url=url, timeout=60) as http:
            sent = list(_examples(http.get("/openapi.json").json()))
            statuses = {shown: http.request(method, path, json=body).status_code for shown, method, path, body in sent}
    assert len(statuses) > 60
    assert [shown for shown, status in statuses.items() if not (status < 400 or status in NOT_OFFERED)] == []


def _examples(openapi: dict[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    """A name, method, path and body."""
    for path, operations in openapi["paths"].items():
        if "{" in path:
            continue
        if "get" in operations:
            yield f"GET {path}", "GET", path, None
        content = operations.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        examples = content.get("examples", {}) | ({"": {"value": content["example"]}} if "example" in content else {})
        for name, example in examples.items():
            yield f"POST {path} {name}", "POST", path, example["value"]


def test_a_server_without_finite_vectors_offers_none(capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in(fault="nan") as server:
        _, report = report_of(capsys, server.url)
    assert "one finite vector for each text" in names(report, "not offered")


def test_the_token_is_sent_and_required(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that answers without it fails."""
    with stand_in(token="secret") as server:
        code, report = report_of(capsys, server.url, "--token", "secret")
        assert (code, names(report, "failed")) == (0, [])
    with stand_in() as server:
        _, report = report_of(capsys, server.url, "--token", "secret")
        assert names(report, "failed") == ["a request without the token is refused"]
