"""models/wanted.py: which models are meant, each once, and where their files are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.checkpoints.folders import write_transformer

from vectord.config import DEFAULT_MODEL, ModelConfig
from vectord.engine.models.wanted import Wanted, wanted_models


@pytest.mark.parametrize(
    ("models", "wanted"),
    [
        ((DEFAULT_MODEL, DEFAULT_MODEL), [DEFAULT_MODEL]),
        (("BAAI/bge-m3", "bge-m3"), ["BAAI/bge-m3"]),
        (("./a", "./b"), ["./a", "./b"]),
    ],
    ids=["one name twice", "two names of one model", "two folders"],
)
def test_one_model_is_wanted_once(models: tuple[str, ...], wanted: list[str]) -> None:
    """A list that repeats itself costs no memory."""
    assert [one.model for one in wanted_models(ModelConfig(models=models))] == wanted


def test_the_operators_catalogue_names_a_model(tmp_path: Path) -> None:
    """Simple Inference Server's file: its name is what clients call the model, its class computes it."""
    catalogue = tmp_path / "model_config.yaml"
    catalogue.write_text(
        "models:\n"
        "  - {name: house, hf_repo_id: ./mine, handler: my.models.House}\n"
        "  - {name: bge-m3, hf_repo_id: BAAI/bge-m3, handler: app.models.bge_m3.BgeM3Embedding, pooling: mean}\n"
    )
    config = ModelConfig(models=("house", "bge-m3", "BAAI/bge-m3"), model_catalogue=str(catalogue))
    assert wanted_models(config) == [
        Wanted("./mine", "house", "my.models.House"),
        Wanted("BAAI/bge-m3", "bge-m3", pooling="mean"),
        Wanted("BAAI/bge-m3"),
    ]


@pytest.mark.parametrize("place", ["BAAI/bge-m3", "bge-m3"])
def test_the_folder_of_models_comes_before_the_hub(tmp_path: Path, place: str) -> None:
    """Under the model's id or the last part of it; clients go on calling it by what the operator said."""
    folder = tmp_path / place
    folder.mkdir(parents=True)
    write_transformer(folder)
    config = ModelConfig(models=("BAAI/bge-m3", "BAAI/bge-small-en-v1.5"), model_path=str(tmp_path))
    assert wanted_models(config) == [Wanted(str(folder), "BAAI/bge-m3"), Wanted("BAAI/bge-small-en-v1.5")]


def test_the_folder_of_models_may_be_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """embedding_server's default model is ./Qwen3-Embedding-0.6B; without that folder it is the hub's."""
    config = ModelConfig(models=("Qwen/Qwen3-Embedding-0.6B",), model_path=".")
    monkeypatch.chdir(tmp_path)
    assert wanted_models(config) == [Wanted("Qwen/Qwen3-Embedding-0.6B")]
    (tmp_path / "Qwen3-Embedding-0.6B").mkdir()
    write_transformer(tmp_path / "Qwen3-Embedding-0.6B")
    assert wanted_models(config) == [Wanted(str(tmp_path / "Qwen3-Embedding-0.6B"), "Qwen/Qwen3-Embedding-0.6B")]


def test_short_names_and_the_operators_catalogue_are_looked_for_in_the_folder_of_models(tmp_path: Path) -> None:
    """`bge-m3` is BAAI/bge-m3, also where its files are looked for; a catalogue's class and pooling stay."""
    for name in ("bge-m3", "my-house"):
        (tmp_path / name).mkdir()
        write_transformer(tmp_path / name)
    catalogue = tmp_path / "model_config.yaml"
    catalogue.write_text("models:\n  - {name: house, hf_repo_id: me/my-house, handler: my.models.House}\n")
    config = ModelConfig(models=("bge-m3", "house"), model_path=str(tmp_path), model_catalogue=str(catalogue))
    assert wanted_models(config) == [
        Wanted(str(tmp_path / "bge-m3"), "bge-m3"),
        Wanted(str(tmp_path / "my-house"), "house", "my.models.House"),
    ]
