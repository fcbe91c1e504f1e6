"""NomicBERT under its own keys and names and under transformers', which are compared with its class in
test_conformance.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compute.networks.case import numpy_answer, padded_states, rename, texts_of
from tests.compute.networks.tiny_encoders import CASES, reference_model, write_tiny

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.errors import ModelUnavailable

TEXTS = texts_of(9, 1, 60)

# config.json of nomic-embed-text-v1.5, except for the sizes.
PUBLISHED: dict[str, Any] = {
    "model_type": "nomic_bert",
    "vocab_size": 40,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 48,
    "n_positions": 128,
    "type_vocab_size": 2,
    "activation_function": "swiglu",
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "prenorm": False,
    "parallel_block": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
}

NAMES = {  # transformers' for the published
    "emb_ln": "embeddings.LayerNorm",
    "encoder.layers": "layers",
    "attn.out_proj": "self_attn.o_proj",
    "fc11": "up_proj",
    "fc12": "gate_proj",
    "fc2": "down_proj",
    "norm1": "post_attention_layernorm",
    "norm2": "post_mlp_layernorm",
}
FUSED = {"attn.Wqkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("nomic"), "NomicBert")


def test_a_published_config_is_equivalent(folder: Path) -> None:
    """The models' own keys give the network of transformers' keys."""
    case = CASES["nomic_bert"]
    want = numpy_answer(case.spec(folder), TEXTS)
    np.testing.assert_array_equal(numpy_answer(case.spec(folder, config=PUBLISHED), TEXTS), want)


def test_the_default_base_is_1000(folder: Path) -> None:
    """transformers' default, and the published models' base."""
    case = CASES["nomic_bert"]
    bare = {key: value for key, value in case.spec(folder).config.items() if key != "rope_parameters"}
    np.testing.assert_array_equal(
        numpy_answer(case.spec(folder, config=bare), TEXTS), numpy_answer(case.spec(folder), TEXTS)
    )


def test_base_and_gate_are_read(tmp_path: Path) -> None:
    """Another rotary base and another activation, under either config, as in transformers."""
    theta = {"rope_type": "default", "rope_theta": 50.0}
    folder = write_tiny(tmp_path, "NomicBert", hidden_act="gelu", rope_parameters=theta)
    want = padded_states(reference_model(folder, "NomicBert"), TEXTS, filler=1)
    published = {**PUBLISHED, "activation_function": "geglu", "rotary_emb_base": 50}
    for facts in ({}, {"config": published}):
        np.testing.assert_allclose(numpy_answer(CASES["nomic_bert"].spec(folder, **facts), TEXTS), want, atol=1e-5)


FORMS: dict[str, dict[str, Any]] = {
    "theta alone": {"rope_theta": 50.0},
    "old scaling": {"rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "scaling with the default base": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "new form": {"rope_parameters": {"rope_theta": 50.0, "rope_type": "linear", "factor": 4.0}},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_two_forms_that_disagree_are_refused(folder: Path, form: dict[str, Any]) -> None:
    """transformers' class reads its own keys, the models' class theirs."""
    with pytest.raises(
        ModelUnavailable, match="rotary_emb_base contradicts rope_theta, rope_scaling or rope_parameters"
    ):
        numpy_answer(CASES["nomic_bert"].spec(folder, config={**PUBLISHED, **form}), TEXTS)


def test_two_forms_that_agree_are_read(folder: Path) -> None:
    """transformers 5 saves a published model with both."""
    both = {**PUBLISHED, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
    case = CASES["nomic_bert"]
    want = numpy_answer(case.spec(folder, config=PUBLISHED), TEXTS)
    np.testing.assert_array_equal(numpy_answer(case.spec(folder, config=both), TEXTS), want)


@pytest.mark.parametrize("prefix", ["", "nomic_bert.", "bert."])
def test_names_of_transformers_are_read(folder: Path, prefix: str) -> None:
    """Tensors under transformers' names, and under a head, are the same network."""
    spec = CASES["nomic_bert"].spec(folder)
    weights = rename(open_checkpoint(spec.weights), NAMES, FUSED)
    got = numpy_answer(spec, TEXTS, weights={prefix + name: weight for name, weight in weights.items()})
    np.testing.assert_array_equal(got, numpy_answer(spec, TEXTS))
