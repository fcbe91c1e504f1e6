"""DeBERTa on the reference op set against transformers, and errors for configs that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tests.compute.networks.case import Texts, backend_answer, numpy_answer
from tests.compute.networks.tiny_decoders import reference, write
from tests.models import random_texts, read_tiny_spec
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from vectord.compute.networks.deberta_v2 import log_buckets
from vectord.errors import ModelUnavailable

LENGTHS = (9, 1, 60, 2, 17)  # beyond the last bucket too
DEBERTA = "deberta-v2"

VARIANTS: dict[str, dict[str, Any]] = {
    "as Microsoft writes it": {"pos_att_type": "p2c|c2p"},
    "places with projections of their own": {"share_att_key": False},
    "queries look at places alone": {"pos_att_type": ["c2p"]},
    "places look at keys alone": {"pos_att_type": ["p2c"], "share_att_key": False},
    "no looking at places": {"pos_att_type": None},
    "places that are not normed": {"norm_rel_ebd": "none"},
    "a place a distance": {"position_buckets": -1},
    "as many places as positions": {"position_buckets": -1, "max_relative_positions": -1},
    "buckets for all positions": {"max_relative_positions": -1},
    "positions added to words": {"position_biased_input": True},
    "types of tokens": {"type_vocab_size": 2},
    "words narrower than states": {"embedding_size": 20},
    "another activation": {"hidden_act": "relu"},
    "a convolution": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "a wide convolution": {"conv_kernel_size": 5},
}


def hidden_states(folder: Path, texts: Texts) -> np.ndarray:
    """(T, H)"""
    return numpy_answer(read_tiny_spec(folder), texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(DEBERTA, tmp_path_factory.mktemp("deberta"))


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_each_option_has_its_effect(tmp_path: Path, folder: Path, config: dict[str, Any]) -> None:
    """Each option gives transformers' numbers, and changes them unless it means the default."""
    changed, texts = write(DEBERTA, tmp_path, **config), random_texts(LENGTHS)
    states = hidden_states(changed, texts)
    np.testing.assert_allclose(states, reference(changed, texts), atol=1e-7)
    same = config == VARIANTS["as Microsoft writes it"]
    assert np.allclose(states, hidden_states(folder, texts), atol=1e-3) is same


@pytest.mark.parametrize(("buckets", "far"), [(256, 512), (32, 64), (4, 20), (256, 8192), (2, 3)])
def test_buckets_equal_transformers(buckets: int, far: int) -> None:
    """Every distance falls into its trained bucket, though ours are computed in float64."""
    distances = np.arange(-2 * far, 2 * far + 1)
    want = make_log_bucket_position(torch.tensor(distances), buckets, far).long().numpy()
    np.testing.assert_array_equal(log_buckets(distances, buckets, far), want)


@pytest.mark.parametrize("backend", ["openvino", "torch"])
def test_backends_compute_the_convolution(tmp_path: Path, backend: str) -> None:
    """Each text by itself: its ends are zeros, in a batch of any lengths."""
    folder, texts = write(DEBERTA, tmp_path, conv_kernel_size=3), random_texts(LENGTHS)
    got = backend_answer(backend, read_tiny_spec(folder), texts)
    np.testing.assert_allclose(got, reference(folder, texts), atol=1e-4)


@pytest.mark.parametrize("fault", [{"conv_groups": 2}, {"conv_kernel_size": 4}], ids=str)
def test_other_convolutions_are_refused(folder: Path, fault: dict[str, int]) -> None:
    """No published model has one."""
    spec = read_tiny_spec(folder)
    with pytest.raises(ModelUnavailable, match=next(iter(fault))):
        numpy_answer(replace(spec, config={**spec.config, "conv_kernel_size": 3, **fault}), [[1]])


def test_a_pooler_of_another_width_is_refused(folder: Path) -> None:
    """The head's own size is checked like the body's."""
    config = {**read_tiny_spec(folder).config, "pooler_hidden_size": 64}
    spec = read_tiny_spec(folder, config=config, outputs=frozenset({"scores"}), labels=("a",))
    with pytest.raises(ModelUnavailable, match="pooler_hidden_size must be 32; found 64"):
        numpy_answer(spec, [[1]], "scores")
