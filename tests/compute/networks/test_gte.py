"""GTE with older configs and both kinds of names; test_conformance.py compares its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compute.networks.case import numpy_answer, padded_states, rename, texts_of
from tests.compute.networks.tiny_encoders import CASES, change_config, reference_model, write_tiny

from vectord.checkpoints.checkpoint import open_checkpoint

TEXTS = texts_of(9, 1, 60)

# The keys of published configs in addition to BERT's.
PUBLISHED: dict[str, Any] = {
    "rope_parameters": None,
    "rope_theta": 500.0,
    "rope_scaling": None,
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
}

NAMES = {  # transformers' for the published
    "encoder.layer": "layers",
    "attention.o_proj": "self_attn.o_proj",
    "attn_ln": "post_attention_layernorm",
    "mlp_ln": "post_mlp_layernorm",
}
FUSED = {
    "attention.qkv_proj": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "mlp.up_gate_proj": ["mlp.up_proj", "mlp.gate_proj"],
}


@pytest.mark.parametrize("types", [0, 1, 2])
def test_the_config_decides_the_token_types(tmp_path: Path, types: int) -> None:
    """None in the English models, one in the multilingual ones, where the tokenizer's types are ignored."""
    folder = write_tiny(tmp_path, "Gte", type_vocab_size=types)
    spec = CASES["gte"].spec(folder)
    want = padded_states(reference_model(folder, "Gte"), TEXTS, filler=1)
    np.testing.assert_allclose(numpy_answer(spec, TEXTS), want, atol=1e-5)
    marked = numpy_answer(spec, TEXTS, type_ids=np.ones(70, np.int32))
    assert (np.abs(marked - want).max() > 0.1) == (types == 2)


@pytest.mark.parametrize("architecture", ["gte", "new"])
def test_a_published_config_is_equivalent(tmp_path: Path, architecture: str) -> None:
    """rope_theta without rope_parameters and without scaling, as in Arctic Embed v2."""
    theta = {"rope_type": "default", "rope_theta": 500.0}
    folder = write_tiny(tmp_path, "Gte", rope_parameters=theta)
    case = CASES["gte"]
    want = numpy_answer(case.spec(folder), TEXTS)
    change_config(folder, **PUBLISHED)
    np.testing.assert_array_equal(numpy_answer(case.spec(folder, architecture=architecture), TEXTS), want)


@pytest.mark.parametrize("prefix", ["", "gte.", "new."])
def test_names_of_transformers_are_read(tmp_path: Path, prefix: str) -> None:
    """Tensors under transformers' names, and under a head, are the same network."""
    spec = CASES["gte"].spec(write_tiny(tmp_path, "Gte"))
    weights = rename(open_checkpoint(spec.weights), NAMES, FUSED)
    got = numpy_answer(spec, TEXTS, weights={prefix + name: weight for name, weight in weights.items()})
    np.testing.assert_array_equal(got, numpy_answer(spec, TEXTS))
