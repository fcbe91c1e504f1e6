"""The facts of a model's folder: what is read, what stops the start, and what counts as the same vector space."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.artifacts.folders import write_dense, write_json, write_sentence_model, write_transformer
from tests.models import write_sentence_bert

from vectord.artifacts.hub import Located, resolve
from vectord.artifacts.spec import DenseModule, ModelSpec, Pooling, read_spec
from vectord.errors import ConfigError, ModelUnavailable, StartError


def located(folder: Path) -> Located:
    return Located(folder=folder, model_id="tests/tiny", revision=None, source="folder")


def spec_of(folder: Path) -> ModelSpec:
    return read_spec(located(folder))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        spec_of(folder)
    return caught.value.message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


def test_the_default_model() -> None:
    """all-MiniLM-L6-v2: mean, normalised, 384 wide, 256 tokens though its position table has 512 rows."""
    spec = read_spec(resolve("sentence-transformers/all-MiniLM-L6-v2", offline=True))
    assert spec.model_id == "sentence-transformers/all-MiniLM-L6-v2"
    assert spec.model_type == "bert"
    assert (spec.pooling, spec.include_prompt, spec.normalizes, spec.dense_modules) == ("mean", True, True, ())
    assert (spec.hidden_size, spec.dimensions, spec.max_tokens) == (384, 384, 256)
    assert (dict(spec.prompts), spec.default_prompt_name) == ({}, None)
    assert [path.name for path in (*spec.weights, spec.tokenizer)] == ["model.safetensors", "tokenizer.json"]
    assert len(bytes.fromhex(spec.fingerprint)) == 8


def test_reading_the_default_model_is_quick() -> None:
    """The fingerprint samples the 90 MB of weights; a start must not wait for it (20 ms; 3 are usual)."""
    here = resolve("all-MiniLM-L6-v2", offline=True)
    took_s = []
    for _ in range(5):
        start = time.perf_counter()
        read_spec(here)
        took_s.append(time.perf_counter() - start)
    assert min(took_s) < 0.020


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_what_sentence_transformers_saves_today(pooling: Pooling, tmp_path: Path) -> None:
    """The installed version's own module names and files are understood."""
    saved = write_sentence_bert(tmp_path, pooling=pooling, dense=(24, 12))
    spec = spec_of(saved)
    assert spec.pooling == pooling
    assert spec.normalizes
    assert (spec.hidden_size, spec.dimensions, spec.max_tokens) == (32, 12, 512)
    assert [replace(module, folder=Path()) for module in spec.dense_modules] == [
        DenseModule(folder=Path(), in_features=32, out_features=24, bias=True, activation="tanh"),
        DenseModule(folder=Path(), in_features=24, out_features=12, bias=True, activation="identity"),
    ]


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
    ids=str,
)
@pytest.mark.parametrize("new", [False, True], ids=["old names", "new names"])
def test_both_ways_to_write_a_pooling(config: dict[str, object], pooling: str, new: bool, folder: Path) -> None:
    """Booleans before sentence-transformers 6, one word since; and either way to name the modules."""
    assert spec_of(write_sentence_model(folder, pooling=config, new=new)).pooling == pooling


@pytest.mark.parametrize(
    "config",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_mean_sqrt_len_tokens": True},
        {"pooling_mode_weightedmean_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode_mean_tokens": False},
        {"pooling_mode": "max"},
        {"pooling_mode": ["mean", "cls"]},
        {"pooling_mode": 3},
        {"pooling_mode": [["mean"]]},
        {"pooling_mode": {}},
    ],
    ids=str,
)
def test_a_pooling_nobody_here_computes_is_refused(config: dict[str, object], folder: Path) -> None:
    """Another pooling than the model's would give vectors that look right."""
    assert "pooling" in refusal(write_sentence_model(folder, pooling=config))


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        (["Transformer", "Pooling", "LSTM"], "'LSTM' is not supported"),
        (["Transformer", "WeightedLayerPooling", "Pooling"], "'WeightedLayerPooling' is not supported"),
        (["Transformer"], "in the order Transformer"),
        (["Pooling", "Transformer"], "in the order Pooling, Transformer"),
        (["Transformer", "Pooling", "Normalize", "Dense"], "in the order"),
        (["Transformer", "Pooling", "Normalize", "Normalize"], "in the order"),
    ],
    ids=str,
)
def test_modules_nobody_here_runs_are_refused(kinds: list[str], says: str, folder: Path) -> None:
    """A module that was left out, or run in another place, would change the vectors silently."""
    assert says in refusal(write_sentence_model(folder, kinds=kinds))


def test_a_model_without_normalize_says_so(folder: Path) -> None:
    """Whether a pipeline ends in Normalize is a fact of the model; dialects decide what they make of it."""
    assert not spec_of(write_sentence_model(folder, kinds=["Transformer", "Pooling"])).normalizes


def test_dense_modules_set_the_dimensions(folder: Path) -> None:
    """Widths chain from the network to the answer; activation and bias are read."""
    write_sentence_model(folder, kinds=["Transformer", "Pooling", "Dense", "Dense", "Normalize"])
    write_dense(folder / "2_Dense", 8, 6, activation_function="torch.nn.modules.activation.Tanh")
    write_dense(folder / "3_Dense", 6, 4, activation_function="torch.nn.modules.linear.Identity", bias=False)
    spec = spec_of(folder)
    assert (spec.hidden_size, spec.dimensions) == (8, 4)
    assert [(module.activation, module.bias) for module in spec.dense_modules] == [("tanh", True), ("identity", False)]


BROKEN_DENSE: Mapping[str, Callable[[Path], object]] = {
    "another activation": lambda folder: write_dense(folder, 8, 4, activation_function="torch.nn.ReLU"),
    "code for an activation": lambda folder: write_dense(folder, 8, 4, activation_function="os.system"),
    "widths that do not chain": lambda folder: write_dense(folder, 9, 4),
    "no width": lambda folder: write_dense(folder, 8, 4, out_features=None),
    "width zero": lambda folder: write_dense(folder, 8, 4, out_features=0),
    "width true": lambda folder: write_dense(folder, 8, 4, out_features=True),
    "over tokens": lambda folder: write_dense(folder, 8, 4, module_input_name="token_embeddings"),
    "no weights": lambda folder: (write_dense(folder, 8, 4) / "model.safetensors").unlink(),
    "no config": lambda folder: (write_dense(folder, 8, 4) / "config.json").unlink(),
}


@pytest.mark.parametrize("broken", BROKEN_DENSE)
def test_a_dense_module_that_does_not_fit_is_named(broken: str, folder: Path) -> None:
    """The message names the module's folder."""
    write_sentence_model(folder, kinds=["Transformer", "Pooling", "Dense"])
    BROKEN_DENSE[broken](folder / "2_Dense")
    assert "2_Dense" in refusal(folder)


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b", "..\\x", "c:x"])
def test_a_module_outside_the_folder_is_refused(path: str, folder: Path) -> None:
    """modules.json may only name folders of the model's own."""
    write_sentence_model(folder)
    modules = [
        {"idx": 0, "path": "", "type": "x.Transformer"},
        {"idx": 1, "path": path, "type": "x.Pooling"},
    ]
    write_json(folder / "modules.json", modules)
    assert "out of the folder" in refusal(folder)


def test_the_transformer_may_have_a_folder_of_its_own(folder: Path) -> None:
    """Before sentence-transformers 2 the network lay in 0_Transformer."""
    write_transformer(folder / "0_Transformer", max_position_embeddings=64)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    modules = [
        {"idx": 0, "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    write_json(folder / "modules.json", modules)
    spec = spec_of(folder)
    assert spec.weights == (folder / "0_Transformer" / "model.safetensors",)
    assert (spec.max_tokens, spec.pooling) == (64, "cls")


def test_a_plain_transformers_folder_is_pooled_as_sentence_transformers_would(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Mean, said aloud; the last token for a model that generates; what the operator says comes first."""
    write_transformer(folder)
    with caplog.at_level(logging.WARNING):
        assert spec_of(folder).pooling == "mean"
    assert "does not say how to pool" in caplog.text
    caplog.clear()
    assert read_spec(located(folder), pooling="cls").pooling == "cls"
    assert caplog.text == ""
    assert spec_of(write_transformer(folder, architectures=["Qwen3ForCausalLM"])).pooling == "last"
    assert spec_of(write_transformer(folder, architectures=["XForCausalLM"], is_causal=False)).pooling == "mean"


def test_a_pooling_folder_counts_without_modules_json(folder: Path) -> None:
    """Some hub models carry 1_Pooling/config.json and no modules.json."""
    write_transformer(folder)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    assert spec_of(folder).pooling == "cls"


def test_a_reranker_is_not_served_as_an_embedding_model(folder: Path) -> None:
    """Its hidden states pool into vectors that mean nothing."""
    assert "reranker" in refusal(write_transformer(folder, architectures=["BertForSequenceClassification"]))


@pytest.mark.parametrize(
    ("max_seq_length", "model_max_length", "config", "max_tokens"),
    [
        (256, 512, {}, 256),
        (None, 512, {}, 512),
        (None, 128, {}, 128),
        (None, 1e30, {}, 512),
        (None, None, {}, 512),
        (8192, 512, {"max_position_embeddings": 8192}, 8192),  # max_seq_length outranks the tokenizer's figure
        (1024, 512, {"max_position_embeddings": 512}, 512),  # nothing outranks the position table
        (None, 512, {"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        (8192, 8192, {"model_type": "xlm-roberta", "max_position_embeddings": 8194, "pad_token_id": 1}, 8192),
        (None, 1e30, {"max_position_embeddings": -1}, 512),  # T5: no table; the usual limit
        (None, None, {"max_position_embeddings": None}, 512),
        (0, 128, {}, 128),
        (-1, 0, {}, 512),
        (True, "64", {}, 512),
    ],
)
def test_how_long_a_text_may_be(
    max_seq_length: object, model_max_length: object, config: dict[str, object], max_tokens: int, folder: Path
) -> None:
    """As sentence-transformers decides: its own figure, else the tokenizer's, and never beyond the positions."""
    write_sentence_model(folder, **config)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length})
    write_json(folder / "tokenizer_config.json", {"model_max_length": model_max_length})
    assert spec_of(folder).max_tokens == max_tokens


def test_prompts_and_the_default_prompt(folder: Path) -> None:
    """Prompts come from the model; the operator may choose another of them as default, and only one of them."""
    write_sentence_model(folder)
    prompts = {"query": "query: ", "document": ""}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "document"})
    assert spec_of(folder).prompts == prompts
    assert spec_of(folder).default_prompt_name == "document"
    assert read_spec(located(folder), default_prompt_name="query").default_prompt_name == "query"
    with pytest.raises(ConfigError, match="it has query, document"):
        read_spec(located(folder), default_prompt_name="passage")


@pytest.mark.parametrize(
    "fields",
    [{"prompts": []}, {"prompts": {"a": 3}}, {"prompts": {"a": "x" * 20_001}}, {"default_prompt_name": "a"}],
    ids=lambda fields: str(fields)[:30],
)
def test_prompts_that_are_none_are_refused(fields: dict[str, object], folder: Path) -> None:
    """Prompts are texts of a sane length, and the default is one of them."""
    write_sentence_model(folder)
    write_json(folder / "config_sentence_transformers.json", fields)
    assert "config_sentence_transformers.json" in refusal(folder)


BROKEN: Mapping[str, Callable[[Path], object]] = {
    "config.json": lambda folder: (folder / "config.json").write_text("{"),
    "config.json is": lambda folder: (folder / "config.json").unlink(),
    "modules.json": lambda folder: (folder / "modules.json").write_text("{}"),
    "tokenizer.json": lambda folder: (folder / "tokenizer.json").unlink(),
    "model.safetensors": lambda folder: (folder / "model.safetensors").unlink(),
    "more than 8,388,608 bytes": lambda folder: (folder / "config.json").write_text(" " * (8 * 2**20 + 1)),
    "nested too deeply": lambda folder: (folder / "config.json").write_text("[" * 200_000),
    "model_type": lambda folder: write_json(folder / "config.json", {"model_type": "../evil", "hidden_size": 8}),
    "hidden_size": lambda folder: write_json(folder / "config.json", {"model_type": "bert", "hidden_size": "8"}),
    "expected a JSON object": lambda folder: write_json(folder / "config.json", [1]),
    "a key occurs twice": lambda folder: (folder / "config.json").write_text('{"a": 1, "a": 2}'),
}


@pytest.mark.parametrize("says", BROKEN)
def test_a_broken_folder_says_what_is_wrong(says: str, folder: Path) -> None:
    """Missing, cut off, huge, deep or absurd: one sentence that names the file."""
    BROKEN[says](write_sentence_model(folder))
    assert says.removesuffix(" is") in refusal(folder)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
known_keys = st.sampled_from(
    [
        "model_type",
        "hidden_size",
        "max_position_embeddings",
        "architectures",
        "pad_token_id",
        "pooling_mode",
        "pooling_mode_cls_token",
        "include_prompt",
        "prompts",
        "default_prompt_name",
        "max_seq_length",
        "model_max_length",
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    file=st.sampled_from(
        [
            "config.json",
            "modules.json",
            "1_Pooling/config.json",
            "sentence_bert_config.json",
            "config_sentence_transformers.json",
            "tokenizer_config.json",
        ]
    ),
    value=json_values | st.dictionaries(known_keys, json_values, max_size=4),
)
def test_any_json_is_read_or_refused(tmp_path: Path, file: str, value: object) -> None:
    """Whatever stands in a folder's files, the start goes on or stops with a StartError, and nothing else."""
    folder = write_sentence_model(tmp_path / "model")
    for name in ("sentence_bert_config.json", "config_sentence_transformers.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    write_json(folder / file, value)
    try:
        spec = spec_of(folder)
    except StartError:
        return
    assert 0 < spec.max_tokens <= 2**20
    assert spec.hidden_size > 0


def test_the_fingerprint_is_of_the_vectors_not_of_the_place(tmp_path: Path) -> None:
    """The same files in another folder, under another name and revision, make the same vectors."""
    one, two = (write_sentence_model(tmp_path / name) for name in ("one", "two"))
    renamed = Located(folder=two, model_id="other/name", revision="c" * 40, source="cache")
    assert spec_of(one).fingerprint == read_spec(renamed).fingerprint


CHANGES: Mapping[str, Callable[[Path], object]] = {
    "weights": lambda folder: write_sentence_model(folder, weight=1.5),
    "pooling": lambda folder: write_sentence_model(folder, pooling={"pooling_mode_cls_token": True}),
    "no Normalize": lambda folder: write_sentence_model(folder, kinds=["Transformer", "Pooling"]),
    "prompts": lambda folder: write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "q: "}}),
    "architecture": lambda folder: write_sentence_model(folder, model_type="roberta", max_position_embeddings=None),
    "tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_fingerprint_changes_with_what_makes_the_vectors(change: str, folder: Path) -> None:
    """Vectors of two fingerprints are never compared or taken from the cache for each other."""
    before = spec_of(write_sentence_model(folder)).fingerprint
    CHANGES[change](folder)
    assert spec_of(folder).fingerprint != before


def test_a_change_in_the_middle_of_large_weights_changes_the_fingerprint(folder: Path) -> None:
    """Samples lie all over the file: training changes every tensor, so one of them sees it."""
    write_sentence_model(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(bytes(8 * 2**20))
    before = spec_of(folder).fingerprint
    data = bytearray(weights.read_bytes())
    data[3 * 2**20 : 5 * 2**20] = b"\1" * 2**21
    weights.write_bytes(data)
    assert spec_of(folder).fingerprint != before
