"""`vectord verify`: real models pass, altered ones fail, and missing references are skipped with the reason."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.cli.commands.stand_in import stand_in

from vectord.cli.main import run

STORED, PUBLISHED, LIBRARY = "stored vectors", "FastEmbed's published numbers", "sentence-transformers"


def verified(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and each reference by its name."""
    code = run(["verify", "--json", *words])
    return code, {one["name"]: one for one in json.loads(capsys.readouterr().out)["references"]}


def test_the_default_model_equals_its_references(vectord_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = verified(capsys, "--url", vectord_url, "--tasks", "none")
    assert code == 0
    assert {name: one["verdict"] for name, one in found.items()} == dict.fromkeys(
        (STORED, PUBLISHED, LIBRARY), "passed"
    )


def test_other_vectors_are_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    """A server of another product, with other vectors under the name of a published model."""
    with stand_in(model="all-MiniLM-L6-v2") as server:
        code, found = verified(capsys, "--url", server.url, "--tasks", "none")
    assert (code, found[STORED]["verdict"], found[PUBLISHED]["verdict"]) == (1, "failed", "failed")
    assert found[STORED]["measured"] == "256 instead of 384 numbers"


def test_the_output_is_a_table_with_a_last_line(
    vectord_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of MTEB is skipped without its package."""
    monkeypatch.setitem(sys.modules, "mteb", None)
    assert run(["verify", "--url", vectord_url, "--tasks", "STS12"]) == 0
    heading, *_, task, _, last = capsys.readouterr().out.splitlines()
    assert heading.split() == ["reference", "measured", "required"]
    assert task.split() == ["MTEB", "STS12", "the", "package", "mteb", "is", "not", "installed", "skipped"]
    assert last.startswith("sentence-transformers/all-MiniLM-L6-v2, ")
    assert last.endswith(": 3 passed, 1 skipped.")


def test_a_model_without_references_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in() as server:
        assert run(["verify", "--url", server.url, "--tasks", "none"]) == 2
    assert "nothing was compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("score", "verdict"), [(0.7237, "passed"), (0.6, "failed"), (None, "skipped")], ids=["right", "wrong", "no data"]
)
def test_a_task_is_compared_with_its_published_score(
    score: float | None,
    verdict: str,
    vectord_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a substitute for the package mteb, whose data cannot be had without a network."""
    seen: list[tuple[int, ...]] = []

    def load_data() -> None:
        if score is None:
            raise ConnectionError

    def evaluate(model: Any, task: Any, **options: Any) -> Any:
        seen.append(model.encode([{"text": ["one", "two"]}, {"text": ["three"]}], task_metadata=None).shape)
        return SimpleNamespace(task_results=[SimpleNamespace(get_score=lambda: score)])

    mteb, models = ModuleType("mteb"), ModuleType("mteb.models")
    mteb.__spec__ = ModuleSpec("mteb", None)
    mteb.__dict__.update(get_task=lambda name: SimpleNamespace(load_data=load_data), evaluate=evaluate)
    models.__dict__["ModelMeta"] = SimpleNamespace(create_empty=lambda facts: facts)
    monkeypatch.setitem(sys.modules, "mteb", mteb)
    monkeypatch.setitem(sys.modules, "mteb.models", models)
    code, found = verified(capsys, "--url", vectord_url, "--tasks", "STS12")
    assert found["MTEB STS12"]["verdict"] == verdict
    assert code == (1 if verdict == "failed" else 0)
    assert seen == ([] if score is None else [(3, 384)])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["a", "b"], "vectord verify takes one model, got 2"),
        (["--url", "http://127.0.0.1:1"], "--url: no server answers"),
        (["nobody/nothing", "--offline"], "model nobody/nothing is not on this machine"),
    ],
    ids=str,
)
def test_a_failed_start_is_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2."""
    assert run(["verify", *words]) == 2
    assert line in capsys.readouterr().err.splitlines()[-1]
