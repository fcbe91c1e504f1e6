"""docs/mteb.csv says what the server's reader decides today, and no model of the registry is left out."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from scripts import mteb_models

from docs import mteb

KINDS = tomllib.loads((mteb.DOCS / "mteb.toml").read_text("utf-8"))["kinds"]


def test_the_stored_decisions_are_those_of_todays_code() -> None:
    """`python -m scripts.mteb_models` has run since the last change that makes a kind of model load."""
    assert mteb_models.table(mteb_models.decide_all()) == (mteb.DOCS / "mteb.csv").read_text("utf-8")


def test_every_model_of_the_registry_has_a_row() -> None:
    """With its architecture and settings, or as one whose code is not described, which does not load."""
    assert sorted(row.model for row in mteb.stored()) == sorted(mteb_models.read_models())
    assert {row.loads for row in mteb.stored() if row.settings == mteb.UNKNOWN} == {"no"}
    assert [row.model for row in mteb.stored() if row.reason == "settings not found"] == []


def test_a_kind_of_folder_is_one_of_some_model() -> None:
    """Kinds that no model of the registry has would be left from an earlier one."""
    used = {(row.architecture, row.settings) for row in mteb.stored()}
    assert {(kind.get("config", {}).get("model_type", "static"), kind["settings"]) for kind in KINDS} <= used


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"config": {"model_type": "made_up"}}, "model_type 'made_up' is not supported"),
        ({"config": {"model_type": "qwen3", "architectures": ["Mine"], "auto_map": {"AutoModel": "a.B"}}}, "own code"),
        ({"modules": ["Transformer", "my_code.Pooling"]}, "is not a class of sentence-transformers"),
        ({"pooling": "mine"}, "pooling_mode mine is not supported"),
        ({}, ""),
    ],
    ids=["architecture", "class", "module", "pooling", "none"],
)
def test_the_reader_of_folders_decides(change: dict[str, object], reason: str) -> None:
    """The column is computed, not written by hand."""
    kind = {"settings": "last token", "config": {"model_type": "qwen3"}, "modules": ["Transformer", "Pooling"]}
    loads, found = mteb_models.decide({**kind, **change})
    assert (loads == "no" and reason in found) if reason else (loads, found) == ("yes", "")


def test_a_folder_is_written_in_whole(tmp_path: Path) -> None:
    """Modules of each name have the files that the library writes."""
    mteb_models.write(tmp_path, {"settings": "", "modules": ["Transformer", "Pooling", "Dense"], "config": {}})
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert {"config.json", "modules.json", "tokenizer.json", "1_Pooling/config.json", "2_Dense/config.json"} <= names
