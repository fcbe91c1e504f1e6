"""MobileBERT's classifier against transformers, and errors for configs that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.compute.networks.case import numpy_answer, texts_of
from tests.compute.networks.tiny_encoders import CASES, MOBILE, reference_model, write_tiny

from vectord.errors import ModelUnavailable

TEXTS = texts_of(9, 1, 40)
CASE = CASES["mobilebert"]


@pytest.mark.parametrize("pooled", [True, False])
def test_classes_equal_transformers(tmp_path: Path, pooled: bool) -> None:
    """With a pooler before the classifier, and without."""
    suffix = "ForSequenceClassification"
    folder = write_tiny(tmp_path, "MobileBert", suffix, **MOBILE, num_labels=3, classifier_activation=pooled)
    model = reference_model(folder, "MobileBert", suffix)
    with torch.no_grad():
        want = np.concatenate([model(torch.tensor([text])).logits.numpy() for text in TEXTS])
    spec = CASE.spec(folder, outputs=frozenset({"scores"}), labels=("a", "b", "c"))
    np.testing.assert_allclose(numpy_answer(spec, TEXTS, "scores"), want, atol=1e-5)


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "one word a token": ({"trigram_input": False}, "trigram_input must be True; found False"),
    "norms": ({"normalization_type": "layer_norm"}, "normalization_type must be 'no_norm'; found 'layer_norm'"),
    "one width": ({"use_bottleneck": False}, "use_bottleneck must be True; found False"),
    "more MLPs": ({"num_feedforward_networks": 5}, "no tensor encoder.layer.0.ffn.2.intermediate.dense.weight"),
}


@pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS)
def test_an_unsuitable_config_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """The error names the key, or the tensor."""
    spec = CASE.spec(CASE.write(tmp_path))
    with pytest.raises(ModelUnavailable, match=message):
        numpy_answer(replace(spec, config={**spec.config, **change}), TEXTS)
