"""Classifiers and cross-encoders: labels and score activations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints.folders import write_json, write_transformer
from tests.checkpoints.reading import refusal, spec_of
from tests.models import WIDTH, write_bert

from vectord.checkpoints.activations import ACTIVATIONS
from vectord.engine.operations.postprocess import activate

IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"
OLDER = "sbert_ce_default_activation_function"


def write_classifier(folder: Path, **config: Any) -> Path:
    return write_transformer(folder, architectures=["BertForSequenceClassification"], **config)


def save_bert_classifier(folder: Path, labels: int) -> Path:
    """Save a tiny BERT with a classifier's head, as transformers does."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    write_bert(folder)
    config = BertConfig.from_pretrained(folder, num_labels=labels)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("labels", "activation"), [(1, "sigmoid"), (2, "softmax"), (3, "softmax")])
def test_a_folder_of_transformers(labels: int, activation: str, folder: Path) -> None:
    """Labels in order, and no vectors. transformers writes no id2label for two labels with default names."""
    spec = spec_of(save_bert_classifier(folder, labels))
    assert spec.outputs == {"scores"}
    assert spec.labels == tuple(f"LABEL_{i}" for i in range(labels))
    assert spec.score_activation == activation
    assert (spec.pooling, spec.dimensions, spec.yes_no) == (None, 0, None)
    assert (spec.hidden_size, spec.max_tokens) == (WIDTH, 512)
    assert spec.reranks == (labels == 1)


@pytest.mark.parametrize(("labels", "activation"), [(1, "sigmoid"), (3, "softmax")])
def test_a_folder_of_the_installed_sentence_transformers(labels: int, activation: str, folder: Path) -> None:
    """CrossEncoder folders have a modules.json with a Transformer only."""
    from sentence_transformers import CrossEncoder

    source = save_bert_classifier(folder / "source", labels)
    encoder = CrossEncoder(str(source), device="cpu", max_length=128)
    encoder.save_pretrained(str(folder / "saved"), create_model_card=False)
    spec = spec_of(folder / "saved")
    assert (folder / "saved" / "modules.json").is_file()
    assert (spec.outputs, len(spec.labels), spec.score_activation) == ({"scores"}, labels, activation)
    assert spec.max_tokens == 128


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({"num_labels": 1}, "sigmoid"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": IDENTITY}, "identity"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": IDENTITY}}, "identity"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": SIGMOID}}, "sigmoid"),
        ({"num_labels": 1, "sentence_transformers": {"version": "4.0"}}, "sigmoid"),
        ({"num_labels": 3}, "softmax"),
        ({"num_labels": 3, "sentence_transformers": {"activation_fn": IDENTITY}}, "softmax"),
        ({"num_labels": 3, "sentence_transformers": {"activation_fn": SIGMOID}}, "sigmoid"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, "sigmoid"),
        ({"num_labels": 3, "problem_type": "single_label_classification"}, "softmax"),
        ({"num_labels": 1, "problem_type": "regression"}, "identity"),
        ({"num_labels": 2, "problem_type": "regression"}, "identity"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": None}, OLDER: "torch.nn.ReLU"}, "sigmoid"),
    ],
    ids=str,
)
def test_the_score_activation(config: dict[str, Any], activation: str, folder: Path) -> None:
    """As sentence-transformers 3, 4 and 5 wrote it into config.json; Identity for several labels is their default."""
    assert spec_of(write_classifier(folder, **config)).score_activation == activation


REFUSED = (
    "os.system",
    "mine.Sigmoid",
    "torch.nn.PReLU",
    "torch.nn.Softshrink",
    "torch.nn.functional.relu",
    3,
    {"a": 1},
)
PLACES: dict[str, Callable[[object], tuple[str, dict[str, Any]]]] = {  # file and content
    "version 6": lambda path: ("config_sentence_transformers.json", {"activation_fn": path}),
    "version 4": lambda path: ("config.json", {"sentence_transformers": {"activation_fn": path}}),
    "version 3": lambda path: ("config.json", {"sbert_ce_default_activation_function": path}),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("path", REFUSED, ids=str)
def test_an_unknown_activation_is_refused(path: object, place: Callable[..., Any], folder: Path) -> None:
    """By name, and never imported; the option that allows its key falls back to sigmoid."""
    file, fields = place(path)
    write_classifier(folder, num_labels=1)
    saved = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    write_json(folder / file, {**saved, **fields})
    key = "sbert_ce_default_activation_function" if "sbert" in next(iter(fields)) else "activation_fn"
    assert re.search(rf"{file}: {key} {re.escape(repr(path))} is not supported; .* Sigmoid, ", refusal(folder))
    assert spec_of(folder, allow_unknown=[key]).score_activation == "sigmoid"


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_activation_has_torchs_numbers(name: str, labels: int, folder: Path) -> None:
    """For the rows of a batch, from large negative to large positive logits."""
    import torch

    path = f"torch.nn.{name}"
    kind = spec_of(
        write_classifier(folder, num_labels=labels, sbert_ce_default_activation_function=path)
    ).score_activation
    logits = np.linspace(-120, 120, 60 * labels, dtype=np.float32).reshape(-1, labels) / 7
    expected = getattr(torch.nn, "Softmax" if (name, labels) == ("Identity", 3) else name)
    softmax = {"dim": -1} if expected is torch.nn.Softmax else {}
    want = expected(**softmax)(torch.from_numpy(logits).double()).numpy()
    np.testing.assert_allclose(activate(logits, kind)[0], want, rtol=1e-6, atol=1e-7)


def test_labels_are_ordered_by_number(folder: Path) -> None:
    """Not in the order of the file, where 10 may come before 2."""
    named = {str(i): f"label {i}" for i in (10, 2, 0, 1, *range(3, 10))}
    assert spec_of(write_classifier(folder, id2label=named)).labels == tuple(f"label {i}" for i in range(11))


@pytest.mark.parametrize(
    "config",
    [
        {"id2label": {"1": "a", "2": "b"}},
        {"id2label": {"0": "x" * 1001}},
        {"id2label": {"0": "a"}, "num_labels": 2},
        {"id2label": {str(i): "a" for i in range(2**16 + 1)}},
        {"num_labels": 2**16 + 1},
    ],
    ids=lambda config: str(config)[:40],
)
def test_inconsistent_labels_are_refused(config: dict[str, Any], folder: Path) -> None:
    """Too many, too long, with a gap, or another number: the message names config.json and the key."""
    message = refusal(write_classifier(folder, **config))
    assert "config.json" in message
    assert next(iter(config)) in message
    assert len(message) < 1000


@pytest.mark.parametrize("labels", [1, 3])
def test_an_unsupported_task_is_refused(labels: int, folder: Path) -> None:
    """Pooled hidden states of a classifier mean nothing, and several labels rank nothing."""
    write_classifier(folder, num_labels=labels)
    assert spec_of(folder, task="classify").outputs == {"scores"}
    assert "task embed" in refusal(folder, task="embed")
    if labels == 1:
        assert spec_of(folder, task="rerank").reranks
    else:
        assert "3 labels" in refusal(folder, task="rerank")


def test_an_embedding_model_does_not_rerank(folder: Path) -> None:
    """It has no scores."""
    write_transformer(folder)
    assert "task rerank" in refusal(folder, task="rerank")
    assert "task classify" in refusal(folder, task="classify")
    assert spec_of(folder, task="embed").outputs == {"dense", "tokens"}
