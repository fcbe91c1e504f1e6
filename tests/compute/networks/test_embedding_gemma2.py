"""EmbeddingGemma 2's text tower against transformers, and the forms of its config."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tests.checkpoints.reading import spec_of
from tests.compute.networks.case import Case, numpy_answer, texts_of
from tests.compute.networks.tiny_decoders import CASES, reference, write
from tests.compute.networks.tiny_encoders import change_config
from tests.models import write_bert

TEXTS = texts_of(9, 1, 40)
TEXT, WHOLE = CASES["embedding_gemma2_text"], CASES["embedding_gemma2"]
VARIANTS: dict[str, dict[str, Any]] = {
    "biases": {"attention_bias": True},
    "no windows": {"layer_types": ["full_attention"] * 4},
}


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_each_option_gives_the_references_numbers(tmp_path: Path, config: dict[str, Any]) -> None:
    """In the text tower alone and in the model that has it."""
    for case, folder in ((TEXT, tmp_path / "text"), (WHOLE, tmp_path / "whole")):
        case.write(folder, **config)
        np.testing.assert_allclose(numpy_answer(case.spec(folder), TEXTS), reference(folder, TEXTS), atol=1e-5)


def test_each_layers_scale_is_read(tmp_path: Path) -> None:
    """transformers initializes it with 1."""
    folder = write("embedding_gemma2_text", tmp_path)
    weights = load_file(folder / "model.safetensors")
    scales = {name: weight * (0.5 + i) for i, (name, weight) in enumerate(weights.items()) if "layer_scalar" in name}
    save_file({**weights, **scales}, folder / "model.safetensors", {"format": "pt"})
    np.testing.assert_allclose(numpy_answer(TEXT.spec(folder), TEXTS), reference(folder, TEXTS), atol=1e-5)


def test_the_builders_keys_are_read(tmp_path: Path) -> None:
    """Without per_layer_config, as transformers derives it; its keys may have leading zeros."""
    folder = write("embedding_gemma2_text", tmp_path)
    want = numpy_answer(TEXT.spec(folder), TEXTS)
    saved = json.loads((folder / "config.json").read_text())
    padded = {f"{int(key):02}": value for key, value in saved["per_layer_config"].items()}
    change_config(folder, per_layer_config=padded)
    np.testing.assert_array_equal(numpy_answer(TEXT.spec(folder), TEXTS), want)
    change_config(folder, per_layer_config=None, global_head_dim=24)
    np.testing.assert_array_equal(numpy_answer(TEXT.spec(folder), TEXTS), want)
    np.testing.assert_allclose(want, reference(folder, TEXTS), atol=1e-5)


def test_the_towers_of_images_and_audio_are_left_out(tmp_path: Path) -> None:
    """Their tensors and settings have no effect on texts."""
    folder = WHOLE.write(tmp_path)
    want = numpy_answer(WHOLE.spec(folder), TEXTS)
    weights = load_file(folder / "model.safetensors")
    towers = ("vision_tower.x.weight", "embed_vision.x.weight", "audio_tower.x.weight", "embed_audio.x.weight")
    save_file(
        {**weights, **{name: weights["language_model.norm.weight"].clone() for name in towers}},
        folder / "model.safetensors",
    )
    change_config(folder, vision_config={"hidden_size": 8}, audio_config={"hidden_size": 8})
    np.testing.assert_array_equal(numpy_answer(WHOLE.spec(folder), TEXTS), want)


@pytest.mark.parametrize("case", [TEXT, WHOLE], ids=["text tower", "whole model"])
def test_the_projections_width_is_the_vectors(case: Case, tmp_path: Path) -> None:
    """A sentence vector has embedding_dim numbers, not hidden_size."""
    folder = case.write(tmp_path / "model")
    shutil.copy(write_bert(tmp_path / "bert") / "tokenizer.json", folder)
    spec = spec_of(folder)
    assert (spec.hidden_size, spec.dimensions) == (20, 20)
    assert numpy_answer(spec, TEXTS, "dense").shape == (3, 20)
