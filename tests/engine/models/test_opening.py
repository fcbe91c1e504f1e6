"""The configured models, opened and not loaded, and the settings that replace what their files say."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.checkpoints.folders import write_dense, write_json, write_sentence_model, write_transformer
from tests.engine.fakes import ByteEncoder, FakeBackend, spec
from tests.opening import FAKE, minilm_folder, opened

from vectord.checkpoints.spec import ModelSpec, RequestedModel, YesNo
from vectord.compute.backends.base import BackendOptions
from vectord.config import DEFAULT_MODEL, Config, DeviceConfig, EngineConfig, ModelConfig, ServerConfig
from vectord.config.sources import CommandLine, export_hub, load
from vectord.engine.models import backend, open_models, opening
from vectord.engine.models.registry import ModelSource
from vectord.errors import ConfigError, ModelUnavailable
from vectord.products.common.profiles import profiles


def test_models_are_opened_in_the_order_of_the_configuration(tmp_path: Path) -> None:
    """Embedding models first, then rerankers: the order decides which model answers by default."""
    first, second, third = (str(minilm_folder(tmp_path / name)) for name in "abc")
    models = opened(second, default_embedding_model=first, reranker_model=third)
    assert [model.name for model in models] == ["a", "b", "c"]


def test_a_model_that_is_not_found_stops_the_start() -> None:
    """Before the port is bound, not with the first request."""
    with pytest.raises(ModelUnavailable, match="no-org/nothing is not on this machine") as refused:
        opened("no-org/nothing", offline=True)
    assert "".join(traceback.format_exception(refused.value)).count("Traceback") == 1


def test_a_cache_that_cannot_be_read_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, as that of another user would."""
    monkeypatch.setenv("HF_HOME", "x" * 300)
    with pytest.raises(ModelUnavailable, match=r"model some/model: .* cannot be read \(File name too long\)$"):
        opened("some/model", offline=True)


def test_opening_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port opens first. `load` blocks the calling thread."""
    loads: list[object] = []
    monkeypatch.setattr(opening, "_load", lambda *given: loads.append(given) or "loaded")
    monkeypatch.setattr(backend, "thread_budget", lambda: 4)
    (model,) = open_models(Config(device=DeviceConfig(backend="fake", num_threads=3, dtype="float32")))
    assert loads == []
    assert model.load() == "loaded"
    assert loads == [(model.spec, "fake", [BackendOptions(threads=3, dtype="float32")])]


@pytest.mark.parametrize("spoilt", ["incomplete", "missing"])
def test_an_incomplete_or_missing_folder_does_not_stop_the_other_models(spoilt: str, tmp_path: Path) -> None:
    """It keeps its place, with the reason, and counts as able to do nothing until its files are read."""
    folders = [minilm_folder(tmp_path / name) for name in "abc"]
    if spoilt == "missing":
        shutil.rmtree(folders[1])
    else:
        (folders[1] / "model.safetensors").unlink()
    first, broken, last = open_models(Config(model=ModelConfig(models=tuple(map(str, folders)))))
    assert [model.name for model in (first, broken, last)] == ["a", "b", "c"]
    assert (dict(broken.spec.kinds), broken.spec.reranks) == ({}, False)
    reason = r"no model\.safetensors" if spoilt == "incomplete" else "b is not a folder or GGUF file"
    with pytest.raises(ModelUnavailable, match=reason):
        broken.load()
    assert broken.reopen is not None
    shutil.copytree(folders[0], folders[1], dirs_exist_ok=True)
    assert (broken.reopen().name, set(broken.reopen().spec.kinds)) == ("b", {"dense", "tokens"})


def test_a_model_that_is_not_found_is_served_under_its_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among others, so that a request for it learns that it failed. Its last part is an alias, as for other models. A
    folder of that name without a model changes nothing."""
    (tmp_path / "no-org" / "nothing").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    _, missing = opened(str(minilm_folder(tmp_path / "a")), "no-org/nothing", offline=True)
    assert (missing.name, missing.aliases) == ("no-org/nothing", ("nothing",))
    with pytest.raises(ModelUnavailable, match="no-org/nothing is not on this machine"):
        missing.load()


@pytest.mark.parametrize("required", ["any", "all"])
def test_an_incomplete_folder_stops_the_start_if_nothing_else_may_be_served(required: str, tmp_path: Path) -> None:
    """It is the only model, or all models are required."""
    folders = [minilm_folder(tmp_path / name) for name in ("ab" if required == "all" else "a")]
    (folders[0] / "model.safetensors").unlink()
    models = ModelConfig(models=tuple(map(str, folders)))
    with pytest.raises(ModelUnavailable, match=r"no model\.safetensors"):
        open_models(Config(model=models, engine=EngineConfig(required_models=required)))  # type: ignore[arg-type]


def test_smart_embedder_does_not_start_without_one_of_its_models(tmp_path: Path) -> None:
    """Its profile requires all of them, as the product loads all before it answers."""
    environ = {
        "DENSE_EMBEDDING_MODEL": str(tmp_path / "missing"),
        "MODELS": str(minilm_folder(tmp_path / "a")),
        "RERANKER_MODEL": str(minilm_folder(tmp_path / "b")),
    }
    line = CommandLine(profile="smart-embedder")
    with pytest.raises(ModelUnavailable, match="missing"):
        open_models(load(line, environ, tmp_path, profiles()).config)


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
    device = dataclasses.replace(FAKE, dtype=dtype)
    (model,) = open_models(Config(model=ModelConfig(models=(str(folder),)), device=device))
    assert model.memory_bytes == share * (folder / "model.safetensors").stat().st_size


JUDGE = YesNo(prefix="", body="", suffix="", instruction="", token_ids=(0, 1))


def read(model: str | Path, **config: Any) -> ModelSpec:
    return opening.read_facts(RequestedModel(str(model)), ModelConfig(**config))


# --- lengths --------------------------------------------------------------------------------------------------

LIMITS = {
    "bge_embed_max_length": 1001,
    "qwen_embed_max_length": 1002,
    "bge_rerank_max_length": 1003,
    "qwen_rerank_max_length": 1004,
}


@pytest.mark.parametrize(
    ("kind", "limit"),
    {
        "bert": ({"model_type": "bert"}, 1001),
        "bge-m3": ({"model_type": "xlm-roberta"}, 1001),
        "splade": ({"model_type": "distilbert", "outputs": frozenset({"splade"})}, 1001),
        "qwen": ({"model_type": "qwen3"}, 1002),
        "older qwen": ({"model_type": "qwen2"}, 1002),
        "cross-encoder": ({"model_type": "xlm-roberta", "outputs": frozenset({"scores"})}, 1003),
        "qwen as classifier": ({"model_type": "qwen3", "outputs": frozenset({"scores"})}, 1003),
        "judge": ({"model_type": "qwen3", "outputs": frozenset({"scores"}), "yes_no": JUDGE}, 1004),
        "gemma": ({"model_type": "gemma3_text"}, 9000),
        "mistral": ({"model_type": "mistral"}, 9000),
    }.values(),
    ids=str,
)
def test_each_kind_of_model_has_its_own_limit(
    kind: dict[str, Any], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smart Embedder has four settings; other models keep their own limit. `max_length` is for all models."""
    spec = replace(read(DEFAULT_MODEL), max_tokens=9000, **kind)
    monkeypatch.setattr(opening, "read_spec", lambda *place, **settings: spec)
    assert read(DEFAULT_MODEL, **LIMITS).max_tokens == limit
    assert read(DEFAULT_MODEL, max_length=77).max_tokens == 77


@pytest.mark.parametrize(("limit", "read_tokens"), [(64, 64), (8192, 256)], ids=["lower", "higher"])
@pytest.mark.parametrize("name", ["max_length", "bge_embed_max_length"])
def test_a_limit_only_lowers_the_models_own(name: str, limit: int, read_tokens: int) -> None:
    """No setting adds positions to a network."""
    assert read(DEFAULT_MODEL, **{name: limit}).max_tokens == read_tokens


def test_a_shortened_model_is_not_tested_by_known_cosines() -> None:
    """The published figures hold for whole texts; the operator's limit must not fail the self-test."""
    assert read(DEFAULT_MODEL).known_cosines != ()
    assert read(DEFAULT_MODEL, bge_embed_max_length=8192).known_cosines != ()
    assert read(DEFAULT_MODEL, bge_embed_max_length=8).known_cosines == ()


# --- prompts --------------------------------------------------------------------------------------------------


def test_the_operators_prompt_is_the_default() -> None:
    """Requests can still name the model's own prompts. Spaces are kept."""
    spec = read(DEFAULT_MODEL, default_prompt="query: ")
    assert spec.default_prompt_name is not None
    assert spec.prompts[spec.default_prompt_name] == "query: "
    assert spec.known_cosines == ()
    assert spec.fingerprint == read(DEFAULT_MODEL).fingerprint


def test_default_prompt_name_names_one_of_the_models_prompts(tmp_path: Path) -> None:
    """A name that the model does not have stops the start."""
    folder = minilm_folder(tmp_path / "mine")
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "q: "}})
    assert read(folder, default_prompt_name="query").default_prompt_name == "query"
    with pytest.raises(ConfigError, match="the model has no such prompt"):
        read(folder, default_prompt_name="passage")


def test_the_operators_chat_template_is_a_file_or_the_template_itself(tmp_path: Path) -> None:
    """As in vLLM: a value with braces or several lines is the template. A missing file stops the start."""
    (tmp_path / "chat.jinja").write_bytes(b"\xef\xbb\xbfthe file's")  # a byte order mark is no part of it
    for value, text in ((str(tmp_path / "chat.jinja"), "the file's"), ("{{ messages }}", "{{ messages }}")):
        template = read(DEFAULT_MODEL, chat_template=value).chat_template
        assert template is not None
        assert template.text == text
        assert template.tokens["cls_token"] == "[CLS]"
    with pytest.raises(ConfigError, match=r"chat_template: none\.jinja: cannot be read"):
        read(DEFAULT_MODEL, chat_template="none.jinja")


def test_unknown_keys_of_the_models_files_are_ignored_by_name(tmp_path: Path) -> None:
    """In any of its files; another key still stops the start."""
    folder = minilm_folder(tmp_path / "mine")
    write_json(folder / "config_sentence_transformers.json", {"width": 64, "prompt_dim": 3})
    with pytest.raises(ModelUnavailable, match=r"width 64 .*--allow-unknown-config width"):
        read(folder)
    with pytest.raises(ModelUnavailable, match="prompt_dim 3"):
        read(folder, allow_unknown_config=("width",))
    assert read(folder, allow_unknown_config=("width", "prompt_dim")).dimensions == 384


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_the_operators_pooling_keeps_the_rest_of_the_folders(tmp_path: Path, pooling: str) -> None:
    """Whether pooling includes the prompt, the modules after it, and the usual dimensions; cosines of the published
    weights hold no longer."""
    folder = minilm_folder(tmp_path / "mine")
    write_json(folder / "config_sentence_transformers.json", {"truncate_dim": 64, "prompts": {"query": "Query: "}})
    own = json.loads((folder / "1_Pooling" / "config.json").read_text())
    write_json(folder / "1_Pooling" / "config.json", own | {"include_prompt": False})
    spec = read(folder, pooling=pooling)
    assert (spec.pooling, spec.include_prompt, spec.usual_dimensions, spec.dimensions) == (pooling, False, 64, 384)
    assert spec.prompts == {"query": "Query: "}
    assert read(DEFAULT_MODEL).known_cosines
    assert not read(DEFAULT_MODEL, pooling=pooling).known_cosines


def test_a_reranker_gets_no_prompt(tmp_path: Path) -> None:
    """Models that read pairs were trained with none."""
    labels = {"id2label": {"0": "relevant"}, "label2id": {"relevant": 0}}
    folder = write_transformer(tmp_path, architectures=["BertForSequenceClassification"], **labels)
    assert read(folder, default_prompt="query: ") == read(folder)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("embeds", {"cutoff_layer": 3}),
        ("reranks", {"default_prompt": "query: "}),
        ("reranks", {"dense_path": "2_Dense"}),
        *(("reranks", {"pooling": pooling}) for pooling in ("mean", "splade", "none")),
        ("makes sparse vectors", {"pooling": "mean"}),
        ("makes sparse vectors", {"pooling": "none"}),
    ],
    ids=str,
)
def test_a_setting_that_applies_to_no_model_stops_the_start(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """It would change the answers of other models. With several models it is for those that it fits."""
    labels = {"id2label": {"0": "relevant"}, "label2id": {"relevant": 0}}
    embedder, splade = minilm_folder(tmp_path / "a"), write_splade_model(tmp_path / "b")
    reranker = write_transformer(tmp_path / "c", architectures=["BertForSequenceClassification"], **labels)
    folder = {"embeds": embedder, "reranks": reranker, "makes sparse vectors": splade}[kind]
    opened(str(folder))
    with pytest.raises(ConfigError, match=f"{next(iter(settings))}: it applies to none of the served models"):
        opened(str(folder), **settings)
    if settings.get("pooling") == "mean":
        assert [model.spec.pooling for model in opened(str(embedder), str(folder), **settings)] == ["mean", None]


def test_a_product_starts_with_a_setting_that_applies_to_no_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As TEI does: a reranker with the POOLING of other containers starts, and logs it."""
    labels = {"id2label": {"0": "relevant"}, "label2id": {"relevant": 0}}
    folder = write_transformer(tmp_path, architectures=["BertForSequenceClassification"], **labels)
    model = ModelConfig(models=(str(folder),), pooling="cls", default_prompt="query: ")
    open_models(Config(model=model, server=ServerConfig(imitates="tei")))
    told = [message for message in caplog.messages if "applies to none" in message]
    assert [message.partition(" ")[0] for message in told] == ["pooling", "default_prompt"]


def test_an_onnx_file_needs_a_backend_that_runs_it() -> None:
    """Another backend would compute the model's own weights."""
    with pytest.raises(ConfigError, match="onnx_file: it applies to none"):
        open_models(Config(device=DeviceConfig(backend="openvino", onnx_file="onnx/model_O4.onnx")))


# --- pooling and Dense modules --------------------------------------------------------------------------------


def two_widths(folder: Path) -> Path:
    """A model with a Dense module of its own and a second one in the same folder, as stella has."""
    write_sentence_model(folder, kinds=("Transformer", "Pooling", "Dense", "Normalize"))
    write_dense(folder / "2_Dense", 8, 4)
    write_dense(folder / "2_Dense_16", 8, 16)
    return folder


def test_a_dense_module_is_chosen_by_its_folder(tmp_path: Path) -> None:
    """TEI's DENSE_PATH. Another width is another vector space."""
    tmp_path = two_widths(tmp_path)
    usual, chosen = read(tmp_path), read(tmp_path, dense_path="2_Dense_16")
    assert (usual.dimensions, chosen.dimensions) == (4, 16)
    assert [module.folder for module in chosen.dense_modules] == [tmp_path / "2_Dense_16"]
    assert usual.fingerprint != chosen.fingerprint


def test_plain_mean_skips_the_dense_modules_of_the_named_models(tmp_path: Path) -> None:
    """By the folder's name or the operator's. A pooling that the operator sets wins, and other models are unchanged."""
    folder = two_widths(tmp_path / "mine")
    usual, plain = read(folder), read(folder, plain_mean=("mine",))
    assert (usual.dimensions, plain.dimensions, plain.pooling, plain.dense_modules) == (4, 8, "mean", ())
    assert usual.fingerprint != plain.fingerprint
    for unchanged in ({"plain_mean": ("other", "none")}, {"plain_mean": ("mine",), "pooling": "cls"}):
        assert read(folder, **unchanged).dimensions == 4


def test_plain_mean_is_not_rounded(tmp_path: Path) -> None:
    """pplx-embed's own vectors are whole numbers, the mean of its last hidden states is not."""
    folder = write_sentence_model(tmp_path / "mine", kinds=["Transformer", "Pooling", "FlexibleQuantizer"])
    assert (read(folder).whole_numbers, read(folder, plain_mean=("mine",)).whole_numbers) == (True, None)


def test_a_dense_module_does_not_replace_several(tmp_path: Path) -> None:
    """The others would be left out without a word."""
    write_sentence_model(tmp_path, kinds=("Transformer", "Pooling", "Dense", "Dense"))
    for name in ("2_Dense", "3_Dense", "3_Dense_other"):
        write_dense(tmp_path / name, 8, 8)
    with pytest.raises(ConfigError, match=r"dense_path: .* has 2 modules after its pooling, and one"):
        read(tmp_path, dense_path="3_Dense_other")


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("../2_Dense", ConfigError, "dense_path: expected a folder inside the model's"),
        ("/2_Dense", ConfigError, "dense_path: expected a folder inside the model's"),
        ("3_Dense", ModelUnavailable, "3_Dense"),
    ],
)
def test_a_dense_path_outside_the_model_is_refused(
    tmp_path: Path, path: str, error: type[Exception], message: str
) -> None:
    """The error names the path."""
    with pytest.raises(error, match=message):
        read(two_widths(tmp_path), dense_path=path)


def write_splade_model(root: Path) -> Path:
    folder = write_sentence_model(root, kinds=("Transformer", "SpladePooling"), architectures=["BertForMaskedLM"])
    write_json(folder / "1_SpladePooling" / "config.json", {})
    write_json(folder / "sentence_bert_config.json", {"transformer_task": "fill-mask"})
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})
    return folder


def test_pooling_splade_requires_a_splade_model(tmp_path: Path) -> None:
    """TEI's POOLING=splade changes nothing for a SPLADE model and is an error for other embedding models."""
    folder = write_splade_model(tmp_path)
    assert read(folder, pooling="splade").outputs == {"splade"}
    with pytest.raises(ConfigError, match=r"pooling splade: .* is not a SPLADE model"):
        read(DEFAULT_MODEL, pooling="splade")


def test_pooling_none_leaves_the_vectors_of_tokens(tmp_path: Path) -> None:
    """llama.cpp's word. A model without a dense vector is unchanged."""
    usual, without = read(DEFAULT_MODEL), read(DEFAULT_MODEL, pooling="none")
    assert (without.outputs, without.pooling, without.dimensions) == ({"tokens"}, None, 0)
    assert without.fingerprint != usual.fingerprint
    folder = write_splade_model(tmp_path)
    assert read(folder, pooling="none") == read(folder)


def test_a_handler_has_a_vector_space_of_its_own(tmp_path: Path) -> None:
    """Its vectors must not be mixed with the model's."""
    folder = minilm_folder(tmp_path / "mine")
    own = opening.read_facts(RequestedModel(str(folder), "house", "my.models.House"), ModelConfig())
    assert (own.handler, own.outputs) == ("my.models.House", {"dense"})
    assert own.fingerprint != read(folder).fingerprint


def test_the_only_model_loads_ahead_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start imports the server meanwhile; the engine then takes what is loaded, and later loads anew."""
    threads: list[str] = []

    def load_model() -> tuple[ByteEncoder, list[FakeBackend]]:
        threads.append(threading.current_thread().name)
        return ByteEncoder(), [FakeBackend()]

    given = ModelSource("fake", (), spec(), load_model)
    monkeypatch.setattr(opening, "open_models", lambda config, downloads: [given])
    (ahead,) = opening.load_ahead(Config()) or ()
    assert threads == ["vectord-load-fake_0"]
    ahead.load()
    assert len(threads) == 1
    ahead.load()
    assert len(threads) == 2


@pytest.mark.parametrize(
    "config",
    [
        Config(device=FAKE, engine=EngineConfig(model_loading="first-use")),
        Config(device=FAKE, engine=EngineConfig(model_memory_bytes=2**30)),
        Config(device=FAKE, model=ModelConfig(models=(DEFAULT_MODEL, "other"))),
        Config(device=FAKE, model=ModelConfig(models=("not on this machine",))),
        Config(device=DeviceConfig(backend="no such")),
    ],
    ids=["first use", "may lack room", "several models", "download", "invalid"],
)
def test_no_model_loads_ahead_of_a_decision(config: Config) -> None:
    """Which model loads, whether there is room, and what is invalid, is known once all settings are checked."""
    assert opening.load_ahead(config) is None
