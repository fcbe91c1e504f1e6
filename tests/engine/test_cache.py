"""Rows by least recent use, bounded in bytes, and one run for texts that are asked for twice."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.engine.batch import Item, Key
from vectord.engine.cache import ENTRY_BYTES, VectorCache, cache_key

NO_TYPES = np.zeros(3, np.int32)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def item(key: Key) -> Item:
    return Item(ids(1), ids(0), 1, "dense", "", "interactive", key)


def keep(cache: VectorCache, key: Key, row: np.ndarray) -> None:
    cache.finish(key, item(key), row)


def test_the_key_is_what_decides_a_row():
    """Model, ids and type ids; type ids that are all 0 are the same as none."""
    keys = {
        cache_key("model", ids(1, 2, 3), NO_TYPES),
        cache_key("other", ids(1, 2, 3), NO_TYPES),
        cache_key("model", ids(1, 2, 4), NO_TYPES),
        cache_key("model", ids(1, 2), NO_TYPES[:2]),
        cache_key("model", ids(1, 2, 3), ids(0, 1, 0)),
        cache_key("model", ids(1, 2, 3), ids(0, 0, 1)),
    }
    assert len(keys) == 6
    assert cache_key("model", ids(1, 2, 3), NO_TYPES) in keys


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60), st.integers(0, 5))
@settings(deadline=None, max_examples=100)
def test_the_cache_is_the_last_n_used(uses, room):
    """Against a plain list of what was used last; the bytes never exceed the limit."""
    row = np.zeros(4, np.float32)
    size = ENTRY_BYTES + 4 + row.nbytes
    cache = VectorCache(room * size)
    model: list[int] = []
    for writes, n in uses:
        key = cache_key("m", ids(n), ids(0))
        assert (cache.get(key) is not None) == (n in model)
        if n in model:
            model.remove(n)
            model.append(n)
        elif writes and room:
            keep(cache, key, row + n)
            model.append(n)
            del model[:-room]
        assert cache.bytes == len(model) * size == len(cache) * size
    for n in model:
        assert cache.get(cache_key("m", ids(n), ids(0))).tolist() == [n] * 4


def test_a_kept_row_is_a_copy():
    """A view would keep the whole batch in memory, and change with it."""
    cache = VectorCache(2**20)
    batch = np.ones((64, 8), np.float32)
    key = cache_key("m", ids(1), ids(0))
    keep(cache, key, batch[3])
    batch[:] = 7
    assert cache.get(key).tolist() == [1] * 8
    assert cache.get(key).base is None


def test_a_row_larger_than_the_cache_is_not_kept():
    """And throws nothing else out."""
    cache = VectorCache(2000)
    small, large = cache_key("m", ids(1), ids(0)), cache_key("m", ids(2), ids(0))
    keep(cache, small, np.zeros(8, np.float32))
    keep(cache, large, np.zeros(8000, np.float32))
    assert cache.get(small) is not None
    assert cache.get(large) is None


def test_the_bytes_counted_cover_the_memory_used():
    """`max_bytes` is a promise about memory: objects around the rows are counted too."""
    cache = VectorCache(2**30)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for n in range(2000):
            keep(cache, cache_key("m", ids(n, 2, 3), NO_TYPES), np.zeros(96, np.float32))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used <= cache.bytes <= 1.5 * used


def test_whoever_asks_while_a_text_is_under_way_finds_its_item():
    """Until it is finished or abandoned, and only by the item that was registered."""
    cache = VectorCache(2**20)
    key = cache_key("m", ids(1), ids(0))
    first, second = item(key), item(key)
    assert cache.under_way(key) is None
    cache.start(key, first)
    assert cache.under_way(key) is first
    cache.abandon(key, second)
    assert cache.under_way(key) is first
    cache.finish(key, first, np.zeros(4, np.float32))
    assert cache.under_way(key) is None
    assert cache.get(key) is not None
