"""`vectord doctor`: the report about this machine, and the comparison of two servers."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.stand_in import stand_in
from tests.real_server import running

from vectord.cli.main import run
from vectord.tools.doctor import references


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_log: None) -> None:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)


def test_the_default_model_is_tested(capsys: pytest.CaptureFixture[str]) -> None:
    """The report has facts, the timed model, and settings with their sources."""
    assert run(["doctor", "--json", "--dtype", "float32", "--port", "0"]) == 0
    found = json.loads(capsys.readouterr().out)
    (model,) = found["models"]
    assert (model["state"], model["problem"], model["dtype"]) == ("ready", None, "float32")
    assert model["lone_ms"] > 0 and model["texts_per_s"] > 0
    assert [one["verdict"] for one in model["references"]] == ["passed"]
    assert {"setting": "device.dtype", "value": "float32", "source": "--dtype (command line)"} in found["settings"]
    assert found["libraries"]["openvino"] and found["machine"]["threads"] >= 1


def test_other_vectors_than_those_of_a_reference_are_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the stored ones, and with --reference of the library. The right ones do not reach this limit."""
    monkeypatch.setitem(references.LEAST_COSINES, "float32", 1.1)
    assert run(["doctor", "--json", "--dtype", "float32", "--port", "0", "--reference"]) == 1
    found = json.loads(capsys.readouterr().out)
    (model,) = found["models"]
    assert {one["name"]: one["verdict"] for one in model["references"]} == {
        "the stored vectors of sentence-transformers": "failed",
        "sentence-transformers": "failed",
    }
    assert all(one["why"].startswith("least cosine 1.0000") for one in model["references"])
    assert "other vectors than the stored vectors" in found["advice"][0]["reason"]


def test_a_model_that_cannot_load_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a problem at the top of the advice."""
    class_file = tmp_path / "broken.py"
    class_file.write_text("class Broken:\n    def __init__(self, *args, **kwargs):\n        raise OSError('no')\n")
    catalogue = tmp_path / "models.yaml"
    catalogue.write_text(
        "models:\n  - name: all-MiniLM-L6-v2\n    hf_repo_id: all-MiniLM-L6-v2\n    handler: broken.Broken\n"
    )
    code = run(["doctor", "--json", "--port", "0", "--model-catalogue", str(catalogue), "all-MiniLM-L6-v2"])
    found = json.loads(capsys.readouterr().out)
    assert code == 1
    assert found["advice"][0]["level"] == "problem"
    assert "could not be loaded: " in found["advice"][0]["reason"]


def test_secrets_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ((), ("--json",)):
        run(["doctor", "--no-self-test", "--api-key", "sesame", "--port", "0", *form])
        printed = capsys.readouterr().out
        assert "sesame" not in printed
        assert "***" in printed


def test_a_port_in_use_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """serve would not start."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["doctor", "--no-self-test", "--port", str(port)]) == 1
    assert f"127.0.0.1 port {port} is not available" in capsys.readouterr().out


# --- against another server -----------------------------------------------------------------------------------


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["doctor", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_two_servers_of_one_model_are_interchangeable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A running vectord, and one that the command starts with another product's profile."""
    fake = ("--backend", "fake")
    with running(tmp_path / "log", *fake, "--rate-limit-requests-per-minute", "0") as (url, _):
        code, found = compared(capsys, "--against", url, "--profile", "tei", *fake)
    assert code == 0
    assert found["interchangeable"] and found["least_cosine"] > 0.999
    lines = {line["what"]: line for line in found["lines"]}
    assert lines["dimensions"] == {"what": "dimensions", "here": "384", "there": "384", "verdict": "same"}
    assert lines["33 texts in a request"]["verdict"] == "differs"  # TEI accepts 32, the default profile 2,048


def test_other_vectors_are_not_interchangeable(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1. The lines also show other limits and statuses."""
    with stand_in() as here, stand_in(turned=2.0, most_texts=40) as there:
        code, found = compared(capsys, "--against", there.url, "--url", here.url)
    assert (code, found["interchangeable"]) == (1, False)
    assert found["least_cosine"] < found["mean_cosine"] < 0.99
    assert found["reasons"] == ["the least cosine is below 0.99"]
    verdicts = {line["what"]: line["verdict"] for line in found["lines"]}
    assert verdicts["64 texts in a request"] == "differs"
    assert verdicts["ranking of 'What is machine learning?'"] == "same"


@pytest.mark.parametrize(
    ("turned", "start", "end"),
    [
        (0.0, "Interchangeable: least cosine 1.000000", "."),
        (2.0, "NOT interchangeable: least cosine 0.", "below 0.99."),
    ],
)
def test_the_comparison_is_a_table_with_a_last_line(
    turned: float, start: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which has the reason."""
    with stand_in() as here, stand_in(turned=turned) as there:
        assert run(["doctor", "--against", there.url, "--url", here.url]) == int(turned > 0)
    printed = capsys.readouterr().out
    last = printed.strip().splitlines()[-1]
    assert last.startswith(start) and last.endswith(end)
    assert "\x1b" not in printed


def test_embedding_servers_route_is_compared(vectord_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its route /api/v1/embed, with two texts in a request, as in its default settings."""
    with stand_in(embeds_at="/api/v1/embed", most_texts=2) as there:
        code, found = compared(capsys, "--against", there.url, "--url", vectord_url)
    lines = {line["what"]: line for line in found["lines"]}
    assert lines["API for vectors"]["there"] == "embedding-server, POST /api/v1/embed"
    assert lines["API for vectors"]["here"] == "embedding-server, POST /api/v1/embed"
    assert (code, lines["dimensions"]["verdict"]) == (1, "differs")
    assert "dimensions: 384 here, 256 there" in found["reasons"]


def test_a_comparison_of_nothing_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither vectors nor rankings of both servers."""
    with stand_in() as here, stand_in(embeds_at="/elsewhere", reranks_at="/elsewhere") as there:
        assert run(["doctor", "--json", "--against", there.url, "--url", here.url]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["compared"] is False
    assert "--against: nothing was compared" in captured.err


def test_a_server_without_results_is_not_interchangeable(capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in() as here, stand_in(status=500) as there:
        code, found = compared(capsys, "--against", there.url, "--url", here.url)
    assert (code, found["interchangeable"], found["least_cosine"]) == (1, False, None)
