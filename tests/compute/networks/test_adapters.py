"""Adapters chosen by each text: the numbers of merged weights, in batches of any mixture, on every op set."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.compute.networks.case import Texts, numpy_answer, texts_of
from tests.compute.networks.jina_tasks import TASKS, task_states, write_jina_tasks
from tests.compute.networks.tiny_encoders import CASES
from tests.models import pack_texts
from tests.reference.references import run_reference

from vectord.checkpoints.adapters import read_adapter, read_tasks
from vectord.checkpoints.folder import open_folder
from vectord.checkpoints.reader import read_spec
from vectord.checkpoints.spec import Located, ModelSpec
from vectord.compute.backends.base import BackendOptions, TokenBatch
from vectord.errors import ModelUnavailable

PEFT: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none", "use_dora": False}
TEXTS = texts_of(9, 1, 20, 2, 7)
PLACES = {"A": (4, 128), "B": (32, 4)}  # of the table of positions
MIXED = (2, 0, 1, 5, 2)  # the adapter of each text; 0: none


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jina_tasks(tmp_path_factory.mktemp("jina"))


@pytest.fixture(scope="module")
def spec(folder: Path) -> ModelSpec:
    return spec_of(folder)


def spec_of(folder: Path, **facts: Any) -> ModelSpec:
    located = Located(folder=folder, model_id="jina", revision=None, source="folder")
    return CASES["xlm_roberta"].spec(folder, adapters=read_tasks(open_folder(located)), **facts)


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """The states of each text of a mixed batch, by transformers over merged weights."""
    names = [None if number == 0 else TASKS[number - 1] for number in MIXED]
    return [
        task_states(folder, [text], name, tmp_path_factory.mktemp("merged"))
        for text, name in zip(TEXTS, names, strict=True)
    ]


def test_a_mixed_batch_equals_merged_weights(spec: ModelSpec, expected: Sequence[np.ndarray]) -> None:
    """Words, token type, attention and MLP of each text use its own task."""
    got = numpy_answer(spec, TEXTS, adapters=np.array(MIXED, np.int32))
    np.testing.assert_allclose(got, np.concatenate(expected), atol=1e-5)
    plain = numpy_answer(spec, TEXTS)
    assert abs(got - plain).max() > 0.1  # the tasks matter in this model


@pytest.mark.parametrize("backend", ["openvino", "torch"])
def test_backends_compute_mixed_batches(backend: str, spec: ModelSpec, expected: Sequence[np.ndarray]) -> None:
    """A mixed batch gives each text what a batch of its own gives it, and texts without adapters the plain numbers."""
    loaded = import_module(f"vectord.compute.backends.{backend}").load(
        spec, BackendOptions(device="cpu", dtype="float32")
    )
    try:
        mixed = pack_texts(*TEXTS, adapters=np.array(MIXED, np.int32))
        got = loaded.forward(TokenBatch(texts=mixed, outputs=frozenset({"tokens"})), 0)["tokens"]
        plain = loaded.forward(TokenBatch(texts=pack_texts(*TEXTS), outputs=frozenset({"tokens"})), 0)["tokens"]
    finally:
        loaded.close()
    np.testing.assert_allclose(got, np.concatenate(expected), atol=1e-4)
    np.testing.assert_allclose(plain, numpy_answer(spec, TEXTS), atol=1e-4)


# --- folders of peft ----------------------------------------------------------------------------------------


def write_peft(folder: Path, base: Path, layers: Sequence[str], *, seed: int, **config: Any) -> Path:
    """An adapter of these layers of a model, under the names that peft 0.21 writes."""
    settings = {**PEFT, "target_modules": sorted({layer.rpartition(".")[2] for layer in layers}), **config}
    weights, tensors = load_file(base / "model.safetensors"), {}
    generator = torch.Generator().manual_seed(seed)
    for layer in layers:
        outputs, inputs = weights[f"{layer}.weight"].shape
        names, shapes = ("lora_A.weight", "lora_B.weight"), ((settings["r"], inputs), (outputs, settings["r"]))
        if layer.endswith("embeddings"):
            names = ("lora_embedding_A", "lora_embedding_B")
            shapes = ((settings["r"], outputs), (inputs, settings["r"]))
        for name, shape in zip(names, shapes, strict=True):
            tensors[f"base_model.model.{layer}.{name}"] = torch.randn(shape, generator=generator) * 0.2
        if settings["use_dora"]:
            lengths = torch.rand(outputs, generator=generator) + 0.5
            tensors[f"base_model.model.{layer}.lora_magnitude_vector"] = lengths
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def merged_states(
    base: Path,
    adapter: Path,
    scratch: Path,
    text: Sequence[int],
    reference: Callable[[Path, Texts], np.ndarray] = CASES["bert"].reference,
) -> np.ndarray:
    """The states of one text by transformers, with the adapter in the weights: W + B A * scale; with DoRA, each row has
    the length of the file."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    shutil.copytree(base, scratch)
    weights, changes = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name, a in changes.items():
        layer, _, side = name.removeprefix("base_model.model.").rpartition(".lora_")
        if side == "A.weight":
            weights[f"{layer}.weight"] += changes[name.replace("lora_A", "lora_B")] @ a * scale
            lengths = changes.get(name.replace("lora_A.weight", "lora_magnitude_vector"))
            if lengths is not None:
                weights[f"{layer}.weight"] *= (lengths / weights[f"{layer}.weight"].norm(dim=1))[:, None]
        if side == "embedding_A":
            weights[f"{layer}.weight"] += (changes[name.replace("_A", "_B")] @ a).T * scale
    save_file(weights, scratch / "model.safetensors", {"format": "pt"})
    return reference(scratch, [text])


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CASES["bert"].write(tmp_path_factory.mktemp("bert"))


# The further keys that peft 0.21 writes, and their defaults.
WRITTEN: dict[str, Any] = {
    **dict.fromkeys(("alora_invocation_tokens", "arrow_config", "auto_mapping", "corda_config", "eva_config")),
    **dict.fromkeys(("exclude_modules", "kasa_config", "layer_replication", "layers_pattern", "layers_to_transform")),
    **dict.fromkeys(("lora_ga_config", "megatron_config", "modules_to_save", "monteclora_config", "revision")),
    **dict.fromkeys(("target_parameters", "task_type", "trainable_token_indices", "use_bdlora", "velora_config")),
    **dict.fromkeys(("ensure_weight_tying", "fan_in_fan_out", "inference_mode", "lora_bias", "use_qalora"), False),
    **{key: {} for key in ("alpha_pattern", "loftq_config", "rank_pattern")},
    "base_model_name_or_path": "me/bert",
    "init_lora_weights": True,
    "lora_dropout": 0.0,
    "megatron_core": "megatron.core",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "use_rslora": False,
}
ATTENTION = ("encoder.layer.0.attention.self.query", "encoder.layer.1.attention.self.value")
FURTHER = ("embeddings.word_embeddings", "encoder.layer.1.intermediate.dense", "encoder.layer.1.output.dense")


def test_adapters_of_other_ranks_and_layers_share_a_batch(bert: Path, tmp_path: Path) -> None:
    """One of peft's changes attention, one the words and an MLP too, scaled by its rank's root, and one is DoRA."""
    folders = [
        write_peft(tmp_path / "a", bert, ATTENTION, seed=1),
        write_peft(tmp_path / "b", bert, (*ATTENTION, *FURTHER), seed=2, r=2, use_rslora=True),
        write_peft(tmp_path / "c", bert, (*ATTENTION[1:], *FURTHER[1:]), seed=3, r=2, use_dora=True),
    ]
    spec = CASES["bert"].spec(bert, adapters=tuple(read_adapter(folder.name, folder) for folder in folders))
    got = numpy_answer(spec, TEXTS[:4], adapters=np.array([1, 0, 2, 3], np.int32))
    want = [
        merged_states(bert, folders[0], tmp_path / "first", TEXTS[0]),
        CASES["bert"].reference(bert, [TEXTS[1]]),
        merged_states(bert, folders[1], tmp_path / "second", TEXTS[2]),
        merged_states(bert, folders[2], tmp_path / "third", TEXTS[3]),
    ]
    np.testing.assert_allclose(got, np.concatenate(want), atol=1e-5)


VALUES: tuple[Any, ...] = (None, True, False, 0, 7, 0.5, float("nan"), "x", [], ["x"], {"a": 1})
VALUES_OF: Mapping[str, Sequence[Any]] = {  # further values of a key
    "alpha_pattern": ({"query": 8}, {"1.attention.self.value": 8, "value": 2}, {"^query": 8}),
    "bias": ("all", "lora_only"),
    "exclude_modules": (["query"], ["layer.1.attention.self.value"], "query", ["uery"]),
    "init_lora_weights": ("eva", "gaussian", "loftq", "olora", "orthogonal", "pissa"),
    "layer_replication": ([[0, 1]], [[0, 2], [1, 2]]),
    "layers_pattern": ("layer", ["layer"]),
    "layers_to_transform": ([0], [1], [0, 1], [0, 1, 9]),
    "modules_to_save": (["pooler"], ["classifier"]),
    "peft_type": ("IA3", "LOHA", "lora"),
    "r": (2, 8),
    "rank_pattern": ({"query": 2}, {"query": 4}, {"(a|b)+": 2}),
    "target_modules": ("all-linear", ".*(query|value)", ["query"], ["query", "value", "dense"], ["uery", "value"]),
    "task_type": ("FEATURE_EXTRACTION", "SEQ_CLS"),
    "trainable_token_indices": ([3],),
}
REMOVED = object()
# Names, versions, and settings of training: their form does not matter, though peft checks it.
NO_EFFECT = {"auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "inference_mode", "lora_dropout"} | {
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "task_type",
}


def test_a_changed_setting_of_an_adapter_gives_pefts_numbers_or_is_refused(bert: Path, tmp_path: Path) -> None:
    """Each key that peft 0.21 writes, and an unknown one. Where peft raises an error, only a refusal passes."""
    folder = write_peft(tmp_path / "a", bert, (*ATTENTION, *FURTHER), seed=1, **WRITTEN)
    file = folder / "adapter_config.json"
    saved, accepted, wrong = json.loads(file.read_text()), [], []
    spec = CASES["bert"].spec(bert, adapters=(read_adapter("a", folder),))
    unchanged = numpy_answer(spec, TEXTS[:1], adapters=np.array([1], np.int32))
    cases = [
        (key, value)
        for key in (*saved, "of_tomorrow")
        for value in (*VALUES, *VALUES_OF.get(key, ()), *[REMOVED][: saved.get(key) is not None])
        if type(own := saved.get(key, REMOVED)) is not type(value) or own != value
    ]
    for key, value in cases:
        config = {**saved, key: value}
        if value is REMOVED:
            config.pop(key)
        file.write_text(json.dumps(config))
        try:
            spec = CASES["bert"].spec(bert, adapters=(read_adapter("a", folder),))
            got = numpy_answer(spec, TEXTS[:1], adapters=np.array([1], np.int32))
        except ModelUnavailable as refused:
            if not any(word in str(refused) for word in (key, "lora_A")):
                wrong.append(f"{key} {value!r}: {refused}")
            continue
        if key not in NO_EFFECT:
            accepted.append((key, value, config, got))
        elif not np.array_equal(got, unchanged):
            wrong.append(f"{key} {value!r} changes the numbers")
    accepted.append(("nothing", None, saved, unchanged))
    configs = [config for _, _, config, _ in accepted]
    want = run_reference("peft_lora", bert, {"adapter": str(folder), "configs": configs, "ids": TEXTS[0]})
    for i, (key, value, _, got) in enumerate(accepted):
        if str(i) not in want or not np.allclose(got, want[str(i)], atol=1e-4):
            wrong.append(f"{key} {value!r} is accepted; peft {'differs' if str(i) in want else 'raises an error'}")
    assert not wrong, "\n".join(["", *wrong])


def test_the_operator_may_ignore_the_list_of_an_adapters_layers(bert: Path, tmp_path: Path) -> None:
    """A regular expression of a folder is not run; the tensors then show the layers."""
    folder = write_peft(tmp_path / "a", bert, ATTENTION, seed=1, target_modules=".*(query|value)")
    with pytest.raises(ModelUnavailable, match=r"target_modules '\.\*.* --allow-unknown-config target_modules"):
        read_adapter("a", folder)
    assert read_adapter("a", folder, frozenset({"target_modules"})).rank == 4


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"encoder.layer.9.output.dense.lora_A.weight": (4, 48)}, "no layer encoder.layer.9"),
        ({"encoder.layer.0.output.dense.lora_A.weight": (4, 48)}, "only one of A and B"),
        ({"encoder.layer.0.output.dense.weight": (32, 48)}, "neither A nor B"),
        (
            {f"embeddings.position_embeddings.lora_embedding_{side}": shape for side, shape in PLACES.items()},
            "position_embeddings.lora",
        ),
    ],
    ids=["another layer", "half", "a whole layer", "a layer that stays fixed"],
)
def test_tensors_of_an_adapter_that_would_be_left_out_are_refused(
    tensors: dict[str, tuple[int, int]], message: str, bert: Path, tmp_path: Path
) -> None:
    """The error names one."""
    names = ["query", "value", "dense", "position_embeddings"]
    folder = write_peft(tmp_path / "a", bert, ATTENTION, seed=1, target_modules=names)
    file = folder / "adapter_model.safetensors"
    added = {f"base_model.model.{name}": torch.zeros(shape) for name, shape in tensors.items()}
    save_file({**load_file(file), **added}, file)
    spec = CASES["bert"].spec(bert, adapters=(read_adapter("a", folder),))
    with pytest.raises(ModelUnavailable, match=message):
        numpy_answer(spec, TEXTS)


def test_adapters_in_folders_of_the_model_are_found(
    bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the names of their folders, also below adapters/ as in jina-embeddings-v5; none with adapter_config.json in
    allow_unknown_config. Without a default, the log names them: texts without a task get the vectors of the base."""
    folder = shutil.copytree(bert, tmp_path / "model")
    (folder / "tokenizer.json").write_text("{}")
    write_peft(folder / "legal", bert, ATTENTION, seed=1)
    write_peft(folder / "adapters" / "retrieval", bert, ATTENTION, seed=2)
    located = Located(folder=folder, model_id="mine", revision=None, source="folder")
    assert sorted(adapter.name for adapter in read_spec(located).adapters) == ["legal", "retrieval"]
    assert [line for line in caplog.messages if "retrieval, legal" in line]
    caplog.clear()
    assert read_spec(located, allow_unknown=["adapter_config.json"]).adapters == ()
    assert not [line for line in caplog.messages if "retrieval, legal" in line]
