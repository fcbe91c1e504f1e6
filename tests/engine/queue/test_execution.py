"""One batch on one backend: every text gets its own row or its own error."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.fakes import (
    COLBERT_WIDTH,
    M3,
    SPECIAL_IDS,
    WIDTH,
    FakeBackend,
    expected_colbert,
    expected_logits,
    expected_row,
    expected_weights,
    ids_of,
    sequence_of,
    spec,
)

from vectord.checkpoints.spec import Output
from vectord.compute.backends.base import Answers, TokenBatch
from vectord.engine.queue.batch import Batch, Item, Kind
from vectord.engine.queue.execution import Execution, Reply, lexical_weights, output_of, splade_weights
from vectord.errors import InferenceFailed, OutOfMemory
from vectord.schema import Sparse

POISON = ord("!")
DENSE: frozenset[Kind] = frozenset({"dense"})
SPLADE = spec(("splade",))


def batch(*texts: str, kinds: frozenset[Kind] = DENSE, alone: bool = False) -> Batch:
    return Batch([item(text, kinds) for text in texts], sum(map(len, texts)), alone, pressed=False)


def item(text: str, kinds: frozenset[Kind] = DENSE) -> Item:
    return Item(sequence_of(text), kinds, "", "interactive")


def run(backend: FakeBackend, given: Batch, model=M3) -> list[Reply]:
    return Execution(backend, model, SPECIAL_IDS).run(given, stream=0)


def check_row(answer: Reply, text: str) -> None:
    np.testing.assert_array_equal(answer["dense"], [expected_row(text)])


texts = st.lists(st.text("abc!", min_size=1, max_size=6), min_size=1, max_size=8)


@given(texts)
@settings(deadline=None, max_examples=60)
def test_a_poison_text_fails_alone(texts):
    """A forward that raises for one text is tried again text by text; the others have their rows, in order."""

    def fail(tokens: TokenBatch) -> None:
        if POISON in tokens.texts.ids:
            raise RuntimeError("poison")

    answers = run(FakeBackend(fail=fail), batch(*texts))
    for text, answer in zip(texts, answers, strict=True):
        if "!" in text:
            assert type(answer) is InferenceFailed
            assert isinstance(answer.__cause__, RuntimeError)
        else:
            check_row(answer, text)


@given(texts)
@settings(deadline=None, max_examples=60)
def test_an_answer_that_is_not_finite_fails_alone(texts):
    """It never becomes an answer, and costs the others nothing: they are not run again, and it is, once, in float32."""
    backend = FakeBackend()
    backend.poison = POISON
    answers = run(backend, batch(*texts))
    assert len(backend.batches) == 1
    assert len(backend.exact) == sum("!" in text for text in texts)
    for text, answer in zip(texts, answers, strict=True):
        if "!" in text:
            assert type(answer) is InferenceFailed
        else:
            check_row(answer, text)


@given(texts)
@settings(deadline=None, max_examples=60)
def test_an_answer_that_is_finite_in_float32_is_an_answer(texts):
    """What overflowed in fewer bits is computed again, alone."""
    backend = FakeBackend()
    backend.poison, backend.heals = POISON, True
    for text, answer in zip(texts, run(backend, batch(*texts)), strict=True):
        check_row(answer, text)
    assert all(len(tokens.texts.cu_seqlens) == 2 for tokens in backend.exact)


@pytest.mark.parametrize(
    "error", [RuntimeError("broken"), MemoryError(), NotImplementedError()], ids=lambda error: type(error).__name__
)
def test_a_second_try_that_raises_fails_its_text_alone(error):
    """Whatever the device's library raises."""

    class Broken(FakeBackend):
        def forward_exact(self, batch: TokenBatch) -> Answers:
            raise error

    backend = Broken()
    backend.poison = POISON
    fine, poisoned = run(backend, batch("a", "!"))
    check_row(fine, "a")
    assert type(poisoned) is InferenceFailed
    assert poisoned.__cause__ is error


def test_what_a_text_did_not_ask_for_cannot_fail_it():
    """Another text of its batch asked for tokens, and some of its own are not finite: its dense vector is."""

    class Half(FakeBackend):
        def forward(self, batch: TokenBatch, stream: int) -> Answers:
            answers = super().forward(batch, stream)
            answers["tokens"][:] = np.nan
            return answers

    backend = Half()
    backend.heals = True
    items = [item("a"), item("b", frozenset({"tokens"}))]
    fine, healed = run(backend, Batch(items, 2, alone=False, pressed=False))
    check_row(fine, "a")
    assert healed["tokens"].tolist() == [[98] * WIDTH]
    assert len(backend.exact) == 1


@given(texts, st.integers(1, 12))
@settings(deadline=None, max_examples=60)
def test_out_of_memory_halves_the_batch(texts, room):
    """What fits in the end has its row; only a text that does not fit alone fails."""

    def fail(tokens: TokenBatch) -> None:
        if len(tokens.texts.ids) > room:
            raise MemoryError

    backend = FakeBackend(fail=fail)
    answers = run(backend, batch(*texts))
    for text, answer in zip(texts, answers, strict=True):
        if len(text) > room:
            assert type(answer) is OutOfMemory
        else:
            check_row(answer, text)
    assert len(backend.batches) <= 2 * len(texts) - 1


def test_half_a_batch_is_not_alone_on_the_device():
    """After a failure the halves run on this stream's own share of the device."""

    def fail(tokens: TokenBatch) -> None:
        if len(tokens.texts.cu_seqlens) > 2:
            raise MemoryError

    backend = FakeBackend(fail=fail)
    run(backend, batch("a", "b", alone=True))
    assert [tokens.alone for tokens in backend.batches] == [True, False, False]


def test_kinds_may_be_mixed_in_a_batch():
    """Each text gets what it asked for and no more; the network is asked once, for all of it."""
    kinds: list[frozenset[Kind]] = [
        frozenset({"dense"}),
        frozenset({"sparse", "colbert"}),
        frozenset({"tokens"}),
        frozenset({"dense", "sparse", "colbert", "tokens"}),
    ]
    items = [item(text, asked) for text, asked in zip(["ab", "c", "def", "gg"], kinds, strict=True)]
    backend = FakeBackend()
    answers = run(backend, Batch(items, 8, alone=False, pressed=False))
    (tokens,) = backend.batches
    assert tokens.outputs == {"dense", "lexical", "colbert", "tokens"}
    assert [answer.keys() for answer in answers] == kinds
    check_row(answers[0], "ab")
    np.testing.assert_array_equal(answers[1]["colbert"], expected_colbert(ids_of("c")))
    np.testing.assert_array_equal(answers[2]["tokens"][:, 0], ids_of("def"))
    check_row(answers[3], "gg")
    assert answers[3]["sparse"].indices.tolist() == [ord("g")]
    assert answers[3]["sparse"].values.tolist() == expected_weights(ids_of("g")).tolist()


def test_only_what_is_asked_for_leaves_the_device():
    """The backend is not asked for tokens because the model could give them."""
    backend = FakeBackend()
    run(backend, batch("a", "b"))
    assert [tokens.outputs for tokens in backend.batches] == [{"dense"}]


def test_splade_is_sparse_too():
    """Its weights are of all words, and only those above 0 are an answer."""
    (answer,) = run(FakeBackend(), batch("bab", kinds=frozenset({"sparse"})), SPLADE)
    assert answer["sparse"].indices.tolist() == [ord("a"), ord("b")]
    np.testing.assert_allclose(answer["sparse"].values, np.log1p([0.5, 1.5]), rtol=1e-6)


def test_scores_are_a_row_a_text():
    """As wide as the model has labels."""
    model = spec(("scores",), labels=("x", "y"))
    answers = run(FakeBackend(labels=2), batch("a", "bc", kinds=frozenset({"scores"})), model)
    for text, answer in zip(["a", "bc"], answers, strict=True):
        np.testing.assert_array_equal(answer["scores"], [expected_logits(ids_of(text), 2)])


@pytest.mark.parametrize("kind", ["dense", "tokens", "colbert", "sparse", "scores"])
def test_an_answer_owns_its_memory(kind):
    """A view would keep a whole batch in memory for one short text of it, and the cache would not know."""
    model = spec(("dense", "tokens", "colbert", "splade", "scores"), labels=("x",))
    for answer in run(FakeBackend(), batch("ab", "c", kinds=frozenset({kind})), model):
        value = answer[kind]
        for array in [value.indices, value.values] if isinstance(value, Sparse) else [value]:
            assert array.base is None


WRONG_SHAPES: list[tuple[Output, tuple[int, ...]]] = [
    ("dense", (1, WIDTH)),
    ("dense", (3, WIDTH)),
    ("dense", (2,)),
    ("dense", ()),
    ("dense", (2, WIDTH, 1)),
    ("dense", (2, WIDTH - 1)),
    ("tokens", (1, WIDTH)),
    ("tokens", (2, WIDTH + 1)),
    ("lexical", (2, 2)),
    ("colbert", (2, COLBERT_WIDTH + 1)),
    ("splade", (1, 9)),
    ("scores", (2, 2)),
]


@pytest.mark.parametrize(("output", "shape"), WRONG_SHAPES, ids=str)
def test_answers_of_the_wrong_shape_are_a_failure(output, shape):
    """A backend that answers too few rows must not shift them to other texts."""

    class Wrong(FakeBackend):
        def forward(self, batch: TokenBatch, stream: int) -> Answers:
            return {output: np.zeros(shape if len(batch.texts.cu_seqlens) > 2 else (0, 0), np.float32)}

    model = spec((output,), labels=("x",) if output == "scores" else (), dimensions=WIDTH)
    answers = run(Wrong(), batch("a", "b", kinds=frozenset(output_of(model))), model)
    assert [type(answer) for answer in answers] == [InferenceFailed, InferenceFailed]


def test_an_answer_that_is_missing_is_a_failure():
    """A backend that leaves out what was asked for."""

    class Silent(FakeBackend):
        def forward(self, batch: TokenBatch, stream: int) -> Answers:
            return {}

    (answer,) = run(Silent(), batch("a"))
    assert type(answer) is InferenceFailed


def test_a_failure_does_not_hold_the_batch_it_was_in():
    """Its cause is that of its own try: what failed before is not chained behind it."""

    def fail(tokens: TokenBatch) -> None:
        if POISON in tokens.texts.ids:
            raise RuntimeError("poison")

    _, failure = run(FakeBackend(fail=fail), batch("a", "!"))
    assert failure.__cause__.__context__ is None


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


weighted_tokens = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.5])), max_size=20)


@given(weighted_tokens, st.sets(st.integers(0, 9), max_size=3))
@settings(deadline=None, max_examples=150)
def test_a_word_weighs_as_much_as_its_heaviest_token(tokens, unused):
    """Against a dict filled token by token: specials and weights of 0 are no words, order is that of appearance."""
    expected: dict[int, float] = {}
    for word, weight in tokens:
        if word not in unused and weight > 0:
            expected[word] = max(weight, expected.get(word, 0.0))
    ids = np.array([word for word, _ in tokens], np.int32)
    weights = np.array([weight for _, weight in tokens], np.float32)
    made = lexical_weights(ids, weights, np.array(sorted(unused), np.int32))
    assert list(zip(made.indices.tolist(), made.values.tolist(), strict=True)) == list(expected.items())
    assert (made.indices.dtype, made.values.dtype) == (np.int32, np.float32)


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30))
@settings(deadline=None, max_examples=100)
def test_logits_become_logarithms_of_those_above_zero(logits):
    """log(1 + relu(x)), each word once, ascending."""
    made = splade_weights(np.array(logits, np.float32))
    expected = {word: math.log1p(x) for word, x in enumerate(logits) if x > 0}
    assert made.indices.tolist() == list(expected)
    np.testing.assert_allclose(made.values, list(expected.values()), rtol=1e-6)
    assert (made.indices.dtype, made.values.dtype) == (np.int32, np.float32)
