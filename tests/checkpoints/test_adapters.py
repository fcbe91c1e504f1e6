"""Folders that hold an adapter instead of weights: served with the base model, as sentence-transformers and peft do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from tests.checkpoints.test_two_networks import write_two
from tests.models import write_bert, write_sentence_bert
from tests.opening import opened
from tests.reference.references import run_reference

from vectord import Embedder
from vectord.checkpoints.adapters import merge_adapter
from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.errors import ConfigError, ModelUnavailable

TEXTS = ["the quick brown fox", "a dog", "old trees near water sing"]
PROMPTS = {"query": "many birds: ", "document": ""}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders base, saved (by sentence-transformers), bare and rich (by peft, the latter with more settings)."""
    place = tmp_path_factory.mktemp("adapters")
    write_bert(place / "base")
    return place


@pytest.fixture(scope="module")
def vectors(place: Path) -> Mapping[str, np.ndarray]:
    """The libraries' vectors of each folder, which this writes."""
    folders = {name: str(place / name) for name in ("saved", "bare", "rich")}
    return run_reference("peft_save", place / "base", {**folders, "texts": TEXTS, "pooling": "cls", "prompts": PROMPTS})


@pytest.fixture
def bare(place: Path, vectors: Mapping[str, np.ndarray], tmp_path: Path) -> Path:
    """A copy of peft's folder, which a test may change."""
    return Path(shutil.copytree(place / "bare", tmp_path / "bare"))


def name_base(adapter: Path, base: object) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))


def spec_of(folder: Path, **settings: object) -> ModelSpec:
    (source,) = opened(str(folder), **settings)
    return source.spec


@pytest.mark.parametrize(
    ("name", "backend"),
    [(name, backend) for name in ("saved", "rich") for backend in ("openvino", "torch", "transformers")]
    + [("bare", "openvino")],
)
def test_an_adapters_folder_has_the_vectors_of_its_library(
    name: str, backend: str, place: Path, vectors: Mapping[str, np.ndarray]
) -> None:
    """Every text gets the adapter, with DoRA, ranks and factors of single layers, and whole modules. The folder's own
    pooling and default prompt apply, else those of the base."""
    with Embedder(str(place / name), backend=backend, dtype="float32") as embedder:
        got = embedder.embed(TEXTS, normalize=False)
    np.testing.assert_allclose(got, vectors[name], atol=1e-5)
    assert np.abs(vectors[name] - vectors["base"]).max() > 0.1


@pytest.mark.parametrize("named", ["absolute", "from the adapter", "from the working folder", "in the cache"])
def test_the_base_model_is_found(named: str, bare: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its path, or by its name in the Hugging Face cache; the weights stay where they are."""
    base = place / "base"
    if named == "from the adapter":
        base = Path(shutil.copytree(base, bare.parent / "models" / "base"))
        name_base(bare, "../models/base")
    elif named == "from the working folder":
        monkeypatch.chdir(place)
        name_base(bare, "base")
    elif named == "in the cache":
        snapshot = bare.parent / "cache" / "models--org--base" / "snapshots" / ("c" * 40)
        base = Path(shutil.copytree(base, snapshot))
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text("c" * 40)
        monkeypatch.setenv("HF_HUB_CACHE", str(bare.parent / "cache"))
        name_base(bare, "org/base")
    spec = spec_of(bare, offline=True)
    assert spec.weights[0].resolve() == (base / "model.safetensors").resolve()
    assert spec.merged is not None and spec.merged.weights == bare / "adapter_model.safetensors"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("use_dora", False, "lora_magnitude_vector is not supported without use_dora"),
        ("modules_to_save", None, "neither A nor B of a layer"),
        ("rank_pattern", {"(query|value)+$": 2}, r"rank_pattern '\(query\|value\)\+\$' is not supported"),
        ("rank_pattern", {}, "and the rank 4"),
    ],
)
def test_tensors_without_their_setting_are_refused(
    key: str, value: object, message: str, place: Path, vectors: Mapping[str, np.ndarray], tmp_path: Path
) -> None:
    """And patterns with repetition, which could take forever."""
    rich = shutil.copytree(place / "rich", tmp_path / "rich")
    file = rich / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(ModelUnavailable, match=message):
        spec = spec_of(rich)
        merge_adapter(open_checkpoint(spec.weights), spec)


def test_a_bare_adapter_has_the_settings_of_its_base(bare: Path, tmp_path: Path) -> None:
    """The base's modules, prompts and tokenizer; the fingerprint is the adapter's own, and the name."""
    base = write_sentence_bert(tmp_path / "base", pooling="cls")
    sentence = json.loads((base / "config_sentence_transformers.json").read_text())
    (base / "config_sentence_transformers.json").write_text(json.dumps({**sentence, "prompts": PROMPTS}))
    name_base(bare, str(base))
    spec, plain = spec_of(bare), spec_of(base)
    assert (spec.pooling, spec.prompts, spec.tokenizer) == ("cls", PROMPTS, base / "tokenizer.json")
    assert (spec.model_id, plain.model_id) == ("bare", "saved")
    assert spec.fingerprint != plain.fingerprint


def test_an_adapter_next_to_the_models_own_weights_changes_them(bare: Path, place: Path, tmp_path: Path) -> None:
    """As transformers loads such a folder; adapter_config.json in allow_unknown_config serves the weights alone."""
    for path in (place / "base").iterdir():
        shutil.copy(path, bare)
    name_base(bare, "org/not-here")
    spec = spec_of(bare, offline=True)
    assert spec.weights == (bare / "model.safetensors",)
    assert spec.merged is not None
    assert spec_of(bare, offline=True, allow_unknown_config=("adapter_config.json",)).merged is None


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (None, r"base_model_name_or_path names no base model; .*vectord serve BASE --lora NAME=/"),
        ("org/not-here", r"base model .* is missing: model org/not-here is not on this machine.*--lora NAME=/"),
        ("/not/here", r"base model .* is missing: model /not/here is not a folder"),
        (".", "its base model has an adapter too, which is not supported"),
    ],
    ids=["none", "not in the cache", "no folder", "itself"],
)
def test_a_base_model_that_is_not_found_is_an_error_with_the_way_out(
    base: str | None, message: str, bare: Path
) -> None:
    """The way out is a command, or a correction of the file."""
    name_base(bare, base)
    with pytest.raises(ModelUnavailable, match=message):
        opened(str(bare), offline=True)


def test_an_adapter_of_two_networks_is_refused(bare: Path, tmp_path: Path) -> None:
    """Else queries would be read by the network of documents."""
    write_two(tmp_path, "another network")
    name_base(bare, str(tmp_path / "saved"))
    with pytest.raises(ModelUnavailable, match="its base model is a Router"):
        opened(str(bare), offline=True)


def test_a_backend_that_merges_no_weights_refuses(bare: Path) -> None:
    """An ONNX graph has its weights inside."""
    from vectord.engine.models.backend import check_adapters

    with pytest.raises(ConfigError, match="adapter of another model, which the onnx backend does not compute"):
        check_adapters(spec_of(bare), "onnx")


@pytest.mark.parametrize(
    ("tensors", "facts", "message"),
    [
        ({"embeddings.word_embeddings.lora_embedding_A": (4, 96)}, {}, "only one of A and B"),
        ({"encoder.layer.0.output.dense.lora_B.weight": (7, 4)}, {}, r"is \[4, 48\] and \[7, 4\]"),
        (
            {
                f"embeddings.word_embeddings.lora_embedding_{side}": shape
                for side, shape in (("A", (4, 0)), ("B", (32, 4)))
            },
            {"outputs": frozenset({"splade"})},
            "which a head reads",
        ),
    ],
    ids=["half", "another shape", "words of a head"],
)
def test_an_adapter_that_does_not_fit_is_refused(
    tensors: dict[str, tuple[int, int]], facts: dict[str, object], message: str, bare: Path
) -> None:
    """The error names the tensor."""
    spec = spec_of(bare)
    weights = open_checkpoint(spec.weights)
    words = len(weights["embeddings.word_embeddings.weight"].array)
    file = bare / "adapter_model.safetensors"
    added = {
        f"base_model.model.{name}": torch.zeros(tuple(size or words for size in shape))
        for name, shape in tensors.items()
    }
    save_file({**load_file(file), **added}, file)
    with pytest.raises(ModelUnavailable, match=message):
        merge_adapter(weights, replace(spec, **facts))
