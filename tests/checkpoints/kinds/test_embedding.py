"""Embedding models: pooling, the modules around it, and refused folders."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.checkpoints.folders import write_dense, write_json, write_modules, write_sentence_model, write_transformer
from tests.checkpoints.reading import refusal, spec_of
from tests.models import write_sentence_bert

from vectord.checkpoints.spec import DenseModule, Pooling


@pytest.mark.parametrize("pooling", ["cls", "mean", "last", "max"])
def test_a_folder_of_the_installed_sentence_transformers(pooling: Pooling, tmp_path: Path) -> None:
    """The module names and files that the installed version writes are read."""
    saved = write_sentence_bert(tmp_path, pooling=pooling, dense=(24, 12))
    spec = spec_of(saved)
    assert spec.pooling == pooling
    assert (spec.hidden_size, spec.dimensions, spec.max_tokens) == (32, 12, 512)
    folders = [saved / "2_Dense", saved / "3_Dense"]
    facts = [(32, 24, "tanh"), (24, 12, "identity")]
    assert list(spec.dense_modules) == [
        DenseModule(
            folder=inner,
            weights=inner / "model.safetensors",
            in_features=inputs,
            out_features=outputs,
            bias=True,
            activation=activation,
        )
        for inner, (inputs, outputs, activation) in zip(folders, facts, strict=True)
    ]


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_weightedmean_tokens": True}, "weighted_mean"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
    ],
    ids=str,
)
@pytest.mark.parametrize("new", [False, True], ids=["old names", "new names"])
def test_both_forms_of_a_pooling_configuration(
    config: dict[str, object], pooling: str | tuple[str, ...], new: bool, folder: Path
) -> None:
    """sentence-transformers wrote booleans before version 6, and writes names since. Both forms are read. Several
    poolings make vectors as wide as all together."""
    spec = spec_of(write_sentence_model(folder, pooling=config, new=new))
    assert spec.pooling == pooling
    assert spec.dimensions == 8 * (1 if isinstance(pooling, str) else len(pooling))


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["Transformer"], "in the order Transformer"),
        (["Pooling", "Transformer"], "in the order Pooling, Transformer"),
        (["Router"], "router_config.json"),
        (["Transformer", "Pooling", "Pooling"], "in the order"),
        (["Transformer", "Normalize", "Pooling"], "2_Pooling"),
    ],
    ids=str,
)
def test_unsupported_modules_are_refused(kinds: list[str], message: str, folder: Path) -> None:
    """Skipping or reordering a module would change the vectors silently."""
    assert message in refusal(write_sentence_model(folder, kinds=kinds))


def test_normalize_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    """Normalization is an option of the request, so folders with and without the module share one vector space."""
    with_module = spec_of(write_sentence_model(tmp_path / "with", kinds=["Transformer", "Pooling", "Normalize"]))
    without = spec_of(write_sentence_model(tmp_path / "without", kinds=["Transformer", "Pooling"]))
    assert with_module.fingerprint == without.fingerprint


def test_the_quantizer_of_pplx_embed_makes_another_space(tmp_path: Path) -> None:
    """Its vectors are whole numbers; the module may only be the last one."""
    plain = spec_of(write_sentence_model(tmp_path / "plain", kinds=["Transformer", "Pooling"]))
    spec = spec_of(write_sentence_model(tmp_path / "pplx", kinds=["Transformer", "Pooling", "FlexibleQuantizer"]))
    assert (plain.whole_numbers, spec.whole_numbers) == (None, True)
    assert spec.fingerprint != plain.fingerprint
    kinds = ["Transformer", "Pooling", "FlexibleQuantizer", "Normalize"]
    assert "in the order" in refusal(write_sentence_model(tmp_path / "other", kinds=kinds))


BROKEN_DENSE: Mapping[str, Callable[[Path], object]] = {
    "widths that do not chain": lambda folder: write_dense(folder, 9, 4),
    "a huge width": lambda folder: write_dense(folder, 8, 4, out_features=2**40),
    "half of an odd width": lambda folder: write_dense(folder, 8, 5, activation_function="torch.nn.GLU"),
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
    """modules.json may name folders inside the model's folder only."""
    file = write_sentence_model(folder) / "modules.json"
    file.write_text(file.read_text().replace('"1_Pooling"', json.dumps(path)))
    assert "out of the folder" in refusal(folder)


def test_the_transformer_may_have_its_own_folder(folder: Path) -> None:
    """Versions before sentence-transformers 2 saved the network in 0_Transformer."""
    write_transformer(folder / "0_Transformer", max_position_embeddings=64)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    write_modules(folder, "Transformer", "Pooling")
    file = folder / "modules.json"
    file.write_text(file.read_text().replace('"path": ""', '"path": "0_Transformer"'))
    spec = spec_of(folder)
    assert spec.weights == (folder / "0_Transformer" / "model.safetensors",)
    assert (spec.max_tokens, spec.pooling) == (64, "cls")


def test_a_plain_transformers_folder_is_pooled_as_in_sentence_transformers(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The default is mean with a warning, or the last token for generative models; the operator's choice wins."""
    write_transformer(folder)
    with caplog.at_level(logging.WARNING):
        assert spec_of(folder).pooling == "mean"
    assert "has no pooling configuration" in caplog.text
    caplog.clear()
    assert spec_of(folder, pooling="cls").pooling == "cls"
    assert caplog.text == ""
    assert spec_of(write_transformer(folder, architectures=["Qwen3ForCausalLM"])).pooling == "last"
    assert spec_of(write_transformer(folder, architectures=["XForCausalLM"], is_causal=False)).pooling == "mean"


def test_a_pooling_folder_counts_without_modules_json(folder: Path) -> None:
    """Some hub models have 1_Pooling/config.json and no modules.json."""
    write_transformer(folder)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    assert spec_of(folder).pooling == "cls"


@pytest.mark.parametrize("name", ["2_Dense", "2_WeightedLayerPooling"])
def test_a_module_without_modules_json_is_refused(name: str, folder: Path) -> None:
    """An incomplete download: without the module, all vectors would be others."""
    write_transformer(folder)
    write_json(folder / "3_Normalize" / "config.json", {})
    assert spec_of(folder).pooling == "mean"
    write_json(folder / name / "config.json", {})
    assert f"modules.json: missing, though there is a module {name}" in refusal(folder)


@pytest.mark.parametrize(
    "kind",
    [
        *("BoW", "CLIPModel", "CNN", "CSRSparsity", "LSTM", "SparseAutoEncoder", "WeightedLayerPooling"),
        *("WordEmbeddings", "WordWeights", "TransformerTokenPooling", "made_up"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "second", "last"])
def test_a_module_that_is_not_supported_is_refused_by_name(kind: str, place: int, folder: Path) -> None:
    """Wherever it stands, and whatever its folder holds."""
    kinds = ["Transformer", "Pooling"]
    kinds.insert(place, kind)
    write_sentence_model(folder, kinds=kinds)
    message = refusal(folder)
    assert "modules.json" in message and repr(kind) in message


def test_dropout_is_ignored(folder: Path) -> None:
    """Dropout has an effect in training only."""
    assert spec_of(write_sentence_model(folder, kinds=["Transformer", "Pooling", "Dropout", "Normalize"])).pooling


@pytest.mark.parametrize(
    ("pooling", "activation", "served"),
    [
        ("cls", "Tanh", True),
        ("lasttoken", "Tanh", True),
        ("mean", "Identity", True),
        ("mean", "Tanh", False),
        ("mean_sqrt_len_tokens", "Identity", False),
        ("cls", "Softmax", False),
    ],
)
def test_a_dense_module_before_pooling(pooling: str, activation: str, served: bool, folder: Path) -> None:
    """It runs after pooling if that gives the same numbers, and is refused otherwise."""
    write_sentence_model(folder, kinds=["Transformer", "Dense", "Pooling"])
    write_dense(
        folder / "1_Dense", 8, 4, activation_function=f"torch.nn.{activation}", module_input_name="token_embeddings"
    )
    write_json(folder / "2_Pooling" / "config.json", {"pooling_mode": pooling})
    if served:
        assert spec_of(folder).dimensions == 4
    else:
        assert "1_Dense" in refusal(folder)


def test_an_unknown_activation_of_a_dense_module_can_be_ignored(folder: Path) -> None:
    """The module then computes as one without the key. The error names the option."""
    write_sentence_model(folder, kinds=["Transformer", "Pooling", "Dense"])
    write_dense(folder / "2_Dense", 8, 4, activation_function="torch.nn.RReLU")
    assert refusal(folder).endswith("--allow-unknown-config activation_function ignores it")
    assert spec_of(folder, allow_unknown=["activation_function"]).dense_modules[0].activation == "tanh"


def test_the_catalogue_supplies_missing_facts(folder: Path) -> None:
    """The catalogue has the pooling, prompts and matryoshka dimensions that this folder lacks."""
    write_transformer(folder, hidden_size=768, model_type="nomic_bert")
    spec = spec_of(folder, name="nomic-ai/nomic-embed-text-v1.5")
    assert spec.pooling == "mean"
    assert spec.prompts["query"] == "search_query: "
    assert spec.matryoshka == (64, 128, 256, 512, 768)
    assert spec_of(folder).matryoshka is None


@pytest.mark.parametrize(
    ("listed", "dimensions"),
    [([8, 2, 4, 4], (2, 4, 8)), ([], ()), ([16], None), ("8", None), ([True], None), ([0], None)],
    ids=str,
)
def test_matryoshka_dimensions_of_the_model(listed: object, dimensions: tuple[int, ...] | None, folder: Path) -> None:
    """The list in config.json is sorted, and refused unless each entry is at most the model's dimensions."""
    write_transformer(folder, matryoshka_dimensions=listed)
    if dimensions is None:
        assert "matryoshka_dimensions" in refusal(folder)
    else:
        assert spec_of(folder).matryoshka == dimensions


@pytest.mark.parametrize(("pooling", "labels"), [("mean", 5), ("max", 4)], ids=["another width", "largest numbers"])
def test_a_projection_that_cannot_follow_the_pooling_is_refused(folder: Path, pooling: Pooling, labels: int) -> None:
    """voyage-4-nano's layer runs after pooling: its width must be num_labels, and the pooling must be linear."""
    own = {"auto_map": {"AutoModel": "modeling.Model"}, "use_bidirectional_attention": True}
    write_transformer(folder, model_type="qwen3", num_labels=labels, **own)
    write_dense(folder / "dense", 8, 4)
    (folder / "dense" / "model.safetensors").rename(folder / "model.safetensors")
    assert "linear.weight of shape [4, 8] is supported as num_labels x hidden_size" in refusal(folder, pooling=pooling)


@pytest.mark.parametrize(
    "kind", ["mypackage.Pooling", "Pooling", "sentence_transformers.Pooling", "pylate.models.Pooling"]
)
def test_a_class_of_another_package_is_refused(kind: str, folder: Path) -> None:
    """It may compute something else under the same name; the operator can allow it."""
    path = write_sentence_model(folder) / "modules.json"
    path.write_text(path.read_text().replace("sentence_transformers.models.Pooling", kind))
    assert f"type {kind!r} of the module '1_Pooling' is not a class" in refusal(folder)
    assert spec_of(folder, allow_unknown=["type"]).pooling == "mean"


def test_two_modules_of_one_name_are_refused(folder: Path) -> None:
    """sentence-transformers would keep only the last of them."""
    path = write_sentence_model(folder) / "modules.json"
    path.write_text(path.read_text().replace('"name": "2"', '"name": "1"'))
    assert "a name of its own" in refusal(folder)
