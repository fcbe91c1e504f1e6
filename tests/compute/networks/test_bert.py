"""BERT on the reference op set against transformers, and errors for configs and checkpoints that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest
from tests.compute.networks.case import Texts, numpy_answer, pad, padded_states
from tests.models import random_texts, read_tiny_spec, write_bert
from transformers import BertModel

from vectord.checkpoints.checkpoint import Weight, open_checkpoint
from vectord.compute import networks
from vectord.compute.networks.architecture import Architecture
from vectord.compute.networks.decoder import DecoderArchitecture, LanguageModel
from vectord.compute.networks.encoder import EncoderArchitecture
from vectord.compute.networks.network import ARCHITECTURES, Network, class_of
from vectord.compute.ops.numpy import NumpyOps
from vectord.errors import ModelUnavailable

LENGTHS = (9, 1, 30, 2, 17)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert"))


def hidden_states(folder: Path, texts: Texts, **options: Any) -> np.ndarray:
    """Last hidden states by the reference op set, (T, H)."""
    return numpy_answer(read_tiny_spec(folder), texts, **options)


def transformers_states(folder: Path, texts: Texts, type_ids: Texts) -> np.ndarray:
    """The same by transformers in float64, on a padded batch, (T, H)."""
    return padded_states(BertModel.from_pretrained(folder), texts, token_type_ids=pad(type_ids)[0])


def test_token_types_are_used(folder: Path) -> None:
    """The second text of a pair has type 1, as in transformers."""
    texts = random_texts((12, 6))
    type_ids = [[0] * 5 + [1] * 7, [0] * 6]
    flat = np.array(type_ids[0] + type_ids[1], np.int32)
    want = transformers_states(folder, texts, type_ids)
    np.testing.assert_allclose(hidden_states(folder, texts, type_ids=flat), want, atol=1e-8)


def tensorflow_name(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize("rename", ["bert.{}".format, tensorflow_name], ids=["under a head", "as TensorFlow's"])
def test_other_names_of_tensors_are_read(folder: Path, rename: Callable[[str], str]) -> None:
    """With "bert.", as in a model saved with a head, and gamma and beta, as in bert-base-uncased."""
    spec = read_tiny_spec(folder)
    weights = {rename(name): weight for name, weight in open_checkpoint(spec.weights).items()}
    texts = random_texts(LENGTHS)
    np.testing.assert_array_equal(numpy_answer(spec, texts, weights=weights), hidden_states(folder, texts))


CONFIG_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "relative positions": ({"position_embedding_type": "relative_key"}, "position_embedding_type must be 'absolute'"),
    "a decoder": ({"is_decoder": True}, "is_decoder must be False"),
    "unknown activation": ({"hidden_act": "laplace"}, "hidden_act must be one of gelu, "),
    "no layers entry": ({"num_hidden_layers": None}, "num_hidden_layers must be a whole number .* found nothing"),
    "a million layers": ({"num_hidden_layers": 10**6}, "num_hidden_layers must be a whole number from 1 to 1024"),
    "fraction as a size": ({"intermediate_size": 48.5}, "intermediate_size must be a whole number"),
    "heads that do not divide": ({"num_attention_heads": 5}, "32 is not a multiple of num_attention_heads 5"),
    "epsilon of zero": ({"layer_norm_eps": 0}, "layer_norm_eps must be a number between 0 and 1"),
    "wider than the checkpoint": ({"vocab_size": 4000}, r"word_embeddings.weight is \d+ x 32; .* should be 4000 x 32"),
    "more layers than the checkpoint": ({"num_hidden_layers": 3}, "no tensor encoder.layer.2.attention.self.query.w"),
}


@pytest.mark.parametrize(("change", "message"), CONFIG_FAULTS.values(), ids=CONFIG_FAULTS)
def test_an_unsuitable_config_is_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    """The error names the key and the expected value."""
    spec = read_tiny_spec(folder)
    wrong = read_tiny_spec(folder, config={**spec.config, **change})
    with pytest.raises(ModelUnavailable, match=message):
        Network(wrong, open_checkpoint(spec.weights), NumpyOps())


def without(name: str, weights: Mapping[str, Weight]) -> Iterator[tuple[str, Weight]]:
    return ((key, weight) for key, weight in weights.items() if key != name)


@pytest.mark.parametrize("name", ["embeddings.LayerNorm.bias", "encoder.layer.1.attention.self.key.bias"])
def test_a_missing_tensor_is_named(folder: Path, name: str) -> None:
    """An incomplete checkpoint stops the load."""
    spec = read_tiny_spec(folder)
    with pytest.raises(ModelUnavailable, match=f"no tensor (named )?{name}"):
        Network(spec, dict(without(name, open_checkpoint(spec.weights))), NumpyOps())


def test_every_architecture_of_the_folder_is_listed() -> None:
    """A class that ARCHITECTURES does not name would never be used."""
    modules = [import_module(f"{networks.__name__}.{module.name}") for module in iter_modules(networks.__path__)]
    found = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    classes = {each for each in found if issubclass(each, Architecture)} - {
        Architecture,
        EncoderArchitecture,
        DecoderArchitecture,
        LanguageModel,
    }
    assert classes == {class_of(architecture) for architecture in ARCHITECTURES}


def test_a_single_type_belongs_to_every_token(tmp_path: Path) -> None:
    """A tokenizer that marks the second text of a pair cannot read beyond a table of one row."""
    folder = write_bert(tmp_path, type_vocab_size=1)
    texts = random_texts((12, 6))
    types = np.repeat(np.array([0, 1], np.int32), 9)
    np.testing.assert_array_equal(hidden_states(folder, texts, type_ids=types), hidden_states(folder, texts))
