"""The answers of recent texts, of all models, in memory. Belongs to the event loop.

A dense row is kept raw: the model's float32 output before `dimensions` and normalisation, so that every request can
use it.
"""

from __future__ import annotations

from collections import OrderedDict

from vectord.engine.queue.batch import Answer, Key, Kind
from vectord.schema import Float32, Int32, Sparse

# A few kB per text. One vector per token is a hundred times that and would evict everything else.
KEPT_KINDS: frozenset[Kind] = frozenset({"dense", "sparse", "scores"})
# Objects around one answer: key, dict, array headers, nodes. Measured: 505 (dense) to 700 (dense and sparse).
ENTRY_BYTES = 768


def cache_key(fingerprint: str, ids: Int32, type_ids: Int32, layout: bytes, kinds: frozenset[Kind]) -> Key:
    """Everything that determines an answer. Type ids count only if one is not 0, which is rare. layout: spans, keys."""
    types = type_ids.tobytes()
    return (fingerprint, ids.tobytes(), types if types.strip(b"\0") else b"", layout, kinds)


class AnswerCache:
    """Evicts the least recently used answers above `max_bytes`. max_bytes=0: keeps nothing."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._answers: OrderedDict[Key, Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def enabled(self) -> bool:
        return self.max_bytes > 0

    def get(self, key: Key) -> Answer | None:
        """The answer. The caller must not change it."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def keep(self, key: Key, answer: Answer) -> None:
        """answer: with arrays of its own, not views of a whole batch (execution.py copies them)."""
        size = _entry_bytes(key, answer)
        if key in self._answers or size > self.max_bytes:
            return
        self._answers[key] = answer
        self.bytes += size
        while self.bytes > self.max_bytes:
            self.bytes -= _entry_bytes(*self._answers.popitem(last=False))


def _entry_bytes(key: Key, answer: Answer) -> int:
    _, ids, types, layout, _ = key
    return ENTRY_BYTES + len(ids) + len(types) + len(layout) + answer_bytes(answer)


def answer_bytes(answer: Answer) -> int:
    """The size of its arrays."""
    return sum(map(_array_bytes, answer.values()))


def _array_bytes(value: Float32 | Sparse) -> int:
    return value.indices.nbytes + value.values.nbytes if isinstance(value, Sparse) else value.nbytes
