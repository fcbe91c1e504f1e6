"""`vectord rm` and `vectord show`: models in the cache, under any of their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commands.conftest import write_cached

from vectord.cli.main import run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with nomic-embed-text, another model, and their locks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    hub = tmp_path / "hf" / "hub"
    for name in ("models--nomic-ai--nomic-embed-text-v1.5", "models--some--model"):
        write_cached(hub / name)
        (hub / ".locks" / name).mkdir(parents=True)
    return hub


def test_a_model_is_removed_with_its_locks(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under Ollama's name; the others stay."""
    assert run(["rm", "nomic-embed-text:latest", "nomic-ai/nomic-embed-text-v1.5"]) == 0
    assert capsys.readouterr().out.startswith("removed nomic-ai/nomic-embed-text-v1.5, ")
    assert sorted(path.name for path in cache.iterdir()) == [".locks", "models--some--model"]
    assert [path.name for path in (cache / ".locks").iterdir()] == ["models--some--model"]


@pytest.mark.parametrize("name", ["bge-m3", "all-minilm", "./some/model", "../hub", "models--some--model", "some"])
def test_anything_but_a_model_in_the_cache_is_refused(
    name: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that is not there, a package, a path. Nothing is removed, not even the others of the command."""
    assert run(["rm", "some/model", name]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert (cache / "models--some--model").is_dir()


def test_show_prints_the_facts_of_a_model(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A word or an option names it."""
    assert run(["show", "some/model"]) == 0
    facts = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert facts["folder"].strip() == str(cache / "models--some--model" / "snapshots" / ("a" * 40))
    for words in (["--model", "some/model"], ["--profile", "tei", "--model-id", "some/model"]):
        assert run(["show", *words]) == 0
        assert dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()) == facts
    assert run(["show", "bge-m3"]) == 1
    assert "is not on this machine" in capsys.readouterr().out
