"""Rows of texts seen before, and texts under way that several requests wait for. Owned by the event loop.

runner.py looks here before it makes an Item. A row is kept raw: the model's dense output in float32, before
`dimensions` and normalisation, so that every request can use it.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from vectord.backends.base import Int32
from vectord.engine.batch import Item, Key
from vectord.schema import Float32

# Objects around one row: key, array header, dict node. Measured: 242 (tests/engine/test_cache.py); malloc rounds up.
ENTRY_BYTES = 320


def cache_key(fingerprint: str, ids: Int32, type_ids: Int32) -> Key:
    """What decides a dense row. Type ids count only where one is not 0, which is rare."""
    types = type_ids.tobytes()
    return (fingerprint, ids.tobytes(), types if types.strip(b"\0") else b"")


class VectorCache:
    """Least recently used rows go first once `max_bytes` is full. max_bytes=0: keeps nothing and joins nothing."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._rows: OrderedDict[Key, Float32] = OrderedDict()
        self._under_way: dict[Key, Item] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def enabled(self) -> bool:
        return self.max_bytes > 0

    def get(self, key: Key) -> Float32 | None:
        """The row (D,), to be copied and not changed."""
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
        return row

    def under_way(self, key: Key) -> Item | None:
        return self._under_way.get(key)

    def start(self, key: Key, item: Item) -> None:
        """From now on whoever asks for `key` may wait for `item`."""
        self._under_way[key] = item

    def abandon(self, key: Key, item: Item) -> None:
        """`item` failed, or nobody wants it any more."""
        if self._under_way.get(key) is item:
            del self._under_way[key]

    def finish(self, key: Key, item: Item, row: Float32) -> None:
        """`item` has its row (D,): keep a copy, since the row is a view on its whole batch."""
        self.abandon(key, item)
        size = _entry_bytes(key, row)
        if key in self._rows or size > self.max_bytes:
            return
        self._rows[key] = np.array(row, dtype=np.float32)
        self.bytes += size
        while self.bytes > self.max_bytes:
            self.bytes -= _entry_bytes(*self._rows.popitem(last=False))


def _entry_bytes(key: Key, row: Float32) -> int:
    return ENTRY_BYTES + len(key[1]) + len(key[2]) + row.nbytes
