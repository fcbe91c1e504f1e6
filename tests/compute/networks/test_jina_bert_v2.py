"""JinaBERT v2 in all its layouts on the reference op set, against the plain torch module of plain_jina_bert.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compute.networks.case import numpy_answer, texts_of
from tests.compute.networks.plain_jina_bert import jina_states, write_jina_bert
from tests.compute.networks.tiny_encoders import CASES

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.networks.jina_bert_v2 import slopes

TEXTS = texts_of(9, 1, 128, 30)


def spec_of(folder: Path, **facts: Any) -> ModelSpec:
    return CASES["jina_bert_v2"].spec(folder, max_tokens=128, **facts)


@pytest.mark.parametrize("code", [False, True], ids=["common layout", "code layout"])
@pytest.mark.parametrize("feed_forward", ["geglu", "reglu", "original"])
def test_states_equal_the_description(tmp_path: Path, feed_forward: str, code: bool) -> None:
    """Every layout and activation, in texts of the maximum length."""
    folder = write_jina_bert(tmp_path, code=code, feed_forward_type=feed_forward)
    np.testing.assert_allclose(numpy_answer(spec_of(folder), TEXTS), jina_states(folder, TEXTS), atol=1e-5)


def test_names_under_a_head_are_read(tmp_path: Path) -> None:
    """Names with "bert.", as in the code models, which are saved as masked-language models."""
    folder = write_jina_bert(tmp_path, code=True, prefix="bert.")
    want = jina_states(folder, TEXTS, prefix="bert.")
    np.testing.assert_allclose(numpy_answer(spec_of(folder), TEXTS), want, atol=1e-5)


def test_slopes_equal_the_published_ones() -> None:
    """For 8 heads as in the paper; for 12, as in jina-embeddings-v2-base, 8 of 8 and every other of 16."""
    eight = [2.0**-i for i in range(1, 9)]
    np.testing.assert_allclose(slopes(8), eight)
    np.testing.assert_allclose(slopes(12), [*eight, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    np.testing.assert_allclose(slopes(1), [2.0**-8])
