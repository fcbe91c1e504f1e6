"""`vectord bench`: counts, the table, and exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from tests.cli.commands.stand_in import stand_in

from vectord.cli.main import run

SMALL = ("--requests", "12", "--concurrency", "3", "--warmup", "2", "--batch-size", "2")


def test_every_request_is_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The warm-up is sent and not counted. Batches have the given size, and no text is sent twice, in no run."""
    with stand_in() as server:
        words = ["bench", "--url", server.url, "--json", "--scenarios", "embed_dense", *SMALL]
        assert run(words) == 0
        report = json.loads(capsys.readouterr().out)
        assert run(words) == 0
        sent = [body for body in server.bodies if len(body["input"]) == 2 and "report number" in body["input"][0]]
    (row,) = report["scenarios"]
    assert (row["requests"], row["ok"], row["failed"], row["concurrency"]) == (12, 12, 0, 3)
    assert row["min_ms"] <= row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert len(sent) == 2 * 14
    assert len({text for body in sent for text in body["input"]}) == 2 * 14 * 2


def test_the_cache_of_a_server_is_not_measured(vectord_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run hits the cache of vectors as little as the first one. Only --repeat measures the cache."""
    words = ["bench", "--url", vectord_url, "--json", "--scenarios", "embed_dense", *SMALL]
    caches = []
    for further in ([], [], ["--repeat"]):
        assert run([*words, *further]) == 0
        caches.append(json.loads(capsys.readouterr().out)["cache"])
    assert caches[:2] == [{"limit_bytes": 64 * 2**20, "hits": 0}] * 2
    assert caches[2]["hits"] >= 12


def test_the_cache_of_another_product_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in() as server:
        assert run(["bench", "--url", server.url, "--scenarios", "embed_dense", *SMALL]) == 0
    assert "cache of the server: unknown" in capsys.readouterr().err


def test_a_real_server_runs_each_scenario_that_it_supports(
    vectord_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """embed_full is left out, with the reason, since the default model makes dense vectors only."""
    assert run(["bench", "--url", vectord_url, *SMALL]) == 0
    captured = capsys.readouterr()
    heading, *rows = captured.out.splitlines()
    assert heading.split()[:8] == ["Scenario", "Reqs", "OK", "Fail", "Conc", "Wall", "Req/s", "Units/s"]
    assert heading.split()[8:] == ["Avg", "P50", "P95", "P99", "Min", "Max"]
    assert [row.split()[0] for row in rows] == ["embed_dense", "rerank"]
    assert "embed_full left out" in captured.err
    assert "cache of the server: 64.0 MiB, which answered 0 texts" in captured.err
    assert "\x1b" not in captured.out


def test_chunked_responses_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """Proxies and several servers send them."""
    with stand_in(fault="chunked") as server:
        assert run(["bench", "--url", server.url, "--json", "--scenarios", "embed_dense,rerank", *SMALL]) == 0
    assert [row["ok"] for row in json.loads(capsys.readouterr().out)["scenarios"]] == [12, 12]


def test_failed_requests_are_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    """The failures are counted by their reason."""
    with stand_in(most_texts=3) as server:
        words = ["--scenarios", "embed_dense", "--requests", "5", "--batch-size", "4", "--warmup", "0"]
        assert run(["bench", "--url", server.url, "--json", *words]) == 1
    (row,) = json.loads(capsys.readouterr().out)["scenarios"]
    assert (row["ok"], row["failed"], row["failures"], row["p50_ms"]) == (0, 5, {"status 413": 5}, None)


def test_a_named_scenario_must_be_supported(capsys: pytest.CaptureFixture[str]) -> None:
    """Else the exit code is 1, with the reason."""
    with stand_in() as server:
        assert run(["bench", "--url", server.url, "--scenarios", "embed_full", *SMALL]) == 1
    assert "embed_full left out: no route returns dense, sparse and ColBERT vectors" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["bench", "--model", "none"], ["doctor", "none"]])
def test_a_model_must_be_served(words: list[str], vectord_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An API without a field for the model would answer with another one."""
    assert run([*words, "--url", vectord_url]) == 2
    assert "serves no model none" in capsys.readouterr().err


def test_ctrl_c_is_exit_code_130() -> None:
    """Also during requests."""
    with stand_in() as server:
        command = [sys.executable, "-m", "vectord", "bench", "--url", server.url, "--scenarios", "embed_dense"]
        command += ["--requests", "1000000"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                while len(server.bodies) < 20 and process.poll() is None:
                    pass
                process.send_signal(signal.SIGINT)
                error = process.communicate(timeout=60)[1]
            finally:
                process.kill()
    assert (process.returncode, error) == (130, "vectord: interrupted\n")
