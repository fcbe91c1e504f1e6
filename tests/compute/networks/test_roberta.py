"""RoBERTa's, XLM-R's and CamemBERT's differences from BERT; test_conformance.py compares their numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.compute.networks.case import numpy_answer, pad, padded_states, texts_of
from tests.compute.networks.tiny_encoders import CASES, change_config, reference_model, write_tiny

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps
from vectord.errors import ModelUnavailable

TEXTS = texts_of(9, 1, 30)
PADDED = {"filler": 1}


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_positions_count_from_after_paddings_id(tmp_path: Path, padding: int) -> None:
    """The first token takes the row after the padding token's id, so fewer tokens fit."""
    folder = write_tiny(tmp_path, "Roberta", pad_token_id=padding, type_vocab_size=1)
    case = CASES["roberta"]
    want = padded_states(reference_model(folder, "Roberta"), TEXTS, filler=padding)
    np.testing.assert_allclose(numpy_answer(case.spec(folder, max_tokens=127 - padding), TEXTS), want, atol=1e-8)
    with pytest.raises(
        ModelUnavailable,
        match=f"has {127 - padding} positions, fewer than the model.s maximum of {128 - padding} tokens",
    ):
        numpy_answer(case.spec(folder, max_tokens=128 - padding), TEXTS)


def test_the_default_padding_id_is_1(tmp_path: Path) -> None:
    """transformers' default."""
    folder = write_tiny(tmp_path, "XLMRoberta", type_vocab_size=1)
    spec = CASES["xlm_roberta"].spec(folder)
    want = numpy_answer(spec, TEXTS)
    change_config(folder, pad_token_id=None)
    np.testing.assert_array_equal(numpy_answer(CASES["xlm_roberta"].spec(folder), TEXTS), want)


def test_a_single_type_belongs_to_every_token(tmp_path: Path) -> None:
    """A tokenizer that marks the second text of a pair cannot read beyond a table of one row."""
    spec = CASES["xlm_roberta"].spec(write_tiny(tmp_path, "XLMRoberta", type_vocab_size=1))
    types = np.repeat(np.array([0, 1], np.int32), 20)
    np.testing.assert_array_equal(numpy_answer(spec, TEXTS, type_ids=types), numpy_answer(spec, TEXTS))


def test_several_types_are_read(tmp_path: Path) -> None:
    """A model trained with two types uses them, as in transformers."""
    folder = write_tiny(tmp_path, "Roberta", type_vocab_size=2)
    types = [[0] * 4 + [1] * 5, [0], [1] * 30]
    got = numpy_answer(CASES["roberta"].spec(folder), TEXTS, type_ids=np.concatenate(types).astype(np.int32))
    want = padded_states(reference_model(folder, "Roberta"), TEXTS, **PADDED, token_type_ids=pad(types)[0])
    np.testing.assert_allclose(got, want, atol=1e-8)


@pytest.mark.parametrize("prefix", ["", "roberta."])
def test_names_under_a_head_are_read(tmp_path: Path, prefix: str) -> None:
    """The encoder alone, or saved under a classifier, is the same."""
    folder = write_tiny(tmp_path, "XLMRoberta")
    spec = CASES["xlm_roberta"].spec(folder)
    renamed = {prefix + name: weight for name, weight in open_checkpoint(spec.weights).items()}
    assert Network(spec, renamed, NumpyOps())


def test_no_room_for_a_token_is_refused(tmp_path: Path) -> None:
    """A padding id after the last position would leave a table without rows."""
    folder = change_config(write_tiny(tmp_path, "Roberta"), pad_token_id=127)
    with pytest.raises(ModelUnavailable, match="max_position_embeddings 128 leaves no room after pad_token_id 127"):
        numpy_answer(CASES["roberta"].spec(folder), TEXTS)
