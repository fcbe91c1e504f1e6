"""Classifiers and cross-encoders: logits on the reference op set against transformers' own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.compute.networks.case import numpy_answer, pad, texts_of
from tests.compute.networks.plain_jina_bert import WIDTH, jina_states, write_jina_bert
from tests.compute.networks.tiny_decoders import CASES as DECODER_CASES
from tests.compute.networks.tiny_decoders import CONFIGS, load_reference
from tests.compute.networks.tiny_decoders import write as write_decoder
from tests.compute.networks.tiny_encoders import CASES, DEBERTA_FACTS, FACTS, reference_model, write_tiny
from tests.models import read_tiny_spec
from tests.text.makers import CHAT_SPECIALS, qwen3, read
from torch.nn.functional import linear
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from vectord.checkpoints.spec import CLASSIFY_BEFORE_PADDING, ModelSpec
from vectord.errors import ModelUnavailable
from vectord.text.tokenizer import TextEncoder

TEXTS = texts_of(9, 1, 40, 2, 17)

FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {  # architecture, transformers' family, facts of the config
    "albert": ("albert", "Albert", {"embedding_size": 12}),
    "bert": ("bert", "Bert", {}),
    "camembert": ("camembert", "Camembert", {}),
    "deberta": ("deberta_v2", "DebertaV2", DEBERTA_FACTS),
    "deberta, tanh": ("deberta_v2", "DebertaV2", {**DEBERTA_FACTS, "pooler_hidden_act": "tanh"}),
    "distilbert": ("distilbert", "DistilBert", {}),
    "electra": ("electra", "Electra", {"embedding_size": 12}),
    "ernie": ("ernie", "Ernie", {"use_task_id": True}),
    "gte": ("gte", "Gte", {}),
    "modernbert cls": ("modernbert", "ModernBert", {}),
    "modernbert mean, biases": (
        "modernbert",
        "ModernBert",
        {"classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True, "classifier_activation": "relu"},
    ),
    "mpnet": ("mpnet", "MPNet", {"max_position_embeddings": 130}),
    "nomic_bert": ("nomic_bert", "NomicBert", {}),
    "roberta": ("roberta", "Roberta", {}),
    "xlm_roberta": ("xlm_roberta", "XLMRoberta", {"type_vocab_size": 1}),
}


def scores_of(folder: Path, architecture: str, labels: int) -> np.ndarray:
    return numpy_answer(scoring_spec(folder, architecture, labels), TEXTS, "scores")


def scoring_spec(folder: Path, architecture: str, labels: int) -> ModelSpec:
    names = tuple(f"LABEL_{i}" for i in range(labels))
    return (CASES | DECODER_CASES)[architecture].spec(
        folder, architecture=architecture, outputs=frozenset({"scores"}), labels=names, pooling=None
    )


def reference_scores(folder: Path, family: str) -> np.ndarray:
    model = reference_model(folder, family, "ForSequenceClassification")
    ids, mask = pad(TEXTS, filler=FACTS["pad_token_id"])
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).logits.numpy()


@pytest.mark.parametrize("labels", [1, 3], ids=["one label", "three labels"])
@pytest.mark.parametrize(("architecture", "family", "facts"), FAMILIES.values(), ids=FAMILIES)
def test_logits_equal_transformers(
    tmp_path: Path, architecture: str, family: str, facts: dict[str, Any], labels: int
) -> None:
    """One number a label and text, before any sigmoid."""
    folder = write_tiny(tmp_path, family, "ForSequenceClassification", num_labels=labels, **facts)
    got = scores_of(folder, architecture, labels)
    assert got.shape == (len(TEXTS), labels)
    np.testing.assert_allclose(got, reference_scores(folder, family), atol=1e-5)


TOKEN_FAMILIES = {name: FAMILIES[name] for name in FAMILIES if name not in ("albert", "gte", "nomic_bert")}


@pytest.mark.parametrize(("architecture", "family", "facts"), TOKEN_FAMILIES.values(), ids=TOKEN_FAMILIES)
def test_logits_of_tokens_equal_transformers(
    tmp_path: Path, architecture: str, family: str, facts: dict[str, Any]
) -> None:
    """One number a label and token, special tokens included."""
    folder = write_tiny(tmp_path, family, "ForTokenClassification", num_labels=5, **facts)
    labels = tuple(f"LABEL_{i}" for i in range(5))
    spec = (CASES | DECODER_CASES)[architecture].spec(
        folder, architecture=architecture, outputs=frozenset({"token_scores"}), token_labels=labels, pooling=None
    )
    got = numpy_answer(spec, TEXTS, "token_scores")
    ids, mask = pad(TEXTS, filler=FACTS["pad_token_id"])
    with torch.no_grad():
        logits = reference_model(folder, family, "ForTokenClassification")(input_ids=ids, attention_mask=mask).logits
    wanted = np.concatenate([rows[: len(text)] for rows, text in zip(logits.numpy(), TEXTS, strict=True)])
    assert got.shape == (sum(map(len, TEXTS)), 5)
    np.testing.assert_allclose(got, wanted, atol=1e-5)


DECODERS = sorted(CLASSIFY_BEFORE_PADDING)


def test_decoders_that_classify_before_padding_are_known() -> None:
    """Those of which transformers has a classifier with its shared way to find the end of a text."""
    classes = {name: CONFIG_MAPPING[name] for name in CONFIGS}
    found = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    shared = {
        name
        for name, one in classes.items()
        if one in found and issubclass(found[one], GenericForSequenceClassification)
    }
    assert shared == CLASSIFY_BEFORE_PADDING


@pytest.mark.parametrize("model_type", DECODERS)
def test_a_decoder_reads_the_last_token_before_padding(tmp_path: Path, model_type: str) -> None:
    """Also where the tokenizer ends each text with the padding token, as Qwen3-Embedding's does, or a text has it."""
    tokenizer = qwen3()
    pad = tokenizer.token_to_id(CHAT_SPECIALS[0])
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": pad, "num_labels": 2}
    folder = write_decoder(model_type, tmp_path, head="AutoModelForSequenceClassification", **sizes)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = ("LABEL_0", "LABEL_1")
    spec = read_tiny_spec(folder, outputs=frozenset({"scores"}), labels=names, pooling=None, max_tokens=64)
    texts = ["the quick fox", f"a dog{CHAT_SPECIALS[0]}", CHAT_SPECIALS[0], f"lazy {CHAT_SPECIALS[0]} dog", ""]
    sequences = read(TextEncoder(spec), texts)
    spans = np.cumsum([0, *(len(one.ids) for one in sequences)])[:-1, None] + [
        (0, len(one.ids)) if one.spans is None else one.spans[0] for one in sequences
    ]
    got = numpy_answer(spec, [one.ids.tolist() for one in sequences], "scores", spans=spans.astype(np.int32))
    model = load_reference(folder, "AutoModelForSequenceClassification")
    with torch.no_grad():
        want = [model(input_ids=torch.tensor([tokenizer.encode(text).ids])).logits.numpy()[0] for text in texts]
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_jina_reranker_is_read(tmp_path: Path) -> None:
    """A JinaBERT classifier is BERT's: the first token through pooler and tanh, then the classifier, in plain torch."""
    folder = write_jina_bert(tmp_path, prefix="bert.")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(1)
    shapes = {"bert.pooler.dense": (WIDTH, WIDTH), "classifier": (1, WIDTH)}
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = torch.randn(shape, generator=generator) * 0.3
        tensors[f"{name}.bias"] = torch.randn(shape[0], generator=generator)
    save_file(tensors, path)
    starts = np.cumsum([0, *map(len, TEXTS)])[:-1]
    x = torch.from_numpy(jina_states(folder, TEXTS, prefix="bert.")[starts])
    for name in shapes:
        weight, bias = (tensors[f"{name}.{part}"].double() for part in ("weight", "bias"))
        x = linear(x if name == "bert.pooler.dense" else x.tanh(), weight, bias)
    np.testing.assert_allclose(scores_of(folder, "jina_bert_v2", 1), x.numpy(), atol=1e-8)


def test_the_number_of_labels_must_fit_the_checkpoint(tmp_path: Path) -> None:
    """A config with more labels than rows stops the load and names the tensor."""
    folder = write_tiny(tmp_path, "Bert", "ForSequenceClassification", num_labels=2)
    with pytest.raises(ModelUnavailable, match=r"tensor classifier.weight is 2 x 32; by config.json .* 5 x 32"):
        scores_of(folder, "bert", 5)
