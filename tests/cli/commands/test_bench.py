"""`vectord bench`: what is counted, the table, the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.cli.commands.stand_in import stand_in

from vectord.cli.main import run
from vectord.tools.bench.figures import figures, percentile

SMALL = ("--requests", "12", "--concurrency", "3", "--warmup", "2", "--batch-size", "2")


def test_every_request_is_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Requests as asked for, the warm-up sent and not counted, batches of the size asked for, bodies that differ."""
    with stand_in() as server:
        assert run(["bench", "--url", server.url, "--json", "--scenarios", "embed_dense", *SMALL]) == 0
        sent = [body for body in server.bodies if len(body["input"]) == 2 and "report number" in body["input"][0]]
    (row,) = json.loads(capsys.readouterr().out)["scenarios"]
    assert (row["requests"], row["ok"], row["failed"], row["concurrency"]) == (12, 12, 0, 3)
    assert row["min_ms"] <= row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert len(sent) == 14
    assert len({json.dumps(body) for body in sent}) == 12


def test_a_real_server_by_each_scenario_it_can(vectord_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """embed_full is left out with a reason, since the model makes dense vectors alone."""
    assert run(["bench", "--url", vectord_url, *SMALL]) == 0
    captured = capsys.readouterr()
    heading, *rows = captured.out.splitlines()
    assert heading.split()[:8] == ["Scenario", "Reqs", "OK", "Fail", "Conc", "Wall", "Req/s", "Units/s"]
    assert heading.split()[8:] == ["Avg", "P50", "P95", "P99", "Min", "Max"]
    assert [row.split()[0] for row in rows] == ["embed_dense", "rerank"]
    assert "embed_full left out" in captured.err
    assert "\x1b" not in captured.out


def test_answers_in_chunks_are_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """As proxies and several servers send them."""
    with stand_in(fault="chunked") as server:
        assert run(["bench", "--url", server.url, "--json", "--scenarios", "embed_dense,rerank", *SMALL]) == 0
    assert [row["ok"] for row in json.loads(capsys.readouterr().out)["scenarios"]] == [12, 12]


def test_requests_that_fail_are_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    """Counted by what came."""
    with stand_in(most_texts=3) as server:
        words = ["--scenarios", "embed_dense", "--requests", "5", "--batch-size", "4", "--warmup", "0"]
        assert run(["bench", "--url", server.url, "--json", *words]) == 1
    (row,) = json.loads(capsys.readouterr().out)["scenarios"]
    assert (row["ok"], row["failed"], row["failures"], row["p50_ms"]) == (0, 5, {"status 413": 5}, None)


def test_a_scenario_that_is_named_must_be_possible(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, with the reason."""
    with stand_in() as server:
        assert run(["bench", "--url", server.url, "--scenarios", "embed_full", *SMALL]) == 1
    assert "embed_full left out: POST /embeddings/" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--scenarios", "embed"], "--scenarios: expected some of embed_dense,embed_full,rerank"),
        (["--batch-size", "129"], "--batch-size: 129 is more than --max-batch-size 128"),
        (["--concurrency", "0"], "0 is not in the range 1<=x<=10000"),
        (["--url", "http://127.0.0.1:1"], "no server answers"),
    ],
    ids=str,
)
def test_bad_arguments_are_exit_code_2(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *words]) == 2
    assert told in capsys.readouterr().err


def test_interrupted_is_130() -> None:
    """Ctrl-C in the middle of a request that is never answered."""
    import signal

    # As at a terminal: what a shell runs in the background ignores this signal, and so do its children.
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "from vectord.cli.main import main; sys.exit(main())"
    with stand_in() as server:
        command = [sys.executable, "-c", program, "bench", "--url", server.url, "--scenarios", "embed_dense"]
        command += ["--requests", "1000000"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                while len(server.bodies) < 20 and process.poll() is None:
                    pass
                process.send_signal(signal.SIGINT)
                error = process.communicate(timeout=60)[1]
            finally:
                process.kill()
    assert (process.returncode, error) == (130, "")


def test_percentiles_lie_on_a_line_between_values() -> None:
    """As numpy's."""
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0], 100) == 4.0
    assert percentile([7.0], 99) == 7.0


def test_units_count_answered_requests_alone() -> None:
    """10 answers of 4 texts in 2 s, beside 5 failures."""
    found = figures(
        "x",
        latencies_ms=[5.0] * 10,
        failures={"status 503": 5},
        concurrency=1,
        units_per_request=4,
        wall_s=2.0,
        cpu_s=0.5,
    )
    assert (found.requests, found.requests_per_s, found.units_per_s, found.client_busy) == (15, 5.0, 20.0, 0.25)
