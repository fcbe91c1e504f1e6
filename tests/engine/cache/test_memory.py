"""Answers by least recent use, bounded in bytes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.engine.cache.memory import ENTRY_BYTES, AnswerCache, cache_key
from vectord.engine.queue.batch import Answer, Key, Kind
from vectord.schema import Sparse

NO_TYPES = np.zeros(3, np.int32)
DENSE: frozenset[Kind] = frozenset({"dense"})


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def key_of(n: int) -> Key:
    return cache_key("m", ids(n), ids(0), b"", DENSE)


def dense(numbers: int, value: float = 0.0) -> Answer:
    return {"dense": np.full((1, numbers), value, np.float32)}


def test_the_key_is_what_decides_an_answer():
    """Model, ids, type ids, what of the text is pooled and attended to, and what was asked for."""
    keys = {
        cache_key("model", ids(1, 2, 3), NO_TYPES, b"", DENSE),
        cache_key("other", ids(1, 2, 3), NO_TYPES, b"", DENSE),
        cache_key("model", ids(1, 2, 4), NO_TYPES, b"", DENSE),
        cache_key("model", ids(1, 2), NO_TYPES[:2], b"", DENSE),
        cache_key("model", ids(1, 2, 3), ids(0, 1, 0), b"", DENSE),
        cache_key("model", ids(1, 2, 3), ids(0, 0, 1), b"", DENSE),
        cache_key("model", ids(1, 2, 3), NO_TYPES, ids(1, 3).tobytes(), DENSE),
        cache_key("model", ids(1, 2, 3), NO_TYPES, b"", frozenset({"dense", "sparse"})),
    }
    assert len(keys) == 8


def test_type_ids_that_are_all_zero_are_the_same_as_none():
    """Most models have none: the key of a text is not twice its size for them."""
    assert len(cache_key("model", ids(1, 2, 3), NO_TYPES, b"", DENSE)[2]) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60), st.integers(0, 5))
@settings(deadline=None, max_examples=100)
def test_the_cache_is_the_last_n_used(uses, room):
    """Against a plain list of what was used last; the bytes never exceed the limit."""
    size = ENTRY_BYTES + 4 + 16
    cache = AnswerCache(room * size)
    model: list[int] = []
    for writes, n in uses:
        key = key_of(n)
        assert (cache.get(key) is not None) == (n in model)
        if n in model:
            model.remove(n)
            model.append(n)
        elif writes and room:
            cache.keep(key, dense(4, n))
            model.append(n)
            del model[:-room]
        assert cache.bytes == len(model) * size == len(cache) * size
    for n in model:
        assert cache.get(key_of(n))["dense"].tolist() == [[n] * 4]


def test_an_answer_larger_than_the_cache_is_not_kept():
    """And throws nothing else out."""
    cache = AnswerCache(2000)
    cache.keep(key_of(1), dense(8))
    cache.keep(key_of(2), dense(8000))
    assert cache.get(key_of(1)) is not None
    assert cache.get(key_of(2)) is None


def words(count: int) -> Sparse:
    return Sparse(np.arange(count, dtype=np.int32), np.ones(count, np.float32))


@pytest.mark.parametrize(
    "make",
    [lambda: dense(96), lambda: {"sparse": words(40)}, lambda: {**dense(96), "sparse": words(40)}],
    ids=["dense", "sparse", "both"],
)
def test_the_bytes_counted_cover_the_memory_used(make):
    """`max_bytes` is a promise about memory: objects around the numbers are counted too."""
    cache = AnswerCache(2**30)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for n in range(2000):
            cache.keep(cache_key("m", ids(n, 2, 3), NO_TYPES, b"", DENSE), make())
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used <= cache.bytes <= 1.7 * used
