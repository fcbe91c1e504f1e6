"""The requested models, their names, and composites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import save_file
from tests.checkpoints.folders import write_transformer
from tests.opening import FAKE, minilm_folder, opened

from vectord.checkpoints.spec import Colbert, RequestedModel
from vectord.config import DEFAULT_MODEL, Config, ModelConfig
from vectord.engine.models import open_composites, open_models, read_composites
from vectord.engine.models.registry import CompositeSource, ModelSource
from vectord.engine.models.requested import requested_models
from vectord.errors import ConfigError


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ((DEFAULT_MODEL, DEFAULT_MODEL), [DEFAULT_MODEL]),
        (("BAAI/bge-m3", "bge-m3"), ["BAAI/bge-m3"]),
        (("./a", "./b"), ["./a", "./b"]),
    ],
    ids=["one name twice", "two names of one model", "two folders"],
)
def test_a_model_is_requested_once(models: tuple[str, ...], expected: list[str]) -> None:
    """A repeated name costs no memory."""
    assert [one.model for one in requested_models(ModelConfig(models=models))] == expected


def test_the_operators_catalogue_names_models(tmp_path: Path) -> None:
    """Simple Inference Server's file: a name for clients, a class that computes the model, a pooling."""
    catalogue = tmp_path / "model_config.yaml"
    catalogue.write_text(
        "models:\n"
        "  - {name: house, hf_repo_id: ./mine, handler: my.models.House}\n"
        "  - {name: bge-m3, hf_repo_id: BAAI/bge-m3, handler: app.models.bge_m3.BgeM3Embedding, pooling: mean}\n"
    )
    config = ModelConfig(models=("house", "bge-m3", "BAAI/bge-m3"), model_catalogue=str(catalogue))
    assert requested_models(config) == [
        RequestedModel("./mine", "house", "my.models.House"),
        RequestedModel("BAAI/bge-m3", "bge-m3", pooling="mean"),
        RequestedModel("BAAI/bge-m3"),
    ]


@pytest.mark.parametrize("folder_name", ["BAAI/bge-m3", "bge-m3"])
def test_model_path_comes_before_the_hub(tmp_path: Path, folder_name: str) -> None:
    """A folder with the model's id or its last part; the model keeps its configured name."""
    folder = tmp_path / folder_name
    folder.mkdir(parents=True)
    write_transformer(folder)
    config = ModelConfig(models=("BAAI/bge-m3", "BAAI/bge-small-en-v1.5"), model_path=str(tmp_path))
    assert requested_models(config) == [
        RequestedModel(str(folder), "BAAI/bge-m3"),
        RequestedModel("BAAI/bge-small-en-v1.5"),
    ]


def test_model_path_may_be_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """embedding_server's default model is ./Qwen3-Embedding-0.6B; without that folder it is the hub's."""
    config = ModelConfig(models=("Qwen/Qwen3-Embedding-0.6B",), model_path=".")
    monkeypatch.chdir(tmp_path)
    assert requested_models(config) == [RequestedModel("Qwen/Qwen3-Embedding-0.6B")]
    folder = tmp_path / "Qwen3-Embedding-0.6B"
    folder.mkdir()
    write_transformer(folder)
    assert requested_models(config) == [RequestedModel(str(folder), "Qwen/Qwen3-Embedding-0.6B")]


def test_model_path_has_short_names_and_catalogue_entries(tmp_path: Path) -> None:
    """`bge-m3` stands for BAAI/bge-m3; a catalogue entry keeps its class."""
    for name in ("bge-m3", "my-house"):
        (tmp_path / name).mkdir()
        write_transformer(tmp_path / name)
    catalogue = tmp_path / "model_config.yaml"
    catalogue.write_text("models:\n  - {name: house, hf_repo_id: me/my-house, handler: my.models.House}\n")
    config = ModelConfig(models=("bge-m3", "house"), model_path=str(tmp_path), model_catalogue=str(catalogue))
    assert requested_models(config) == [
        RequestedModel(str(tmp_path / "bge-m3"), "bge-m3"),
        RequestedModel(str(tmp_path / "my-house"), "house", "my.models.House"),
    ]


# --- names ----------------------------------------------------------------------------------------------------


def test_served_names_replace_the_models_own_in_order(tmp_path: Path) -> None:
    """Without a served name, a model has its id and a folder its last part. The id and its last part are aliases."""
    folder = str(minilm_folder(tmp_path / "mine"))
    assert opened()[0].name == DEFAULT_MODEL
    first, second = opened(DEFAULT_MODEL, folder, served_model_name=("text-embed",))
    assert (first.name, second.name) == ("text-embed", "mine")
    assert {DEFAULT_MODEL, "all-MiniLM-L6-v2"} <= set(first.aliases)
    assert second.aliases == ()


def test_a_derived_name_that_fits_two_models_is_dropped(tmp_path: Path) -> None:
    """Its meaning would depend on the order of the models."""
    here, there = minilm_folder(tmp_path / "here" / "m"), minilm_folder(tmp_path / "there" / "m")
    models = opened(str(here), str(there), served_model_name=("a", "b"))
    assert [model.aliases for model in models] == [(), ()]
    with pytest.raises(ConfigError, match="served as m;"):
        opened(str(here), str(there))


def test_model_aliases_name_any_model_by_any_of_its_names(tmp_path: Path) -> None:
    """Clients with a built-in model name need no change. An alias replaces a derived name of another model."""
    folder = str(minilm_folder(tmp_path / "mine"))
    aliases = ("text-embedding-3-small=all-MiniLM-L6-v2", "house=mine", f"ada={DEFAULT_MODEL}")
    first, second = opened(DEFAULT_MODEL, folder, model_aliases=aliases)
    assert {"text-embedding-3-small", "ada", "all-MiniLM-L6-v2"} <= set(first.aliases)
    assert second.aliases == ("house",)
    first, second = opened(DEFAULT_MODEL, folder, model_aliases=("all-MiniLM-L6-v2=mine",))
    assert "all-MiniLM-L6-v2" not in first.aliases
    assert second.aliases == ("all-MiniLM-L6-v2",)


def write_adapter(folder: Path) -> Path:
    """The files that are read at start, of an adapter of one layer."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    layer = "base_model.model.encoder.layer.0.attention.self.query"
    tensors = {
        f"{layer}.lora_A.weight": np.zeros((2, 384), np.float32),
        f"{layer}.lora_B.weight": np.zeros((384, 2), np.float32),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"served_model_name": ("a", "b", "c")}, "3 names for 2 models"),
        ({"model_aliases": ("ada",)}, "model_aliases: expected NAME=MODEL, got 'ada'"),
        ({"model_aliases": ("a da=other",)}, "model_aliases: expected NAME=MODEL"),
        ({"model_aliases": ("ada=mine",)}, "model_aliases: ada: no model is served as 'mine'; served: "),
        ({"model_aliases": ("other=other",)}, "model_aliases: other is taken"),
        ({"model_aliases": ("ada=other", "ada=other")}, "model_aliases: ada is taken"),
        ({"pinned_models": ("mine",)}, "pinned_models: no model is served as 'mine'"),
        ({"lora": ("legal",)}, "expected NAME=FOLDER"),
        ({"lora": ("legal={}",)}, "name the model"),
        ({"lora": ("unknown:legal={}",)}, "unknown is none of the models"),
        ({"lora": (f"{DEFAULT_MODEL}:legal={{}}",) * 2}, "has an adapter of this name"),
    ],
)
def test_a_setting_that_names_models_wrongly_stops_the_start(
    tmp_path: Path, settings: dict[str, tuple[str, ...]], message: str
) -> None:
    """The error names the setting and what it expects."""
    adapter, other = write_adapter(tmp_path / "adapter"), minilm_folder(tmp_path / "other")
    given = {name: tuple(text.format(adapter) for text in texts) for name, texts in settings.items()}
    with pytest.raises(ConfigError, match=message):
        opened(DEFAULT_MODEL, str(other), **given)


def test_names_are_checked_before_files_are_read() -> None:
    """An error in a setting costs no download."""
    with pytest.raises(ConfigError, match="pinned_models"):
        opened("no-org/nothing", offline=True, pinned_models=("other",))


def test_adapters_belong_to_the_only_or_the_named_model(tmp_path: Path) -> None:
    """They change its fingerprint, which the cache depends on, and that of no other model."""
    adapter, other = write_adapter(tmp_path / "adapter"), minilm_folder(tmp_path / "another model")
    (plain,) = opened(DEFAULT_MODEL)
    (alone,) = opened(DEFAULT_MODEL, lora=(f"legal={adapter}",))
    first, second = opened(DEFAULT_MODEL, str(other), lora=(f"{other}:legal={adapter}", f"{other}:tax={adapter}"))
    assert [(one.name, one.scale) for one in alone.spec.adapters] == [("legal", 2.0)]
    assert [one.name for one in second.spec.adapters] == ["legal", "tax"]
    assert first.spec.fingerprint == plain.spec.fingerprint != alone.spec.fingerprint


def test_the_model_of_an_adapter_may_have_its_name_for_clients(tmp_path: Path) -> None:
    """As in the names of requests, MODEL:NAME."""
    adapter, other = write_adapter(tmp_path / "adapter"), minilm_folder(tmp_path / "other")
    names = {"served_model_name": ("first", "second"), "lora": (f"second:legal={adapter}",)}
    first, second = opened(DEFAULT_MODEL, str(other), **names)
    assert ([one.name for one in first.spec.adapters], [one.name for one in second.spec.adapters]) == ([], ["legal"])


@pytest.mark.parametrize(
    ("base", "warns"),
    [
        (None, False),
        (DEFAULT_MODEL, False),
        ("/home/trainer/ALL-MiniLM-L6-v2/", False),
        ("someone/another-model", True),
        ("/home/trainer/checkpoint-500", True),
    ],
)
def test_an_adapter_of_another_model_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, base: str | None, warns: bool
) -> None:
    """Its shapes may fit, and its vectors would be wrong. A path is compared by its last part."""
    adapter = write_adapter(tmp_path / "adapter")
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))
    opened(DEFAULT_MODEL, lora=(f"legal={adapter}",))
    assert ("legal was trained for another model" in caplog.text) == warns


# --- composites -----------------------------------------------------------------------------------------------


def test_a_composite_lists_served_models_by_any_of_their_names() -> None:
    """NAME=dense:MODEL+tokens:MODEL becomes a composite of served names."""
    served = opened(DEFAULT_MODEL, served_model_name=("text-embed",))
    (composite,) = read_composites(("smart=dense:all-MiniLM-L6-v2+tokens:text-embed",), served)
    assert (composite.name, dict(composite.members)) == ("smart", {"dense": "text-embed", "tokens": "text-embed"})


@pytest.mark.parametrize(
    ("value", "message"),
    {
        "no members": ("smart", "expected NAME=dense:MODEL"),
        "unknown kind": ("smart=thick:text-embed", "got 'thick'"),
        "a kind twice": ("smart=dense:text-embed+dense:text-embed", "each once"),
        "not its vectors": ("smart=colbert:text-embed", "makes no colbert vectors"),
        "unknown model": ("smart=dense:other", "no model is served as 'other'"),
        "a model's name": ("text-embed=dense:text-embed", "is the name of a model"),
    }.values(),
    ids=str,
)
def test_an_invalid_composite_stops_the_start(value: str, message: str) -> None:
    """The error names the part at fault."""
    with pytest.raises(ConfigError, match=message):
        read_composites((value,), opened(DEFAULT_MODEL, served_model_name=("text-embed",)))


def like_bge_m3(model: ModelSource) -> ModelSource:
    """The same model as if it computed all three vectors."""
    outputs = frozenset({"dense", "tokens", "lexical", "colbert"})
    return replace(model, spec=replace(model.spec, outputs=outputs, colbert=Colbert(dimensions=8)))


def composites(tmp_path: Path, **settings: Any) -> list[CompositeSource]:
    """The composites of these settings; models named m3... compute all three vectors, the others dense ones."""
    folders = {name: str(minilm_folder(tmp_path / name)) for name in ("qwen", "m3", "other", "m3-too")}
    config = ModelConfig(
        **{
            key: folders[value] if isinstance(value, str) else tuple(map(folders.get, value))
            for key, value in settings.items()
        }
    )
    models = open_models(Config(model=config, device=FAKE))
    return open_composites(config, [like_bge_m3(model) if "m3" in model.name else model for model in models])


@pytest.mark.parametrize(
    "settings",
    [
        {"dense_embedding_model": "qwen", "models": ("m3",)},
        {"dense_embedding_model": "qwen", "models": ("other", "m3")},
        {"dense_embedding_model": "qwen", "models": ("m3", "qwen")},
        {"dense_embedding_model": "qwen", "models": ("m3",), "default_embedding_model": "other"},
        {"dense_embedding_model": "qwen", "models": ("m3",), "default_embedding_model": "qwen"},
    ],
    ids=str,
)
def test_dense_embedding_model_replaces_the_dense_vectors_only(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Smart Embedder with Qwen: sparse and ColBERT vectors still come from BGE-M3."""
    (composite,) = composites(tmp_path, **settings)
    assert composite.name == "qwen+m3"
    assert composite.members == {"dense": "qwen", "sparse": "m3", "colbert": "m3"}


@pytest.mark.parametrize(
    "settings",
    [
        {"models": ("qwen", "m3")},
        {"dense_embedding_model": "m3", "models": ("m3",)},
        {"dense_embedding_model": "m3", "models": ("m3-too",)},
        {"dense_embedding_model": "qwen", "models": ("other",)},
    ],
    ids=["not set", "all of one model", "its own are complete", "no model has the others"],
)
def test_one_model_alone_needs_no_composite(tmp_path: Path, settings: dict[str, Any]) -> None:
    """DENSE_EMBEDDING_MODEL=BAAI/bge-m3 is Smart Embedder's default and means BGE-M3 for everything."""
    assert composites(tmp_path, **settings) == []


def test_a_dense_embedding_model_without_dense_vectors_stops_the_start(tmp_path: Path) -> None:
    """A reranker, for example."""
    config = ModelConfig(dense_embedding_model=DEFAULT_MODEL, models=(str(minilm_folder(tmp_path / "m3")),))
    first, second = open_models(Config(model=config, device=FAKE))
    scores = replace(first, spec=replace(first.spec, outputs=frozenset({"scores"})))
    with pytest.raises(ConfigError, match=r"dense_embedding_model: .* makes no dense vectors"):
        open_composites(config, [scores, like_bge_m3(second)])
