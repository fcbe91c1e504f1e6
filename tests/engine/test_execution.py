"""One batch on one backend: every text gets its own row or its own error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.fakes import WIDTH, FakeBackend, expected_row

from vectord.backends.base import TokenBatch
from vectord.engine import execution
from vectord.engine.batch import Batch, Item, Output
from vectord.errors import InferenceFailed, OutOfMemory

POISON = ord("!")


def batch(*texts: str, output: Output = "dense", alone: bool = False) -> Batch:
    items = [_item(np.array(list(text.encode()), np.int32), output) for text in texts]
    return Batch(items, output, sum(map(len, texts)), alone, pressed=False)


def _item(ids: np.ndarray, output: Output) -> Item:
    return Item(ids, np.zeros_like(ids), len(ids), output, "", "interactive")


def test_texts_are_packed_end_to_end():
    """No padding; cu_seqlens say where each begins."""
    tokens = execution.pack(batch("ab", "c", "def").items, "dense", alone=False)
    assert bytes(tokens.ids.tolist()) == b"abcdef"
    assert tokens.cu_seqlens.tolist() == [0, 2, 3, 6]
    assert {tokens.ids.dtype, tokens.type_ids.dtype, tokens.cu_seqlens.dtype} == {np.dtype(np.int32)}


def run(backend: FakeBackend, given: Batch) -> list[execution.Answer]:
    return execution.Execution(backend, WIDTH).run(given, stream=0)


texts = st.lists(st.text("abc!", min_size=1, max_size=6), min_size=1, max_size=8)


@given(texts)
@settings(deadline=None, max_examples=60)
def test_a_poison_text_fails_alone(texts):
    """A forward that raises for one text is tried again text by text; the others have their rows, in order."""

    def fail(tokens: TokenBatch) -> None:
        if POISON in tokens.ids:
            raise RuntimeError("poison")

    answers = run(FakeBackend(fail=fail), batch(*texts))
    for text, answer in zip(texts, answers, strict=True):
        if "!" in text:
            assert type(answer) is InferenceFailed
            assert isinstance(answer.__cause__, RuntimeError)
        else:
            np.testing.assert_array_equal(answer, expected_row(text))


@given(texts)
@settings(deadline=None, max_examples=60)
def test_a_row_that_is_not_finite_fails_alone(texts):
    """It never becomes an answer, and costs the others nothing: no second forward."""
    backend = FakeBackend()
    backend.poison = POISON
    answers = run(backend, batch(*texts))
    assert len(backend.batches) == 1
    for text, answer in zip(texts, answers, strict=True):
        if "!" in text:
            assert isinstance(answer, InferenceFailed)
        else:
            np.testing.assert_array_equal(answer, expected_row(text))


@given(texts, st.integers(1, 12))
@settings(deadline=None, max_examples=60)
def test_out_of_memory_halves_the_batch(texts, room):
    """What fits in the end has its row; only a text that does not fit alone fails."""

    def fail(tokens: TokenBatch) -> None:
        if len(tokens.ids) > room:
            raise MemoryError

    backend = FakeBackend(fail=fail)
    answers = run(backend, batch(*texts))
    for text, answer in zip(texts, answers, strict=True):
        if len(text) > room:
            assert type(answer) is OutOfMemory
        else:
            np.testing.assert_array_equal(answer, expected_row(text))
    assert len(backend.batches) <= 2 * len(texts) - 1


def test_half_a_batch_is_not_alone_on_the_device():
    """After a failure the halves run on this stream's own share of the device."""

    def fail(tokens: TokenBatch) -> None:
        if len(tokens.cu_seqlens) > 2:
            raise MemoryError

    backend = FakeBackend(fail=fail)
    run(backend, batch("a", "b", alone=True))
    assert [tokens.alone for tokens in backend.batches] == [True, False, False]


def test_rows_of_tokens_are_each_texts_own():
    """One row a token, and copied: one short text must not keep a whole batch in memory."""
    answers = run(FakeBackend(), batch("ab", "c", output="tokens"))
    assert [answer.tolist() for answer in answers] == [[[97] * WIDTH, [98] * WIDTH], [[99] * WIDTH]]
    assert all(answer.base is None for answer in answers)


@pytest.mark.parametrize("shape", [(1, WIDTH), (3, WIDTH), (2,), (2, WIDTH, 1), (2, WIDTH - 1)])
def test_rows_of_the_wrong_shape_are_a_failure(shape):
    """A backend that answers too few rows must not shift them to other texts."""

    class Wrong(FakeBackend):
        def forward(self, batch: TokenBatch, stream: int) -> np.ndarray:
            return np.zeros(shape, np.float32) if len(batch.cu_seqlens) > 2 else np.zeros((0, 0), np.float32)

    answers = run(Wrong(), batch("a", "b"))
    assert [type(answer) for answer in answers] == [InferenceFailed, InferenceFailed]


def test_what_is_no_exception_passes_through():
    """SystemExit ends the thread; the worker answers for the batch."""

    def fail(tokens: TokenBatch) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        run(FakeBackend(fail=fail), batch("a", "b"))


def test_messages_do_not_hold_what_the_library_said():
    """The cause is for the log; a client sees our own words."""

    def fail(tokens: TokenBatch) -> None:
        raise RuntimeError("secret at 0x7f00")

    (answer,) = run(FakeBackend(fail=fail), batch("a"))
    assert "secret" not in answer.message
