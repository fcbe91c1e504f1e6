"""Answers as bytes and back, and invalid bytes."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord.engine.cache import answer_codec
from vectord.engine.cache.answer_codec import (
    DIGEST_BYTES,
    decode,
    encode,
    key_of,
)
from vectord.engine.queue.batch import Answer
from vectord.schema import Sparse

NAME = b"vectord:answer:1:model:text"
FLOATS = st.floats(-(2.0**53), 2.0**53, width=32)
WEIGHT = st.floats(2.0**-100, 100, width=32)


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    numbers = draw(st.lists(FLOATS, min_size=rows * columns, max_size=rows * columns))
    return np.array(numbers, np.float32).reshape(rows, columns)


@st.composite
def words(draw: st.DrawFn) -> Sparse:
    found = draw(st.dictionaries(st.integers(0, 2**31 - 1), WEIGHT, max_size=8))
    return Sparse(np.array(list(found), np.int32), np.array(list(found.values()), np.float32))


answers = st.fixed_dictionaries({}, optional={"dense": matrices(), "scores": matrices(), "sparse": words()})


def shapes_of(answer: Answer) -> dict:
    return {kind: None if isinstance(value, Sparse) else value.shape for kind, value in answer.items()}


def numbers_of(answer: Answer) -> list:
    arrays = ([v.indices, v.values] if isinstance(v, Sparse) else [v] for _, v in sorted(answer.items()))
    return [(one.dtype, one.tolist()) for pair in arrays for one in pair]


@given(answers)
def test_decoding_restores_an_answer(answer: Answer) -> None:
    """Every bit, the order of words, in arrays of its own."""
    decoded = decode(NAME, encode(NAME, answer), shapes_of(answer))
    assert decoded is not None
    assert decoded.keys() == answer.keys()
    assert numbers_of(decoded) == numbers_of(answer)
    for value in decoded.values():
        for array in (value.indices, value.values) if isinstance(value, Sparse) else (value,):
            assert array.base is None or array.base.nbytes == array.nbytes


@given(answers, st.data())
def test_changed_bytes_are_rejected(answer: Answer, data: st.DataObject) -> None:
    """Bytes replaced, removed or inserted."""
    value = encode(NAME, answer)
    at = data.draw(st.integers(0, len(value)))
    dropped = data.draw(st.integers(0, len(value) - at))
    changed = value[:at] + data.draw(st.binary(max_size=8)) + value[at + dropped :]
    if changed != value:
        assert decode(NAME, changed, shapes_of(answer)) is None


@given(answers, st.data())
def test_forged_bytes_raise_nothing(answer: Answer, data: st.DataObject) -> None:
    """Without a secret anyone can compute the digest. An accepted answer still has the expected shapes."""
    body = bytearray(encode(NAME, answer)[DIGEST_BYTES:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    check_forged(bytes(body), answer)


def check_forged(body: bytes, answer: Answer) -> None:
    decoded = decode(NAME, forged(body), shapes_of(answer))
    if decoded is not None:
        assert decoded.keys() == answer.keys()
        for kind, value in decoded.items():
            if isinstance(value, Sparse):
                assert len(set(value.indices.tolist())) == len(value.indices) == len(value.values)
                assert (value.indices >= 0).all() and (value.values > 0).all() and np.isfinite(value.values).all()
            else:
                assert value.shape == answer[kind].shape and np.isfinite(value).all()


def forged(body: bytes) -> bytes:
    return answer_codec._digest(NAME, body, b"") + body


def dense(*numbers: float) -> Answer:
    return {"dense": np.array([numbers], np.float32)}


def sparse(indices: list[int], values: list[float], shape: tuple[int, int] | None = None) -> bytes:
    stored = shape or (len(values), 1), np.array(values, "<f4").tobytes(), np.array(indices, "<i4").tobytes()
    return msgspec.msgpack.encode({"sparse": stored})


UNEXPECTED = {
    "nothing": (b"", {"dense": (1, 2)}),
    "another text's": (encode(b"another", dense(1, 2)), {"dense": (1, 2)}),
    "other rows": (encode(NAME, dense(1, 2)), {"dense": (2, 1)}),
    "another kind": (encode(NAME, dense(1, 2)), {"scores": (1, 2)}),
    "a kind too few": (encode(NAME, dense(1, 2)), {"dense": (1, 2), "sparse": None}),
    "none requested": (encode(NAME, dense(1, 2)), {}),
    "nan": (encode(NAME, dense(1, float("nan"))), {"dense": (1, 2)}),
    "infinite": (encode(NAME, dense(1, float("-inf"))), {"dense": (1, 2)}),
    "a square beyond floats": (encode(NAME, dense(1, 3e38)), {"dense": (1, 2)}),
    "a length beyond memory": (forged(sparse([1], [1], (2**62, 2**62))), {"sparse": None}),
    "a word twice": (forged(sparse([1, 1], [1, 1])), {"sparse": None}),
    "a word below 0": (forged(sparse([-1, 1], [1, 1])), {"sparse": None}),
    "a weight of 0": (forged(sparse([1, 2], [1, 0])), {"sparse": None}),
    "fewer weights than words": (forged(sparse([1, 2], [1])), {"sparse": None}),
    "trailing bytes": (forged(sparse([1, 2], [1, 2]) + b"\0"), {"sparse": None}),
}


@pytest.mark.parametrize(("value", "shapes"), UNEXPECTED.values(), ids=UNEXPECTED)
def test_an_unexpected_answer_is_rejected(value: bytes, shapes: dict) -> None:
    """Even with a valid digest. One of the expected shape is accepted."""
    assert decode(NAME, value, shapes) is None
    assert decode(NAME, forged(sparse([2, 1], [1, 2])), {"sparse": None}) is not None


@given(answers, st.sampled_from([b"", b"another secret, as long", b"the secret of replica"]))
def test_an_answer_signed_with_another_secret_is_rejected(answer: Answer, theirs: bytes) -> None:
    """Also with and without a secret; with the same secret it is accepted."""
    ours, other = key_of(b"the secret of replicas"), key_of(theirs) if theirs else b""
    assert decode(NAME, encode(NAME, answer, ours), shapes_of(answer), ours) is not None
    assert decode(NAME, encode(NAME, answer, other), shapes_of(answer), ours) is None
    assert decode(NAME, encode(NAME, answer, ours), shapes_of(answer), other) is None
