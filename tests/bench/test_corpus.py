from __future__ import annotations

import email
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from bench.corpus import MAX_TOKENS, Corpus, choose_lengths, make_corpus
from tests.models import MINILM

TOKENIZER = MINILM / "tokenizer.json"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_corpus(TOKENIZER)


def test_lengths_have_the_spread_of_documentation(corpus: Corpus) -> None:
    """Mean 61 tokens, median 36, ninth decile 158, on any Python, as for every published figure."""
    lengths = np.array([len(ids) for ids in corpus.ids])
    assert len(lengths) == 4096
    assert abs(lengths.mean() - 61) < 2
    assert abs(np.median(lengths) - 36) < 2
    assert abs(np.percentile(lengths, 90) - 158) < 6


def test_no_text_is_longer_than_the_model_reads(corpus: Corpus) -> None:
    """No measured program truncates, so all do the same work."""
    assert max(map(len, corpus.ids)) <= MAX_TOKENS


def test_texts_are_distinct(corpus: Corpus) -> None:
    """A cache of responses has no effect."""
    assert len(set(corpus.texts)) == len(corpus.texts)


def test_the_corpus_is_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs on one machine can be compared. Of one package, which is read sooner than the whole library."""
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": Path(email.__file__).parent})
    assert make_corpus(TOKENIZER, 50).digest == make_corpus(TOKENIZER, 50).digest


def test_the_first_texts_are_a_fair_sample(corpus: Corpus) -> None:
    """A part of the corpus has the mean length of the whole."""
    assert abs(corpus.first(1024).tokens / 1024 - corpus.tokens / 4096) < 3


def test_nearest_finds_texts_of_a_length(corpus: Corpus) -> None:
    """The corpus has texts of exactly 12 and 61 tokens for the measurement of latency."""
    for tokens in (12, 61):
        assert {len(ids) for ids in corpus.pick(corpus.nearest(tokens, 16)).ids} == {tokens}


def test_each_text_is_chosen_once() -> None:
    """If a length is rare, texts of similar length are chosen, and no text twice."""
    chosen = choose_lengths([5] * 40 + [300] * 10, 50)
    assert sorted(chosen) == list(range(50))


def test_too_few_texts_are_refused() -> None:
    """Too small a corpus is an error."""
    with pytest.raises(ValueError, match="3 texts requested, 2 found"):
        choose_lengths([5, 6], 3)
