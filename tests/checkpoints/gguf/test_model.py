"""Tests of checkpoints/gguf/model.py and weights.py: a GGUF file computes what transformers does with its weights."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file
from tests.checkpoints.gguf.gguf_files import (
    add_value,
    add_vocabulary,
    add_words,
    finish,
    write_gguf,
    write_gguf_reranker,
)
from tests.compute.networks import tiny_decoders, tiny_encoders
from tests.compute.networks.case import Texts, numpy_answer, texts_of
from tests.compute.networks.nomic_experts import experts_states, write_experts
from tests.compute.networks.plain_jina_bert import jina_states, write_jina_bert
from tests.compute.networks.test_roberta import rename
from tests.compute.networks.tiny_encoders import change_config, reference_model, reference_states, write_tiny
from tests.models import CORPUS, write_bert
from tests.reference.reference_models import write_qwen3_reranker

from vectord import Embedder
from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.files.gguf_file import TENSOR_TYPES, TensorType
from vectord.checkpoints.reader import read_spec
from vectord.checkpoints.spec import Located, ModelSpec
from vectord.errors import ModelUnavailable

LENGTHS = (3, 17, 9)
KINDS = (Type.F16, Type.BF16, Type.Q4_0)


def read(path: Path, **options: Any) -> ModelSpec:
    return read_spec(Located(folder=path, model_id=path.stem, revision=None, source="folder"), **options)


class Case(NamedTuple):
    write: Callable[[Path], Path]
    reference: Callable[[Path, Texts], np.ndarray]
    vocabulary: str


SIZES = {"hidden_size": 64, "intermediate_size": 96}


def _encoder(family: str, vocabulary: str, **facts: Any) -> Case:
    write = partial(write_tiny, family=family, **SIZES, **facts)
    return Case(write, partial(reference_states, family=family), vocabulary)


def _decoder(model_type: str, vocabulary: str, **facts: Any) -> Case:
    return Case(partial(tiny_decoders.write, model_type, **SIZES, **facts), tiny_decoders.reference, vocabulary)


def _bidirectional(name: str, **facts: Any) -> Case:
    write = partial(tiny_decoders.write_bidirectional, name=name, **SIZES, **facts)
    return Case(write, partial(tiny_decoders.bidirectional_reference, name=name), "gpt2")


def write_jina_v3(folder: Path) -> Path:
    """jina-embeddings-v3 under the names of its own code."""
    write_tiny(folder, "JinaEmbeddingsV3", hidden_size=64, intermediate_size=96, type_vocab_size=1)
    base = json.loads((folder / "config.json").read_text())["rope_parameters"]["rope_theta"]
    facts = {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": base}
    return change_config(rename(folder), rope_parameters=None, **facts)


def jina_v3_states(folder: Path, texts: Texts) -> np.ndarray:
    """By the network of the folder, which test_roberta.py compares with transformers."""
    return numpy_answer(tiny_encoders.CASES["xlm_roberta"].spec(folder), texts)


CASES = {
    "bert": _encoder("Bert", "bert"),
    "roberta": _encoder("Roberta", "gpt2", type_vocab_size=1),
    "xlm-roberta": _encoder("XLMRoberta", "t5", type_vocab_size=1),
    "nomic-bert": _encoder("NomicBert", "bert"),
    "jina-bert-v2": Case(write_jina_bert, jina_states, "bert"),
    "qwen2": _decoder("qwen2", "gpt2", use_sliding_window=False, sliding_window=None),
    "qwen3": _decoder("qwen3", "gpt2"),
    "llama": _decoder("llama", "gpt2"),
    "gemma-embedding": _decoder("gemma3_text", "llama", query_pre_attn_scalar=16),
    "nomic-bert-moe": Case(partial(write_experts, n_embd=64, n_inner=96), experts_states, "t5"),
    "modern-bert": _encoder("ModernBert", "gpt2", num_hidden_layers=4, classifier_pooling="cls"),
    "jina-bert-v3": Case(write_jina_v3, jina_v3_states, "t5"),
    "eurobert": _decoder("eurobert", "gpt2"),
    "lfm2": _decoder("lfm2", "gpt2", block_auto_adjust_ff_dim=False),
    "lfm2 bidirectional": _bidirectional("lfm2_bidirectional", block_auto_adjust_ff_dim=False),
    "llama-embed": _bidirectional("llama_bidirec"),
}


STORED = [*((name, kind) for name in CASES for kind in (Type.F32, Type.Q8_0)), *(("bert", kind) for kind in KINDS)]


@pytest.mark.parametrize(("name", "quantization"), STORED, ids=lambda value: getattr(value, "name", value))
def test_states_are_those_of_transformers_with_the_stored_weights(
    name: str, quantization: Type, tmp_path: Path
) -> None:
    """Names, sizes and changes of tensors are undone for each architecture, quantized or not."""
    case, path = CASES[name], tmp_path / "model.gguf"
    folder = case.write(tmp_path / "source")
    stored = write_gguf(folder, path, quantization, add=partial(add_words, kind=case.vocabulary))
    save_file({**stored}, folder / "model.safetensors", {"format": "pt"})
    texts = texts_of(*LENGTHS)
    answer = numpy_answer(replace(read(path), outputs=frozenset({"tokens"}), dense_modules=()), texts)
    assert np.abs(answer - case.reference(folder, texts)).max() < 1e-4


def gemma(folder: Path, **facts: Any) -> Path:
    return tiny_decoders.write("gemma3_text", folder, hidden_size=64, query_pre_attn_scalar=16, **facts)


@pytest.mark.parametrize("names", [("dense_2", "dense_3"), ("dense.0", "dense.1")])
def test_layers_after_the_pooling_of_embedding_gemma_are_applied(names: tuple[str, str], tmp_path: Path) -> None:
    """Under llama.cpp's names and Ollama's, in order."""
    rng = np.random.default_rng(0)
    layers = rng.standard_normal((96, 64), np.float32), rng.standard_normal((48, 96), np.float32)

    def add(writer: gguf.GGUFWriter) -> None:
        add_words(writer, "llama")
        for name, layer in zip(names, layers, strict=True):
            writer.add_tensor(f"{name}.weight", layer)

    folder, path = gemma(tmp_path / "source"), tmp_path / "m.gguf"
    write_gguf(folder, path, add=add, metadata={"pooling_type": 1, "dense_2_feat_in": 64, "dense_2_feat_out": 96})
    spec, texts = read(path), texts_of(*LENGTHS)
    assert (spec.dimensions, spec.pooling, spec.max_tokens) == (48, "mean", 512)
    states = np.split(tiny_decoders.reference(folder, texts), np.cumsum(LENGTHS)[:-1])
    expected = np.stack([rows.mean(axis=0) for rows in states]) @ layers[0].T @ layers[1].T
    assert np.abs(numpy_answer(spec, texts, "dense") - expected).max() < 1e-4 * np.abs(expected).max()


def test_gates_of_jina_in_a_tensor_of_their_own_are_joined(tmp_path: Path) -> None:
    """As conversions before 2025 wrote them."""
    folder, path = write_jina_bert(tmp_path / "source"), tmp_path / "m.gguf"

    def split(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
        if "mlp.gated_layers" not in name:
            return {name: array}
        gate, up = np.split(array, 2)
        return {
            name.replace("gated_layers", "gated_layers_w"): gate,
            name.replace("gated_layers", "gated_layers_v"): up,
        }

    whole = load_file(folder / "model.safetensors")
    texts = texts_of(*LENGTHS)
    expected = jina_states(folder, texts)
    save_file(
        {k: v for name, array in whole.items() for k, v in split(name, array).items()}, folder / "model.safetensors"
    )
    write_gguf(folder, path, add=partial(add_words, kind="bert"))
    answer = numpy_answer(replace(read(path), outputs=frozenset({"tokens"})), texts)
    assert np.abs(answer - expected).max() < 1e-4


# A cross-encoder by the prefix of transformers' class: its other prefix of names, the file's kind of vocabulary, and
# further facts.
CROSS_ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Bert": ("bert.", "bert", {}),
    "Roberta": ("roberta.", "gpt2", {"type_vocab_size": 1}),
    "XLMRoberta": ("roberta.", "t5", {"type_vocab_size": 1}),
    "ModernBert": ("model.", "gpt2", {"classifier_pooling": "mean"}),
}


@pytest.mark.parametrize("family", CROSS_ENCODERS)
def test_a_cross_encoder_has_the_scores_of_transformers(family: str, tmp_path: Path) -> None:
    """pooling_type 4: the layers of the classifier come along; of BERT, if the conversion kept the pooler."""
    prefix, vocabulary, facts = CROSS_ENCODERS[family]
    folder = write_tiny(tmp_path / "source", family, "ForSequenceClassification", hidden_size=64, num_labels=1, **facts)
    model, texts = reference_model(folder, family, "ForSequenceClassification"), texts_of(*LENGTHS)
    expected = np.concatenate([model(torch.tensor([text])).logits.detach().numpy() for text in texts])
    weights = {name.removeprefix(prefix): array for name, array in load_file(folder / "model.safetensors").items()}
    pooler = {name.replace("pooler.dense", "cls"): array for name, array in weights.items() if "pooler" in name}
    weights = {
        re.sub(r"^classifier\.(weight|bias)", r"classifier.out_proj.\1", name): weights[name] for name in weights
    }
    save_file(weights, folder / "model.safetensors")

    def add(writer: gguf.GGUFWriter) -> None:
        add_words(writer, vocabulary)
        for name, array in pooler.items():
            writer.add_tensor(name, array)

    write_gguf(folder, tmp_path / "m.gguf", add=add, metadata={"pooling_type": 4})
    spec = read(tmp_path / "m.gguf")
    assert (spec.outputs, spec.labels, spec.reranks) == (frozenset({"scores"}), ("LABEL_0",), True)
    assert np.abs(numpy_answer(spec, texts, "scores") - expected).max() < 1e-4


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"question": "Is {document} an answer to {query}?"}, "chat_template.rerank is not the question of Qwen3"),
        ({"labels": ["no", "yes"]}, "qwen3.classifier.output_labels must be yes and no, with a row of cls.output"),
        ({"labels": ["yes"]}, "qwen3.classifier.output_labels must be yes and no"),
    ],
    ids=["another question", "other answers", "one answer"],
)
def test_a_reranker_with_another_question_is_refused(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    """Its scores would mean something else."""
    folder = write_qwen3_reranker(tmp_path / "source")
    with pytest.raises(ModelUnavailable, match=re.escape(why)):
        read(write_gguf_reranker(folder, tmp_path / "m.gguf", **changes))


def test_a_language_model_named_reranker_answers_with_the_words_of_its_vocabulary(tmp_path: Path) -> None:
    """Files of Qwen3-Reranker from before llama.cpp had rank pooling."""
    folder = write_qwen3_reranker(tmp_path / "source")
    path = tmp_path / "Qwen3-Reranker-f32.gguf"
    write_gguf(folder, path, add=partial(add_vocabulary, tokenizer=folder / "tokenizer.json"))
    spec, own = read(path), read(folder)
    assert spec.yes_no is not None and own.yes_no is None
    own = read(folder, task="rerank")
    assert own.yes_no is not None and spec.yes_no.token_ids == own.yes_no.token_ids
    texts = texts_of(*LENGTHS)
    np.testing.assert_allclose(numpy_answer(spec, texts, "scores"), numpy_answer(own, texts, "scores"), atol=1e-5)


@pytest.mark.parametrize(("kind", "pooling"), [(1, "mean"), (2, "cls"), (3, "last")])
def test_the_pooling_is_the_files_unless_the_operator_sets_one(kind: int, pooling: str, tmp_path: Path) -> None:
    """pooling_type, as llama.cpp counts them."""
    path = bert(tmp_path, metadata={"pooling_type": kind})
    assert (read(path).pooling, read(path, pooling="max").pooling) == (pooling, "max")


def test_context_length_limits_texts(tmp_path: Path) -> None:
    """A table with more positions stays whole."""
    assert read(bert(tmp_path, metadata={"context_length": 100})).max_tokens == 100


def test_prompts_of_a_known_model_are_found_by_the_names_in_the_file(tmp_path: Path) -> None:
    """The file has none, and its own name is any."""
    assert "query" in read(bert(tmp_path, **key("general.name", "bge-small-en-v1.5"))).prompts


def bert(folder: Path, **options: Any) -> Path:
    source, path = write_tiny(folder / "source", "Bert"), folder / "m.gguf"
    write_gguf(source, path, **{"add": partial(add_words, kind="bert"), **options})
    return path


def key(name: str, value: Any) -> dict[str, Any]:
    return {"add": lambda writer: (add_words(writer, "bert"), add_value(writer, name, value))}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"metadata": {"attention.scale": 2.0}}, "bert.attention.scale 2.0 is not supported"),
    "an unknown key of the tokenizer": (key("tokenizer.ggml.new", 1), "tokenizer.ggml.new 1 is not supported"),
    "an adapter": (key("general.type", "adapter"), "general.type 'adapter' is not supported"),
    "a part of a model": (key("split.count", 2), "split.count 2 is not supported"),
    "causal attention": ({"metadata": {"attention.causal": True}}, "bert.attention.causal True is not supported"),
    "no layers": ({"metadata": {"block_count": 0}}, "bert.block_count must be a whole number from 1"),
    "no length": ({"metadata": {"context_length": None}}, "bert.context_length must be a whole number"),
    "a width that is a text": ({"metadata": {"embedding_length": "x"}}, "bert.embedding_length must be a whole number"),
    "an epsilon of zero": ({"metadata": {"attention.layer_norm_epsilon": 0.0}}, "must be a number above 0"),
    "a pooling of another number": ({"metadata": {"pooling_type": 5}}, "bert.pooling_type must be 0 (none)"),
    "a classifier without BERT's pooler": ({"metadata": {"pooling_type": 4}}, "no tensor cls.weight: the conversion"),
    "labels that are a number": (key("bert.classifier.output_labels", 5), "must be a list of texts; found 5"),
    "poolings": (key("bert.pooling_type", [1, 2]), "bert.pooling_type must be a whole number"),
    "another vocabulary": ({"add": partial(add_words, kind="rwkv")}, "tokenizer.ggml.model 'rwkv' is not supported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_metadata_that_could_change_the_vectors_is_refused(name: str, tmp_path: Path) -> None:
    """In one line with the file and the key."""
    options, why = REFUSED[name]
    path = bert(tmp_path, **options)
    with pytest.raises(ModelUnavailable) as refused:
        read(path)
    assert why in refused.value.message and refused.value.message.startswith(f"{path}: ")


def test_an_unknown_key_may_be_allowed(tmp_path: Path) -> None:
    """By its full name."""
    path = bert(tmp_path, metadata={"attention.scale": 2.0})
    assert read(path, allow_unknown=["bert.attention.scale"]).dimensions == 32


@pytest.mark.parametrize(
    ("name", "why"),
    [("mamba", "is not supported; supported are bert"), ("gemma3", "is supported for EmbeddingGemma only")],
)
def test_an_architecture_that_is_not_served_is_named(name: str, why: str, tmp_path: Path) -> None:
    """A language model of Gemma is none: its attention is causal, and nothing in the file says so."""
    finish(gguf.GGUFWriter(tmp_path / "m.gguf", name))
    with pytest.raises(ModelUnavailable, match=rf"general\.architecture '{name}' {why}"):
        read(tmp_path / "m.gguf")


def test_a_tensor_that_no_network_reads_is_refused(tmp_path: Path) -> None:
    """Such as the projection of LFM2-ColBERT, which changes every vector."""
    path = tmp_path / "m.gguf"

    def add(writer: gguf.GGUFWriter) -> None:
        add_words(writer)
        writer.add_tensor("dense_2.weight", np.ones((4, 32), np.float32))

    write_gguf(tiny_decoders.write("llama", tmp_path / "source"), path, add=add)
    with pytest.raises(ModelUnavailable, match=r"tensors dense_2.weight \(1 in all\) have no place"):
        numpy_answer(read(path), texts_of(3))


LLAMA3 = {"rope_theta": 1e5, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize("positions", [8192, 4096])
def test_scaled_positions_are_those_of_llama_3_or_refused(positions: int, tmp_path: Path) -> None:
    """The file has the divisor of each frequency in rope_freqs, and not how it was computed."""
    facts: dict[str, Any] = {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": positions}}
    folder, path = tiny_decoders.write("llama", tmp_path / "source", **facts), tmp_path / "m.gguf"
    model = tiny_decoders.load_reference(folder)
    plain = 1e5 ** -(np.arange(0, 16, 2) / 16)

    def add(writer: gguf.GGUFWriter) -> None:
        add_words(writer)
        writer.add_tensor("rope_freqs.weight", (plain / model.rotary_emb.inv_freq.numpy()).astype(np.float32))

    write_gguf(folder, path, add=add)
    if positions != 8192:
        with pytest.raises(ModelUnavailable, match="scales positions in another way than Llama 3"):
            read(path)
        return
    answer = numpy_answer(replace(read(path), outputs=frozenset({"tokens"})), texts_of(200))
    assert np.abs(answer - tiny_decoders.reference(folder, texts_of(200))).max() < 1e-4


@pytest.mark.parametrize("kind", [kind for kind in TENSOR_TYPES.values() if kind.items > 1], ids=lambda kind: kind.name)
def test_every_kind_of_block_is_dequantized_as_the_package_does(kind: TensorType, tmp_path: Path) -> None:
    """Of random blocks, also those that Python cannot quantize."""
    blocks = np.random.default_rng(0).integers(0, 256, (4, 2 * kind.bytes), np.uint8)
    number = Type[kind.name]

    def add(writer: gguf.GGUFWriter) -> None:
        add_words(writer, "bert")
        writer.add_tensor("random.weight", blocks, raw_dtype=number)

    weight = open_checkpoint([bert(tmp_path, add=add)])["random.weight"]
    assert weight.shape == (4, 2 * kind.items)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(weight.array, gguf.quants.dequantize(blocks, number))


def test_without_the_package_quantized_tensors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in 16 and 32 bits are not."""
    monkeypatch.setattr("vectord.checkpoints.gguf.weights.find_spec", lambda name: None)
    open_checkpoint([bert(tmp_path, quantization=Type.F16)])
    with pytest.raises(ModelUnavailable, match=r"is quantized \(Q8_0\); run .* pip install .*\[gguf\]"):
        open_checkpoint([bert(tmp_path, quantization=Type.Q8_0)])


def test_a_computed_array_is_kept_only_while_it_is_used(tmp_path: Path) -> None:
    """So that a model that has been compiled or moved to a GPU leaves no second copy."""
    weight = open_checkpoint([bert(tmp_path, quantization=Type.Q8_0)])["embeddings.word_embeddings.weight"]
    first = weight.array
    assert weight.array is first
    held = weakref.ref(first)
    del first
    assert held() is None


def test_a_file_gives_the_vectors_of_the_folder_that_it_was_made_from(tmp_path: Path) -> None:
    """Through the whole engine: vocabulary, special tokens, truncation, pooling and normalization."""
    folder, path = write_bert(tmp_path / "source"), tmp_path / "m.gguf"

    def add(writer: gguf.GGUFWriter) -> None:
        add_vocabulary(writer, folder / "tokenizer.json", "bert-bge")
        for token, i in {"pad": 0, "unk": 1, "bos": 2, "sep": 3, "mask": 4}.items():
            getattr(writer, f"add_{token}_token_id")(i)

    write_gguf(folder, path, add=add)
    texts = [CORPUS, "A quick FOX", "zzz unknown", " ".join([CORPUS] * 40)]
    vectors = []
    for model in (folder, path):
        with Embedder(str(model), dtype="float32", threads=1) as embedder:
            vectors.append(np.array(embedder.encode(texts)))
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-5
