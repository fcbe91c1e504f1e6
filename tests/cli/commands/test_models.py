"""`vectord models`: what is on this machine, without a network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.conftest import write_cached
from tests.opening import minilm_folder

from vectord.cli.main import run
from vectord.config import DEFAULT_MODEL


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face cache with one complete model and one that was cut off."""
    monkeypatch.chdir(tmp_path)
    hub = tmp_path / "hf" / "hub"
    write_cached(hub / "models--some--model")
    (write_cached(hub / "models--cut--off") / "model.safetensors").unlink()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return hub


@pytest.fixture
def listed(cache: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    def list_models(*words: str, code: int = 0) -> list[dict[str, Any]]:
        assert run(["models", "--json", *words]) == code
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return rows

    return list_models


def test_the_models_on_this_machine(listed: Callable[..., list[dict[str, Any]]]) -> None:
    """The default one, and the cache with what each model gives; an incomplete one has its problem."""
    default, cut_off, complete, *others = listed()
    assert (default["model"], default["served"], default["gives"]) == (DEFAULT_MODEL, True, ["dense"])
    assert (default["dimensions"], default["max_tokens"], default["dtype"]) == (384, 256, "float32")
    assert default["problem"] is None
    assert (cut_off["model"], complete["model"]) == ("cut/off", "some/model")
    assert "model.safetensors" in cut_off["problem"]
    assert (complete["revision"], complete["source"], complete["served"]) == ("a" * 40, "cache", False)
    assert others == []


def test_the_catalogue_on_request(listed: Callable[..., list[dict[str, Any]]]) -> None:
    rows = {row["model"]: row for row in listed("--all")}
    assert rows["BAAI/bge-m3"]["folder"] is None
    assert len(rows) > 50


def test_named_models_only(listed: Callable[..., list[dict[str, Any]]], tmp_path: Path) -> None:
    """A script sees from the exit code whether they can be served."""
    folder = minilm_folder(tmp_path / "mine")
    (row,) = listed(str(folder))
    assert (row["source"], row["folder"], row["architecture"]) == ("folder", str(folder), "bert")
    assert [row["problem"] is None for row in listed(str(folder), "BAAI/bge-m3", code=1)] == [True, False]


def test_a_table_for_people(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line a model; a single named model has a line a fact."""
    assert run(["models"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["model", "gives", "dtype", "width", "tokens", "size", "from", "state"]
    assert lines[0].split()[:3] == [DEFAULT_MODEL, "dense", "float32"]
    assert "served by default" in lines[0]
    assert "cannot be served: " in lines[1]
    assert "ready to serve" in lines[-1]
    assert run(["models", "some/model"]) == 0
    facts = dict(line.rstrip().split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (facts["pooling"], facts["revision"]) == ("mean", "a" * 40)
    shutil.rmtree(cache)
    assert run(["models", "some/model"]) == 1
    assert "is not on this machine" in capsys.readouterr().out
