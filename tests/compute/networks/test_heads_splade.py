"""SPLADE over masked-language heads: on the reference op set against transformers and sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tests.checkpoints.folders import write_json
from tests.checkpoints.reading import spec_of
from tests.compute.networks.case import VOCABULARY, backend_answer, numpy_answer, texts_of
from tests.compute.networks.tiny_decoders import CASES as DECODER_CASES
from tests.compute.networks.tiny_decoders import VOCAB_SIZE, load_reference
from tests.compute.networks.tiny_decoders import write as write_decoder
from tests.compute.networks.tiny_encoders import (
    CASES,
    DEBERTA_FACTS,
    change_config,
    reference_model,
    write_tiny,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from vectord.checkpoints.files.read import Settings
from vectord.errors import ModelUnavailable

TEXTS = texts_of(9, 1, 40, 2, 17)

FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {  # architecture, transformers' family, facts of the config
    "albert": ("albert", "Albert", {"embedding_size": 12}),
    "electra": ("electra", "Electra", {"embedding_size": 12, "hidden_act": "relu"}),
    "electra untied": ("electra", "Electra", {"embedding_size": 12, "tie_word_embeddings": False}),
    "bert": ("bert", "Bert", {"hidden_act": "relu"}),
    "bert untied": ("bert", "Bert", {"tie_word_embeddings": False}),
    "camembert": ("camembert", "Camembert", {}),
    "deberta": ("deberta_v2", "DebertaV2", DEBERTA_FACTS),
    "deberta of narrow words": ("deberta_v2", "DebertaV2", {**DEBERTA_FACTS, "embedding_size": 20}),
    "deberta, the newer head": ("deberta_v2", "DebertaV2", {**DEBERTA_FACTS, "legacy": False}),
    "distilbert": ("distilbert", "DistilBert", {"activation": "relu"}),
    "distilbert untied": ("distilbert", "DistilBert", {"tie_word_embeddings": False}),
    "gte": ("gte", "Gte", {}),
    "modernbert": ("modernbert", "ModernBert", {}),
    "modernbert untied, other biases": (
        "modernbert",
        "ModernBert",
        {"tie_word_embeddings": False, "decoder_bias": False, "classifier_bias": True, "norm_bias": True},
    ),
    "mpnet": ("mpnet", "MPNet", {"max_position_embeddings": 130}),
    "nomic_bert": ("nomic_bert", "NomicBert", {}),
    "roberta": ("roberta", "Roberta", {}),
    "roberta untied": ("roberta", "Roberta", {"tie_word_embeddings": False}),
    "xlm_roberta": ("xlm_roberta", "XLMRoberta", {"type_vocab_size": 1}),
}


def largest_logits(folder: Path, architecture: str, **facts: Any) -> np.ndarray:
    spec = (CASES | DECODER_CASES)[architecture].spec(
        folder, architecture=architecture, outputs=frozenset({"splade"}), **facts
    )
    return numpy_answer(spec, TEXTS, "splade")


def reference_logits(folder: Path, family: str) -> np.ndarray:
    """The largest logit of each word among a text's own tokens, (N, V)."""
    model = reference_model(folder, family, "ForMaskedLM")
    with torch.no_grad():
        return np.concatenate([model(torch.tensor([text])).logits.amax(dim=1).numpy() for text in TEXTS])


@pytest.mark.parametrize(("architecture", "family", "facts"), FAMILIES.values(), ids=FAMILIES)
def test_logits_equal_transformers(tmp_path: Path, architecture: str, family: str, facts: dict[str, Any]) -> None:
    """The largest logit of each word over a text's tokens."""
    folder = write_tiny(tmp_path, family, "ForMaskedLM", **facts)
    got = largest_logits(folder, architecture)
    assert got.shape == (len(TEXTS), VOCABULARY)
    np.testing.assert_allclose(got, reference_logits(folder, family), atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_sums_equal_sentence_transformers(tmp_path: Path, activation: Any) -> None:
    """With the pooling strategy sum, on every op set."""
    folder = write_tiny(tmp_path, "Bert", "ForMaskedLM")
    twice = True if activation == "log1p_relu" else None
    outputs = frozenset({"splade"})
    spec = CASES["bert"].spec(folder, outputs=outputs, sums_words=True, log_twice=twice, pooling=None)
    model, pooling = reference_model(folder, "Bert", "ForMaskedLM"), SpladePooling("sum", activation).eval()
    want = []
    for text in TEXTS:
        with torch.no_grad():
            logits, mask = model(torch.tensor([text])).logits, torch.ones(1, len(text), dtype=torch.int64)
        want.append(pooling({"token_embeddings": logits, "attention_mask": mask})["sentence_embedding"][0].numpy())
    np.testing.assert_allclose(numpy_answer(spec, TEXTS, "splade"), want, atol=1e-5)
    for backend in ("openvino", "torch"):
        np.testing.assert_allclose(backend_answer(backend, spec, TEXTS, "splade"), want, atol=1e-3)


def test_another_matrix_than_the_tied_words_is_refused(tmp_path: Path) -> None:
    """transformers 4 replaces it, transformers 5 computes with it. A copy of the words is no other matrix; the operator
    may ignore it, and an untied head has its own."""
    folder = write_tiny(tmp_path, "Bert", "ForMaskedLM")
    want, path = largest_logits(folder, "bert"), folder / "model.safetensors"
    tensors, name = load_file(path), "cls.predictions.decoder.weight"
    save_file({**tensors, name: tensors["bert.embeddings.word_embeddings.weight"].clone()}, path)
    np.testing.assert_array_equal(largest_logits(folder, "bert"), want)
    save_file({**tensors, name: torch.zeros(VOCABULARY, 32)}, path)
    with pytest.raises(ModelUnavailable, match=rf"tie_word_embeddings is true, but {name} differs from"):
        largest_logits(folder, "bert")
    ignored = Settings(
        folder / "config.json", json.loads((folder / "config.json").read_text()), {"tie_word_embeddings"}
    )
    np.testing.assert_array_equal(largest_logits(folder, "bert", config=ignored), want)
    change_config(folder, tie_word_embeddings=False)
    assert np.abs(largest_logits(folder, "bert") - want).max() > 0.1


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_weights_of_a_language_model_equal_sentence_transformers(
    tmp_path: Path, model_type: str, causal: bool, tied: bool
) -> None:
    """The logits of the next word after each token, through the library's SpladePooling, as in splade-code."""
    sizes = {"tie_word_embeddings": tied, "is_causal": causal}
    folder = write_decoder(model_type, tmp_path, head="AutoModelForCausalLM", **sizes)
    tokenizer = Tokenizer(WordLevel({f"word{i}": i for i in range(VOCAB_SIZE)}, unk_token="word0"))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})
    names = (("MLMTransformer", ""), ("SpladePooling", "1_SpladePooling"))
    package = "sentence_transformers.sparse_encoder.models"
    write_json(folder / "modules.json", [{"name": n, "path": path, "type": f"{package}.{n}"} for n, path in names])
    write_json(folder / "1_SpladePooling" / "config.json", {"pooling_strategy": "max"})
    spec = spec_of(folder)
    assert spec.outputs == {"splade"}
    logits = numpy_answer(spec, TEXTS, "splade")
    model, pooling = load_reference(folder, "AutoModelForCausalLM"), SpladePooling("max")
    for text, row in zip(TEXTS, logits, strict=True):
        ids = torch.tensor([text])
        with torch.no_grad():
            features = {"token_embeddings": model(input_ids=ids).logits, "attention_mask": torch.ones_like(ids)}
            want = pooling(features)["sentence_embedding"][0]
        np.testing.assert_allclose(np.log1p(np.maximum(row, 0)), want.numpy(), atol=1e-5)
