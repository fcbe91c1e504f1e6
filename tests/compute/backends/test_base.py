"""How many texts a batch may have where an answer is as wide as the vocabulary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.compute.backends.models import write_all_kinds, write_splade

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import ANSWER_LIMIT_BYTES, max_batch_texts
from vectord.errors import ModelUnavailable


@pytest.fixture(scope="module")
def splade(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return write_splade(tmp_path_factory.mktemp("splade"))


def with_words(spec: ModelSpec, vocab_size: object) -> ModelSpec:
    return replace(spec, config={**spec.config, "vocab_size": vocab_size})


@pytest.mark.parametrize(("words", "texts"), [(30_522, 274), (250_002, 33), (ANSWER_LIMIT_BYTES // 4, 1)])
def test_as_many_texts_as_the_limit_holds(splade: ModelSpec, words: int, texts: int) -> None:
    """Of float32, and not one more."""
    assert max_batch_texts(with_words(splade, words)) == texts
    assert 4 * words * texts <= ANSWER_LIMIT_BYTES < 4 * words * (texts + 1)


def test_one_text_is_always_served(splade: ModelSpec) -> None:
    """A vocabulary beyond the limit makes batches of one, not a model that answers nobody."""
    assert max_batch_texts(with_words(splade, ANSWER_LIMIT_BYTES // 4 + 1)) == 1


def test_other_answers_have_no_such_limit(tmp_path: Path) -> None:
    """What is as wide as the network is bounded by the batch's tokens."""
    assert max_batch_texts(write_all_kinds(tmp_path)) is None


@pytest.mark.parametrize("words", [None, 0, -5, "many", 10**12], ids=str)
def test_vocabulary_must_be_known(splade: ModelSpec, words: object) -> None:
    """A limit is never guessed: a config without a usable number stops the load."""
    with pytest.raises(ModelUnavailable, match="vocab_size"):
        max_batch_texts(with_words(splade, words))
