"""The maximum texts of a batch if an output is as wide as the vocabulary."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.compute.backends.models import write_splade

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import ANSWER_LIMIT_BYTES, max_batch_texts
from vectord.errors import ModelUnavailable


@pytest.fixture(scope="module")
def splade(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return write_splade(tmp_path_factory.mktemp("splade"))


def with_words(spec: ModelSpec, vocab_size: object) -> ModelSpec:
    return replace(spec, config={**spec.config, "vocab_size": vocab_size})


@pytest.mark.parametrize(("words", "texts"), [(30_522, 274), (250_002, 33), (ANSWER_LIMIT_BYTES // 4, 1)])
def test_a_batch_fills_the_limit(splade: ModelSpec, words: int, texts: int) -> None:
    """In float32 rows, and not one more."""
    assert max_batch_texts(with_words(splade, words)) == texts
    assert 4 * words * texts <= ANSWER_LIMIT_BYTES < 4 * words * (texts + 1)


@pytest.mark.parametrize("words", [None, 0, -5, "many", 10**12], ids=str)
def test_the_vocabulary_size_is_required(splade: ModelSpec, words: object) -> None:
    """A config without a valid size stops the load."""
    with pytest.raises(ModelUnavailable, match="vocab_size"):
        max_batch_texts(with_words(splade, words))
