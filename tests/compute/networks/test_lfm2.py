"""LFM2 against transformers, and its bidirectional form against the same with Liquid's changes (tiny_decoders.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compute.networks.case import numpy_answer, texts_of
from tests.compute.networks.tiny_decoders import CASES, reference, write
from tests.compute.networks.tiny_encoders import change_config

from vectord.checkpoints.spec import YesNo
from vectord.errors import ModelUnavailable

TEXTS = texts_of(9, 1, 2, 40)
CASE = CASES["lfm2"]

VARIANTS: dict[str, dict[str, Any]] = {
    "biases": {"conv_bias": True},
    "four taps": {"conv_L_cache": 4},
    "one tap": {"conv_L_cache": 1},
    "the width of the MLP as given": {"block_auto_adjust_ff_dim": False},
    "a wider MLP": {"block_ffn_dim_multiplier": 1.7},
    "attention everywhere": {"layer_types": ["full_attention"] * 4},
}


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("name", ["lfm2", "lfm2_bidirectional"])
def test_each_option_gives_the_references_numbers(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    """Texts of one and two tokens have fewer neighbours than the convolution has places."""
    case = CASES[name]
    folder = case.write(tmp_path, **config)
    np.testing.assert_allclose(numpy_answer(case.spec(folder), TEXTS), case.reference(folder, TEXTS), atol=1e-5)


def test_older_keys_are_read(tmp_path: Path) -> None:
    """full_attn_idxs instead of layer_types, and block_ff_dim before intermediate_size, as in LFM2-ColBERT."""
    folder = write("lfm2", tmp_path)
    want = numpy_answer(CASE.spec(folder), TEXTS)
    change_config(folder, layer_types=None, full_attn_idxs=[1], block_ff_dim=48, intermediate_size=77)
    np.testing.assert_array_equal(numpy_answer(CASE.spec(folder), TEXTS), want)
    np.testing.assert_allclose(reference(folder, TEXTS), want, atol=1e-5)


@pytest.mark.parametrize("head", ["AutoModel", "AutoModelForCausalLM"])
def test_liquids_own_class_is_bidirectional(tmp_path: Path, head: Any) -> None:
    """LFM2.5 has the model_type of the causal model, and its own class in `architectures`."""
    folder = write("lfm2", tmp_path, head=head)
    causal = numpy_answer(CASE.spec(folder), TEXTS)
    own = {"architectures": ["Lfm2BidirectionalModel"], "auto_map": {"AutoModel": "modeling.Lfm2BidirectionalModel"}}
    config = json.loads((folder / "config.json").read_text())
    got = numpy_answer(CASE.spec(folder, config={**config, **own}), TEXTS)
    renamed = change_config(folder, model_type="lfm2_bidirectional")
    want = CASES["lfm2_bidirectional"].reference(renamed, TEXTS)
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert not np.allclose(got, causal, atol=1e-2)


def test_a_shared_prefix_is_refused(tmp_path: Path) -> None:
    """The convolution reads neighbours by their rows, and the rows of a shared prefix are elsewhere."""
    folder = write("lfm2", tmp_path, head="AutoModelForCausalLM")
    yes_no = YesNo(prefix="", body="", suffix="", token_ids=(7, 8))
    with pytest.raises(ModelUnavailable, match=r"must have causal attention; .* or it has convolutions"):
        numpy_answer(CASE.spec(folder, outputs=frozenset({"scores"}), yes_no=yes_no), TEXTS, "scores")
