"""The configured models, opened and not loaded."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.opening import FAKE, minilm_folder, opened

from vectord.compute.backends.base import BackendOptions
from vectord.config import Config, DeviceConfig, ModelConfig
from vectord.config.sources import export_hub
from vectord.engine.models import backend, open_models, opening
from vectord.errors import ModelUnavailable


def test_models_are_opened_in_the_order_of_the_configuration(tmp_path: Path) -> None:
    """Embedding models first, then rerankers: the order decides which model answers by default."""
    first, second, third = (str(minilm_folder(tmp_path / name)) for name in "abc")
    models = opened(second, default_embedding_model=first, reranker_model=third)
    assert [model.name for model in models] == ["a", "b", "c"]


def test_the_operators_catalogue_names_a_model(tmp_path: Path) -> None:
    """The file's name is the served name; the file's class is the handler."""
    folder = minilm_folder(tmp_path / "mine")
    catalogue = tmp_path / "model_config.yaml"
    catalogue.write_text(f"models:\n  - name: house\n    hf_repo_id: {folder}\n    handler: my.models.House\n")
    (model,) = opened("house", model_catalogue=str(catalogue))
    assert (model.name, model.spec.handler) == ("house", "my.models.House")


def test_a_model_that_is_not_found_stops_the_start() -> None:
    """Before the port is bound, not with the first request."""
    with pytest.raises(ModelUnavailable, match="no-org/nothing is not on this machine"):
        opened("no-org/nothing", offline=True)


def test_opening_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port opens first. `load` blocks the calling thread."""
    loads: list[object] = []
    monkeypatch.setattr(opening, "_load", lambda *given: loads.append(given) or "loaded")
    monkeypatch.setattr(backend, "thread_budget", lambda: 4)
    (model,) = open_models(Config(device=DeviceConfig(backend="fake", num_threads=3, dtype="float32")))
    assert loads == []
    assert model.load() == "loaded"
    assert loads == [(model.spec, "fake", [BackendOptions(threads=3, dtype="float32")], None)]


def test_load_raises_model_unavailable(tmp_path: Path) -> None:
    """All files are present and tokenizer.json is invalid: only `load` notices."""
    folder = minilm_folder(tmp_path / "spoilt")
    (folder / "tokenizer.json").write_text("{}")
    (model,) = opened(str(folder))
    with pytest.raises(ModelUnavailable):
        model.load()


def test_tokenizers_starts_no_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One budget of threads, unless the operator set the variable."""
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    opened()
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    opened()
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


def test_the_cache_and_the_mirror_are_passed_to_the_hub_library() -> None:
    """huggingface_hub reads its environment only. Variables that are not configured stay unchanged."""
    environ = {"HF_HOME": "/home"}
    export_hub(ModelConfig(), environ)
    assert environ == {"HF_HOME": "/home"}
    export_hub(ModelConfig(hub_cache="/cache", hf_endpoint="https://mirror.test"), environ)
    assert environ == {"HF_HOME": "/home", "HF_HUB_CACHE": "/cache", "HF_ENDPOINT": "https://mirror.test"}
    export_hub(ModelConfig(hf_home="/near"), environ)  # the settings found it nearer than the cache's own folder
    assert environ == {"HF_HOME": "/near", "HF_ENDPOINT": "https://mirror.test"}


def test_the_configured_hub_cache_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder models/ as Simple Inference Server fills it, named by a profile and not by a variable."""
    monkeypatch.setenv("HF_HUB_CACHE", "/nowhere")  # to be put back when the test ends
    snapshot = tmp_path / "models--some--model" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    minilm_folder(snapshot)
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text("0" * 40)
    (model,) = opened("some/model", hub_cache=str(tmp_path), offline=True)
    assert model.spec.folder == snapshot


@pytest.mark.parametrize(
    ("saved", "dtype", "share"),
    [
        pytest.param({"torch_dtype": "float32"}, "auto", 0.5, id="halved"),
        pytest.param({"dtype": "bfloat16"}, "auto", 1, id="unchanged"),
        pytest.param({"torch_dtype": "float16"}, "float32", 2, id="doubled"),
        pytest.param({}, "float32", 1, id="float32"),
    ],
)
def test_a_models_memory_depends_on_the_dtype_in_memory(
    tmp_path: Path, saved: dict[str, str], dtype: str, share: float
) -> None:
    """The estimate counts the weights as they are held, not as they were saved."""
    folder = minilm_folder(tmp_path / "mine")
    path = folder / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if "dtype" not in key}
    path.write_text(json.dumps({**config, **saved}))
    device = replace(FAKE, dtype=dtype)
    (model,) = open_models(Config(model=ModelConfig(models=(str(folder),)), device=device))
    assert model.memory_bytes == share * (folder / "model.safetensors").stat().st_size
