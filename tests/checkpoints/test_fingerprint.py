"""Which changes to a model change its fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from tests.checkpoints.folders import write_dense, write_json, write_sentence_model, write_transformer
from tests.checkpoints.reading import spec_of

from vectord.checkpoints.reader import read_spec
from vectord.checkpoints.spec import Located


def _become_a_classifier(folder: Path, **config: Any) -> None:
    (folder / "modules.json").unlink(missing_ok=True)
    write_transformer(folder, architectures=["BertForSequenceClassification"], **config)


def _add_dense(folder: Path, weight: float) -> None:
    write_sentence_model(folder, kinds=["Transformer", "Pooling", "Dense"])
    write_dense(folder / "2_Dense", 8, 4)
    safetensors.numpy.save_file(
        {"linear.weight": np.full((4, 8), weight, np.float32)}, folder / "2_Dense" / "model.safetensors"
    )


def test_the_fingerprint_is_independent_of_the_place(tmp_path: Path) -> None:
    """The same files in another folder, under another name and revision, have the same fingerprint."""
    one, two = (write_sentence_model(tmp_path / name) for name in ("one", "two"))
    renamed = Located(folder=two, model_id="other/name", revision="c" * 40, source="cache")
    assert spec_of(one).fingerprint == read_spec(renamed).fingerprint


def test_a_later_version_has_the_same_fingerprint(folder: Path) -> None:
    """Stored vectors stay comparable. A fact that ModelSpec gets later is left out where it has no value."""
    write_sentence_model(folder)
    (folder / "model.safetensors").write_bytes(bytes(16))
    (folder / "tokenizer.json").write_text("{}")
    assert spec_of(folder).fingerprint == "11f1fdeec807cc55"


Write = Callable[[Path], object]
ONE_LABEL: Write = lambda folder: _become_a_classifier(folder, num_labels=1)  # noqa: E731
CHANGES: Mapping[str, Write] = {
    "weights": lambda folder: write_sentence_model(folder, weight=1.5),
    "pooling": lambda folder: write_sentence_model(folder, pooling={"pooling_mode_cls_token": True}),
    "prompts": lambda folder: write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "q: "}}),
    "architecture": lambda folder: write_sentence_model(folder, model_type="roberta", max_position_embeddings=None),
    "config": lambda folder: write_sentence_model(folder, rope_theta=5.0),
    "fewer tokens": lambda folder: write_json(folder / "sentence_bert_config.json", {"max_seq_length": 64}),
    "another kind": lambda folder: _become_a_classifier(folder, num_labels=1),
    "a Dense module": lambda folder: _add_dense(folder, 0.5),
    "a head": lambda folder: torch.save(
        {"weight": torch.ones(1, 8), "bias": torch.ones(1)}, folder / "sparse_linear.pt"
    ),
    "tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_fingerprint_changes_with_the_vectors(change: str, folder: Path) -> None:
    """Vectors of different fingerprints are never compared or shared through the cache."""
    before = spec_of(write_sentence_model(folder)).fingerprint
    CHANGES[change](folder)
    assert spec_of(folder).fingerprint != before


def test_a_change_in_the_middle_of_large_weights_changes_the_fingerprint(folder: Path) -> None:
    """Samples are spread over the file: training changes every tensor, so at least one differs."""
    write_sentence_model(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(bytes(8 * 2**20))
    before = spec_of(folder).fingerprint
    data = bytearray(weights.read_bytes())
    data[3 * 2**20 : 5 * 2**20] = b"\1" * 2**21
    weights.write_bytes(data)
    assert spec_of(folder).fingerprint != before


@pytest.mark.parametrize(
    ("write", "change"),
    [
        (lambda folder: _add_dense(folder, 0.5), lambda folder: _add_dense(folder, 0.25)),
        (ONE_LABEL, lambda folder: _become_a_classifier(folder, num_labels=3)),
        (ONE_LABEL, lambda folder: _become_a_classifier(folder, id2label={"0": "relevant"})),
    ],
    ids=["weights of a Dense module", "the number of labels", "a label"],
)
def test_modules_and_labels_count(write: Write, change: Write, folder: Path) -> None:
    """Labels are part of a response, even with the same weights."""
    write_sentence_model(folder)
    write(folder)
    before = spec_of(folder).fingerprint
    change(folder)
    assert spec_of(folder).fingerprint != before


def test_metadata_of_the_save_does_not_count(folder: Path) -> None:
    """The same model saved again by another version of transformers."""
    before = spec_of(write_sentence_model(folder, transformers_version="4.30", _name_or_path="x")).fingerprint
    after = spec_of(write_sentence_model(folder, transformers_version="5.23", dtype="float32")).fingerprint
    assert before == after
