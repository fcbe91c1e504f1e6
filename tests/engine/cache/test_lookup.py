"""The cache in memory: least recently used answers are evicted above a number of bytes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.fakes import sequence_of

from vectord.engine.cache.lookup import ENTRY_BYTES, AnswerCache, cache_keys, partition_of
from vectord.engine.queue.batch import Answer, CacheKey
from vectord.schema import AnswerKind, Caller, Int32, Sparse
from vectord.text.sequence import Texts

DENSE: frozenset[AnswerKind] = frozenset({"dense"})


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def cache_key(
    model: str, tokens: Int32, kinds: frozenset[AnswerKind] = DENSE, partition: bytes = b"", **changes: Int32
) -> CacheKey:
    """The key of one text; changes: TokenSequence's."""
    (key,) = cache_keys(model, Texts.of([sequence_of(tokens, **changes)]), kinds, partition)
    return key


def key_of(n: int) -> CacheKey:
    return cache_key("m", ids(n))


def dense(numbers: int, value: float = 0.0) -> Answer:
    return {"dense": np.full((1, numbers), value, np.float32)}


def test_the_texts_of_a_request_have_the_keys_that_they_have_alone() -> None:
    """So that another request finds them: with types, spans and keys too."""
    sequences = [
        sequence_of("ab"),
        sequence_of("cde", type_ids=ids(0, 0, 1)),
        sequence_of("f", keys=0),
        sequence_of("gh", spans=np.array([[0, 1], [1, 2]], np.int32)),
    ]
    plain = [sequence_of(text) for text in ("ab", "", "ab")]
    for texts in (sequences[:2], plain):
        alone = [key for one in texts for key in cache_keys("model", Texts.of([one]), DENSE)]
        assert cache_keys("model", Texts.of(texts), DENSE) == alone
    assert len(set(cache_keys("model", Texts.of(sequences), DENSE))) == len(sequences)


def test_no_client_can_choose_the_part_of_another_key():
    """By a salt that contains a key's name, or by an address that equals it."""
    callers = [
        Caller(),
        Caller(client="search", named=True),
        Caller(cache_salt="search"),
        Caller(client="search", named=True, cache_salt="x"),
        Caller(client="searchx", named=True),
        Caller(client="x", named=True, cache_salt="search"),
    ]
    assert len({partition_of(caller, shared_between_keys=False) for caller in callers}) == len(callers)
    assert partition_of(Caller(client="search"), shared_between_keys=False) == b""
    assert partition_of(Caller(cache_salt="\ud800"), shared_between_keys=False)


def test_zero_type_ids_are_left_out_of_the_key():
    """Most models have none; the key would be twice as large."""
    assert len(cache_key("model", ids(1, 2, 3))[3]) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60), st.integers(0, 5))
def test_the_cache_holds_the_most_recently_used_answers(uses, room):
    """Compared with a list. The bytes never exceed the limit."""
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
    """And evicts nothing."""
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
    """`max_bytes` limits memory, including the objects around the numbers."""
    cache = AnswerCache(2**30)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for n in range(2000):
            cache.keep(cache_key("m", ids(n, 2, 3)), make())
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used <= cache.bytes <= 1.7 * used


def test_a_number_of_texts_bounds_each_model():
    """EMBEDDING_CACHE_SIZE: the least recently used text of that model goes, and no other model's."""
    cache = AnswerCache(1, max_texts=2)
    other = cache_key("other", ids(1))
    cache.keep(other, dense(4))
    for n in (1, 2):
        cache.keep(key_of(n), dense(4))
    assert cache.get(key_of(1)) is not None
    cache.keep(key_of(3), dense(4))
    held = [cache.get(key) is not None for key in (other, key_of(1), key_of(2), key_of(3))]
    assert held == [True, True, False, True]
    assert cache.bytes == 3 * (ENTRY_BYTES + 4 + 16)
    assert not AnswerCache(2**20, max_texts=0).enabled
