"""Every tensor of a checkpoint is read, or known to have no effect; else the model is refused."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from tests.models import read_tiny_spec, write_bert, write_sentence_bert

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.files.weight import Weight
from vectord.checkpoints.spec import Output
from vectord.compute.backends import transformers as transformers_backend
from vectord.compute.backends.base import BackendOptions
from vectord.compute.networks.network import Network
from vectord.compute.networks.weights import check_all_read
from vectord.compute.ops.numpy import NumpyOps
from vectord.errors import ModelUnavailable


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert"))


def make_network(folder: Path, extra: Mapping[str, np.ndarray]) -> Network[np.ndarray]:
    spec = read_tiny_spec(folder)
    dtypes = {np.dtype(np.float32): "F32", np.dtype(np.int64): "I64"}
    added = {name: Weight(name, dtypes[array.dtype], array) for name, array in extra.items()}  # type: ignore[arg-type]
    return Network(spec, {**open_checkpoint(spec.weights), **added}, NumpyOps())


@pytest.mark.parametrize(
    "name",
    ["linear.weight", "encoder.layer.2.output.dense.weight", "encoder.adapter.weight", "bert.embeddings.scale"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int64], ids=["float", "integer"])
def test_a_tensor_that_the_network_does_not_read_is_refused(folder: Path, name: str, dtype: type) -> None:
    """A projection or layer that the network leaves out would give plausible but wrong vectors."""
    with pytest.raises(ModelUnavailable, match=f"tensors {name} .1 in all. have no place in a network of .*'bert'"):
        make_network(folder, {name: np.zeros((2, 2), dtype)})


def test_the_error_names_the_first_tensors_and_their_number(folder: Path) -> None:
    """A checkpoint of another network may have thousands of others."""
    with pytest.raises(ModelUnavailable, match=r"tensors a0, a1, a2, \.\.\. \(9 in all\)"):
        make_network(folder, {f"a{i}": np.zeros(2, np.float32) for i in range(9)})


HARMLESS = (
    "bert.embeddings.position_ids",
    "embeddings.token_type_ids",
    "layers.3.self_attn.rotary_emb.inv_freq",
    "bert.pooler.dense.weight",
    "pooler.dense.bias",
    "cls.predictions.decoder.weight",
    "cls.seq_relationship.bias",
    "lm_head.weight",
    "lm_head.dense.bias",
    "vocab_projector.bias",
    "deberta.embeddings.word_embeddings._weight",
    "mask_predictions.dense.weight",
    "classifier.weight",
    "classifier.out_proj.bias",
    "pre_classifier.weight",
    "score.weight",
    "head.dense.weight",
    "decoder.bias",
)


def test_tensors_without_effect_on_a_vector_are_ignored(folder: Path) -> None:
    """Buffers, poolers, and heads of pretraining and other tasks: the reference libraries load only the body too."""
    make_network(folder, dict.fromkeys(HARMLESS, np.zeros(2, np.float32)))


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("scores", "classifier.gate.weight"),
        ("scores", "score.bias"),
        ("splade", "cls.predictions.transform.gate.weight"),
        ("splade", "vocab_transform.scale"),
    ],
)
def test_a_served_head_is_read_completely(output: Output, name: str) -> None:
    """Tensors of a head are harmless only while another output is served."""
    check_all_read({name}, {"dense"}, "bert")
    with pytest.raises(ModelUnavailable, match=name):
        check_all_read({name}, {output}, "bert")


@pytest.mark.parametrize(
    "unread",
    [
        {
            "cls.predictions.decoder.weight",
            "cls.predictions.bias",
            "cls.seq_relationship.weight",
            "bert.pooler.dense.bias",
        },
        {"lm_head.decoder.weight", "lm_head.bias"},
        {"vocab_projector.weight"},
        {"decoder.weight"},
    ],
    ids=["bert", "roberta", "distilbert", "modernbert"],
)
def test_second_names_of_the_word_head_are_ignored(unread: Collection[str]) -> None:
    """The matrix may be the tied word vectors, and the bias may be stored twice."""
    check_all_read(unread, {"splade"}, "bert")


def test_a_tensor_of_integers_is_not_a_weight(folder: Path) -> None:
    """A quantized matrix has the float matrix's shape, and its numbers mean something else."""
    name = "encoder.layer.0.output.dense.weight"
    with pytest.raises(ModelUnavailable, match=f"tensor {name} is I64; supported are BF16, F16, F32"):
        make_network(folder, {name: np.zeros((32, 48), np.int64)})


def test_a_dense_module_is_read_completely(tmp_path: Path) -> None:
    """A bias that its config.json denies stops the load, as in sentence-transformers."""
    folder = write_sentence_bert(tmp_path, dense=(8,))
    spec = read_tiny_spec(folder, outputs=frozenset({"dense"}))
    config = folder / "2_Dense" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "bias": False}))
    wrong = read_tiny_spec(folder, outputs=frozenset({"dense"}))
    Network(spec, open_checkpoint(spec.weights), NumpyOps())
    with pytest.raises(ModelUnavailable, match=r"2_Dense.*linear\.bias is not one of this layer's"):
        Network(wrong, open_checkpoint(spec.weights), NumpyOps())


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_the_transformers_backend_refuses_them_too(folder: Path, tmp_path: Path, suffix: str) -> None:
    """transformers itself only warns, in safetensors files and torch files alike."""
    path = tmp_path / f"model.{suffix}"
    weights = {
        **safetensors.numpy.load_file(folder / "model.safetensors"),
        "linear.weight": np.zeros((2, 2), np.float32),
    }
    if suffix == "bin":
        torch.save({name: torch.from_numpy(array) for name, array in weights.items()}, path)
    else:
        safetensors.numpy.save_file(weights, path)
    spec = read_tiny_spec(folder, weights=(path,), outputs=frozenset({"dense"}))
    with pytest.raises(ModelUnavailable, match=r"tensors linear\.weight .1 in all."):
        transformers_backend.load(spec, BackendOptions(device="cpu"))
    with pytest.raises(ModelUnavailable, match=r"tensors linear\.weight .1 in all."):
        Network(spec, open_checkpoint(spec.weights), NumpyOps())
