"""Every tensor of a checkpoint is read, or known to have no effect; else the model is refused."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors.torch import load_file, save_file
from tests.compute.networks import tiny_decoders, tiny_encoders
from tests.compute.networks.case import backend_answer
from tests.models import random_texts, read_tiny_spec, write_bert, write_sentence_bert

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.files.weight import Weight
from vectord.checkpoints.spec import Output
from vectord.compute.backends import transformers as transformers_backend
from vectord.compute.backends.base import BackendOptions
from vectord.compute.networks.network import Network, class_of
from vectord.compute.networks.weights import check_all_read
from vectord.compute.ops.numpy import NumpyOps
from vectord.errors import ModelUnavailable

CASES = {**tiny_encoders.CASES, **tiny_decoders.CASES}


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


# Tensors that published checkpoints of an architecture have and a vector does not need.
KNOWN: dict[str, tuple[str, ...]] = {
    "albert": ("albert.pooler.weight", "predictions.decoder.weight", "sop_classifier.classifier.bias"),
    "bert": (
        "bert.embeddings.position_ids",
        "bert.pooler.dense.weight",
        "cls.predictions.transform.dense.weight",
        "cls.seq_relationship.bias",
        "classifier.weight",
        "qa_outputs.bias",
    ),
    "deberta_v2": (
        "deberta.embeddings.word_embeddings._weight",
        "lm_predictions.lm_head.dense.weight",
        "mask_predictions.dense.weight",
        "pooler.dense.bias",
    ),
    "distilbert": ("vocab_projector.bias", "vocab_transform.weight", "pre_classifier.weight"),
    "electra": ("discriminator_predictions.dense.weight", "generator_lm_head.bias", "classifier.out_proj.bias"),
    "embedding_gemma2": ("vision_tower.layers.0.weight", "embed_audio.weight", "lm_head.weight"),
    "eurobert": ("lm_head.weight", "classifier.weight", "dense.bias"),
    "gte": ("lm_head.dense.weight", "new.pooler.dense.weight", "classifier.bias"),
    "jina_bert_v2": ("cls.predictions.decoder.weight", "pooler.dense.weight"),
    "llama": ("lm_head.weight", "score.weight", "model.layers.3.self_attn.rotary_emb.inv_freq"),
    "modernbert": ("head.dense.weight", "decoder.bias", "classifier.bias"),
    "mpnet": ("lm_head.layer_norm.weight", "mpnet.pooler.dense.bias"),
    "nomic_bert": ("cls.predictions.bias", "classifier.weight"),
    "qwen3": ("lm_head.weight", "score.weight"),
    "t5": ("decoder.block.0.layer.0.SelfAttention.q.weight", "shared.weight", "lm_head.weight"),
    "xlm_roberta": ("roberta.pooler.dense.weight", "lm_head.bias", "classifier.out_proj.weight"),
}
FOREIGN: dict[str, tuple[str, ...]] = {  # harmless in another architecture
    "albert": ("cls.predictions.bias", "pooler.dense.weight", "lm_head.weight"),
    "bert": ("lm_head.weight", "vocab_projector.weight", "head.dense.weight", "pooler.weight", "score.dense.weight"),
    "distilbert": ("distilbert.pooler.dense.weight", "cls.predictions.bias"),
    "electra": ("electra.pooler.dense.weight_g", "vocab_projector.weight"),
    "llama": ("cls.predictions.bias", "pooler.dense.weight", "vision_tower.layers.0.weight", "decoder.weight"),
    "modernbert": ("lm_head.weight", "cls.predictions.bias", "mask_predictions.dense.weight"),
    "qwen3": ("linear.weight", "model.embeddings.position_ids", "vision_tower.layers.0.weight"),
    "t5": ("encoder.pooler.dense.weight", "head.dense.weight", "cls.predictions.bias"),
    "xlm_roberta": ("cls.predictions.bias", "decoder.weight", "vocab_transform.bias"),
}


def network_of(name: str, folder: Path, extra: Collection[str]) -> Network[np.ndarray]:
    """The tiny model of an architecture, with further tensors."""
    case = CASES[name]
    spec = case.spec(case.write(folder))
    weights = {tensor: Weight(tensor, "F32", np.zeros((2, 2), np.float32)) for tensor in extra}
    return Network(spec, {**weights, **open_checkpoint(spec.weights)}, NumpyOps())


@pytest.mark.parametrize("name", KNOWN)
def test_tensors_without_effect_on_a_vector_are_ignored(name: str, tmp_path: Path) -> None:
    """Buffers, poolers, and heads of pretraining and other tasks: the reference libraries load only the body too."""
    network_of(name, tmp_path, KNOWN[name])


@pytest.mark.parametrize(("name", "tensor"), [(name, tensor) for name in FOREIGN for tensor in FOREIGN[name]])
def test_a_tensor_of_another_architecture_is_refused(name: str, tensor: str, tmp_path: Path) -> None:
    """It is harmless there; here the checkpoint was trained as another network than the one that would be computed."""
    with pytest.raises(ModelUnavailable, match=f"tensors {tensor} .1 in all. have no place"):
        network_of(name, tmp_path, [tensor])


@pytest.mark.parametrize(
    ("architecture", "output", "name"),
    [
        ("bert", "scores", "classifier.weight"),
        ("llama", "scores", "score.bias"),
        ("roberta", "scores", "classifier.dense.weight"),
        ("bert", "splade", "cls.predictions.transform.gate.weight"),
        ("distilbert", "splade", "vocab_transform.bias"),
        ("modernbert", "splade", "head.dense.bias"),
    ],
)
def test_a_served_head_is_read_completely(architecture: str, output: Output, name: str) -> None:
    """Tensors of a head are harmless only while another output is served."""
    harmless = class_of(architecture).HARMLESS_TENSORS
    check_all_read({name}, harmless, {"dense"}, architecture)
    with pytest.raises(ModelUnavailable, match=name):
        check_all_read({name}, harmless, {output}, architecture)


def test_a_tensor_of_integers_is_not_a_weight(folder: Path) -> None:
    """A quantized matrix has the float matrix's shape, and its numbers mean something else."""
    name = "encoder.layer.0.output.dense.weight"
    with pytest.raises(ModelUnavailable, match=f"tensor {name} is I64; supported are BF16, F16, F32, F64"):
        make_network(folder, {name: np.zeros((32, 48), np.int64)})


@pytest.mark.parametrize("older", [False, True], ids=["safetensors", "torch before 1.6"])
@pytest.mark.parametrize("backend", ["openvino", "torch", "transformers"])
def test_weights_of_64_bits_give_the_vectors_of_32(folder: Path, tmp_path: Path, backend: str, older: bool) -> None:
    """Whatever the format of their file."""
    wide = {name: array.double() for name, array in load_file(folder / "model.safetensors").items()}
    path = tmp_path / ("pytorch_model.bin" if older else "model.safetensors")
    if older:
        torch.save(wide, path, _use_new_zipfile_serialization=False)
    else:
        save_file(wide, path)
    specs = [read_tiny_spec(folder, weights=(weights,)) for weights in (path, folder / "model.safetensors")]
    answers = [backend_answer(backend, spec, random_texts((9, 3)), "dense") for spec in specs]
    np.testing.assert_allclose(*answers, atol=1e-6)


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
