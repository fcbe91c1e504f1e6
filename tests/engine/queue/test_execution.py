"""One batch on one backend: packing, and every text receives its own row or its own error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
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
from vectord.compute.backends.base import Answers, PackedTexts, TokenBatch
from vectord.compute.ops.base import AttentionSpec
from vectord.compute.ops.numpy import NumpyOps
from vectord.compute.ops.numpy import pack as numpy_tokens
from vectord.engine.queue.batch import IN_ROWS, Answer, Batch, Item
from vectord.engine.queue.execution import Execution, lexical_weights, pack, splade_weights
from vectord.errors import InferenceFailed, OutOfMemory
from vectord.schema import AnswerKind, Float32, Int32, Sparse
from vectord.text.sequence import Prefix, Texts

POISON = ord("!")
DENSE: frozenset[AnswerKind] = frozenset({"dense"})
SPLADE = spec(("splade",))


def batch(*texts: str, kinds: frozenset[AnswerKind] = DENSE, alone: bool = False, cut: int = 1) -> Batch:
    """cut: how many of the texts, at most, are of one request."""
    requests = [span(*texts[start : start + cut], kinds=kinds) for start in range(0, len(texts), cut)]
    return Batch(requests, len(texts), sum(map(len, texts)), alone, under_load=False)


def item(text: str, kinds: frozenset[AnswerKind] = DENSE) -> Item:
    return span(text, kinds=kinds)


def span(*texts: str, kinds: frozenset[AnswerKind] = DENSE) -> Item:
    return Item(Texts.of([sequence_of(text) for text in texts]), kinds, "", "interactive")


def run(backend: FakeBackend, given: Batch, model=M3) -> list[Answer | InferenceFailed]:
    """The answer to each text."""
    replies = Execution(backend, model, SPECIAL_IDS).run(given, stream=0)
    return [
        reply if isinstance(reply, InferenceFailed) else {kind: _one(kind, value, i) for kind, value in reply.items()}
        for item, reply in replies
        for i in range(len(item))
    ]


def _one(kind: AnswerKind, values: Float32 | list, i: int) -> Float32 | Sparse:
    return (values if len(values) == 1 else values[i : i + 1]) if kind in IN_ROWS else values[i]


def check_row(answer: Answer | InferenceFailed, text: str) -> None:
    np.testing.assert_array_equal(answer["dense"], [expected_row(text)])


texts = st.lists(st.text("abc!", min_size=1, max_size=6), min_size=1, max_size=8)


@pytest.mark.parametrize("error", [RuntimeError("poison"), SystemExit()], ids=["error", "exit"])
@given(texts, st.integers(1, 8))
def test_a_poison_text_fails_alone(error, texts, cut):
    """After any exception the batch runs text by text; the other texts have their rows, in order."""

    def fail(tokens: TokenBatch) -> None:
        if POISON in tokens.texts.ids:
            raise error

    answers = run(FakeBackend(fail=fail), batch(*texts, cut=cut))
    for text, answer in zip(texts, answers, strict=True):
        if "!" in text:
            assert type(answer) is InferenceFailed
            assert answer.__cause__ is error
        else:
            check_row(answer, text)


@given(texts, st.integers(1, 8))
def test_an_answer_that_is_not_finite_fails_alone(texts, cut):
    """It runs once more in float32. The other texts do not run again."""
    backend = FakeBackend()
    backend.poison = POISON
    answers = run(backend, batch(*texts, cut=cut))
    assert len(backend.batches) == 1
    assert len(backend.exact) == sum("!" in text for text in texts)
    for text, answer in zip(texts, answers, strict=True):
        if "!" in text:
            assert type(answer) is InferenceFailed
        else:
            check_row(answer, text)


@given(texts, st.integers(1, 8))
def test_an_answer_that_is_finite_in_float32_is_an_answer(texts, cut):
    """A text that overflowed in fewer bits is computed again, alone."""
    backend = FakeBackend()
    backend.poison, backend.heals = POISON, True
    for text, answer in zip(texts, run(backend, batch(*texts, cut=cut)), strict=True):
        check_row(answer, text)
    assert all(len(tokens.texts.cu_seqlens) == 2 for tokens in backend.exact)


@pytest.mark.parametrize(
    "error", [RuntimeError("broken"), MemoryError(), NotImplementedError()], ids=lambda error: type(error).__name__
)
def test_an_exception_in_float32_fails_the_text_alone(error):
    """For any exception of the device's library."""

    class Broken(FakeBackend):
        def forward_exact(self, batch: TokenBatch) -> Answers:
            raise error

    backend = Broken()
    backend.poison = POISON
    fine, poisoned = run(backend, batch("a", "!"))
    check_row(fine, "a")
    assert type(poisoned) is InferenceFailed
    assert poisoned.__cause__ is error


def test_outputs_that_a_text_did_not_request_cannot_fail_it():
    """Another text of the batch requested tokens. Some of this text's tokens are not finite; its dense vector is."""

    class Half(FakeBackend):
        def forward(self, batch: TokenBatch, stream: int) -> Answers:
            answers = super().forward(batch, stream)
            answers["tokens"][:] = np.nan
            return answers

    backend = Half()
    backend.heals = True
    items = [item("a"), item("b", frozenset({"tokens"}))]
    fine, healed = run(backend, Batch(items, 2, 2, alone=False, under_load=False))
    check_row(fine, "a")
    assert healed["tokens"].tolist() == [[98] * WIDTH]
    assert len(backend.exact) == 1


@given(texts, st.integers(1, 12), st.integers(1, 8))
def test_out_of_memory_halves_the_batch(texts, room, cut):
    """Only a text that does not fit alone fails."""

    def fail(tokens: TokenBatch) -> None:
        if len(tokens.texts.ids) > room:
            raise MemoryError

    backend = FakeBackend(fail=fail)
    answers = run(backend, batch(*texts, cut=cut))
    for text, answer in zip(texts, answers, strict=True):
        if len(text) > room:
            assert type(answer) is OutOfMemory
        else:
            check_row(answer, text)
    assert len(backend.batches) <= 2 * len(texts) - 1


def test_half_a_batch_does_not_use_the_whole_device():
    """After a failure the halves run on this stream's share of the device."""

    def fail(tokens: TokenBatch) -> None:
        if len(tokens.texts.cu_seqlens) > 2:
            raise MemoryError

    backend = FakeBackend(fail=fail)
    run(backend, batch("a", "b", alone=True))
    assert [tokens.alone for tokens in backend.batches] == [True, False, False]


def test_kinds_may_be_mixed_in_a_batch():
    """Each text receives the kinds that it requested. The network runs once for all kinds."""
    kinds: list[frozenset[AnswerKind]] = [
        frozenset({"dense"}),
        frozenset({"sparse", "colbert"}),
        frozenset({"tokens"}),
        frozenset({"dense", "sparse", "colbert", "tokens"}),
    ]
    items = [item(text, kind) for text, kind in zip(["ab", "c", "def", "gg"], kinds, strict=True)]
    backend = FakeBackend()
    answers = run(backend, Batch(items, 4, 8, alone=False, under_load=False))
    (tokens,) = backend.batches
    assert tokens.outputs == {"dense", "lexical", "colbert", "tokens"}
    assert [answer.keys() for answer in answers] == kinds
    check_row(answers[0], "ab")
    np.testing.assert_array_equal(answers[1]["colbert"], expected_colbert(ids_of("c")))
    np.testing.assert_array_equal(answers[2]["tokens"][:, 0], ids_of("def"))
    check_row(answers[3], "gg")
    assert answers[3]["sparse"].indices.tolist() == [ord("g")]
    assert answers[3]["sparse"].values.tolist() == expected_weights(ids_of("g")).tolist()


def test_splade_logits_become_sparse_vectors():
    """Of all words, those with a weight above 0 remain."""
    (answer,) = run(FakeBackend(), batch("bab", kinds=frozenset({"sparse"})), SPLADE)
    assert answer["sparse"].indices.tolist() == [ord("a"), ord("b")]
    np.testing.assert_allclose(answer["sparse"].values, np.log1p([0.5, 1.5]), rtol=1e-6)


def test_vectors_of_whole_numbers():
    """127 times the tanh, rounded: pplx-embed's."""
    (plain,), (whole,) = (run(FakeBackend(), batch("ab"), one) for one in (spec(), spec(whole_numbers=True)))
    np.testing.assert_array_equal(whole["dense"], np.rint(127 * np.tanh(plain["dense"])))
    assert np.abs(whole["dense"]).max() > 1


def test_log_twice_is_a_logarithm_of_the_logarithm():
    """SpladePooling's log1p_relu."""
    (answer,) = run(FakeBackend(), batch("bab", kinds=frozenset({"sparse"})), spec(("splade",), log_twice=True))
    np.testing.assert_allclose(answer["sparse"].values, np.log1p(np.log1p([0.5, 1.5])), rtol=1e-6)


def test_scores_are_one_row_per_text():
    """With one column per label."""
    model = spec(("scores",), labels=("x", "y"))
    answers = run(FakeBackend(labels=2), batch("a", "bc", kinds=frozenset({"scores"})), model)
    for text, answer in zip(["a", "bc"], answers, strict=True):
        np.testing.assert_array_equal(answer["scores"], [expected_logits(ids_of(text), 2)])


@pytest.mark.parametrize("kind", ["dense", "tokens", "colbert", "sparse", "scores"])
def test_an_answer_owns_its_memory(kind):
    """A view would keep a whole batch in memory for one short text, unknown to the cache."""
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
def test_outputs_of_the_wrong_shape_are_a_failure(output, shape):
    """A backend that returns too few rows must not shift them to other texts."""

    class Wrong(FakeBackend):
        def forward(self, batch: TokenBatch, stream: int) -> Answers:
            return {output: np.zeros(shape if len(batch.texts.cu_seqlens) > 2 else (0, 0), np.float32)}

    model = spec((output,), labels=("x",) if output == "scores" else (), dimensions=WIDTH)
    answers = run(Wrong(), batch("a", "b", kinds=frozenset(model.kinds)), model)
    assert [type(answer) for answer in answers] == [InferenceFailed, InferenceFailed]


def test_a_missing_output_is_a_failure():
    """A backend that omits a requested output."""

    class Silent(FakeBackend):
        def forward(self, batch: TokenBatch, stream: int) -> Answers:
            return {}

    (answer,) = run(Silent(), batch("a"))
    assert type(answer) is InferenceFailed


def test_a_failure_does_not_reference_its_batch():
    """Its cause comes from its own run; the earlier failure of the batch is not chained."""

    def fail(tokens: TokenBatch) -> None:
        if POISON in tokens.texts.ids:
            raise RuntimeError("poison")

    _, failure = run(FakeBackend(fail=fail), batch("a", "!"))
    assert failure.__cause__.__context__ is None


def test_messages_do_not_contain_the_librarys_message():
    """The cause is for the log; the client receives our own words."""

    def fail(tokens: TokenBatch) -> None:
        raise RuntimeError("secret at 0x7f00")

    (answer,) = run(FakeBackend(fail=fail), batch("a"))
    assert "secret" not in answer.message


weighted_tokens = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.5])), max_size=20)


@given(weighted_tokens, st.sets(st.integers(0, 9), max_size=3))
def test_a_word_weighs_as_much_as_its_heaviest_token(tokens, unused):
    """Compared with a dict filled token by token, without special tokens and weights of 0, in order of appearance."""
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
def test_logits_above_zero_become_logarithms(logits):
    """log(1 + relu(x)), each word once, ascending."""
    made = splade_weights(np.array(logits, np.float32))
    expected = {word: math.log1p(x) for word, x in enumerate(logits) if x > 0}
    assert made.indices.tolist() == list(expected)
    np.testing.assert_allclose(made.values, list(expected.values()), rtol=1e-6)
    assert (made.indices.dtype, made.values.dtype) == (np.int32, np.float32)


WORDS, PACKED_WIDTH = 12, 6
KINDS: frozenset[AnswerKind] = frozenset({"dense", "tokens"})
OUTPUTS: Mapping[AnswerKind, Output] = {"dense": "dense", "tokens": "tokens"}


def ids(values: Sequence[int]) -> Int32:
    return np.array(values, np.int32)


def packed_item(
    own: Sequence[int],
    *,
    spans: Sequence[tuple[int, int]] | None = None,
    keys: int | None = None,
    prefix: Prefix | None = None,
    kinds: frozenset[AnswerKind] = KINDS,
) -> Item:
    begun = ids([]) if prefix is None else prefix.ids
    sequence = sequence_of(np.concatenate((begun, ids(own))), spans=None if spans is None else ids(spans), keys=keys)
    return Item(Texts.of([sequence], prefix), kinds, "", "interactive")


def own_tokens(one: Item) -> int:
    """How many tokens its text has after the prefix."""
    prefix = one.texts.prefix
    return one.tokens - (0 if prefix is None else len(prefix.ids))


def alone(one: Item) -> Item:
    """The same text without a shared prefix."""
    prefix, (sequence,) = one.texts.prefix, one.texts
    if prefix is None:
        return one
    begun = len(prefix.ids)
    spans = ids([(0, own_tokens(one))]) if sequence.spans is None else sequence.spans
    return packed_item(
        sequence.ids.tolist(),
        spans=(spans + begun).tolist(),
        keys=None if sequence.keys is None else begun + sequence.keys,
    )


def causal_network(seed: int = 0) -> Callable[[PackedTexts], Answers]:
    """Two layers of causal attention over random numbers, in float64."""
    rng = np.random.default_rng(seed)
    words, places = rng.normal(size=(WORDS, PACKED_WIDTH)), rng.normal(size=(64, PACKED_WIDTH))
    layers = rng.normal(size=(2, 3, PACKED_WIDTH, PACKED_WIDTH))
    attention = AttentionSpec(heads=2, head_size=PACKED_WIDTH // 2, causal=True)
    ops = NumpyOps()

    def run(texts: PackedTexts) -> Answers:
        tokens = numpy_tokens(texts)
        x = words[tokens.ids] + places[tokens.positions]
        for q, k, v in layers:
            x = x + ops.attention(x @ q, x @ k, x @ v, tokens, attention)
        return {"tokens": x, "dense": ops.mean(x, tokens)}

    return run


NETWORK = causal_network()
tokens_of_a_text = st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=6)


@st.composite
def batches(draw: st.DrawFn) -> list[Item]:
    """Items with and without shared prefixes, spans and keys."""
    prefixes = [Prefix(ids(draw(tokens_of_a_text))) for _ in range(draw(st.integers(0, 2)))]
    return [draw(items(prefixes)) for _ in range(draw(st.integers(1, 6)))]


@st.composite
def items(draw: st.DrawFn, prefixes: Sequence[Prefix]) -> Item:
    own = draw(tokens_of_a_text)
    starts = st.integers(0, len(own) - 1)
    spans = starts.flatmap(lambda start: st.tuples(st.just(start), st.integers(start + 1, len(own))))
    return packed_item(
        own,
        spans=draw(st.none() | st.lists(spans, min_size=1, max_size=3)),
        keys=draw(st.none() | st.integers(1, len(own))),
        prefix=draw(st.sampled_from([None, *prefixes])),
    )


@given(batches())
def test_every_item_receives_its_own_rows(batch):
    """A causal network's numbers in a batch with shared prefixes equal those alone without a prefix."""
    packed = pack(batch, OUTPUTS, alone=False)
    answers = NETWORK(packed.batch.texts)
    for first, one in zip(packed.firsts, batch, strict=True):
        by_itself = pack([alone(one)], OUTPUTS, alone=True)
        expected = NETWORK(by_itself.batch.texts)
        np.testing.assert_allclose(
            packed.part(answers, "dense", first, 1), by_itself.part(expected, "dense", 0, 1), rtol=1e-9, atol=1e-9
        )
        rows = expected["tokens"][-own_tokens(one) :]
        np.testing.assert_allclose(packed.part(answers, "tokens", first, 1), rows, rtol=1e-9, atol=1e-9)


@given(batches())
def test_a_prefix_occurs_once_per_batch(batch):
    """Every text occurs once, in order, after its prefix."""
    texts = pack(batch, OUTPUTS, alone=False).batch.texts
    prefixes = {one.texts.prefix for one in batch if one.texts.prefix is not None}
    assert len(texts.ids) == sum(map(own_tokens, batch)) + sum(len(prefix.ids) for prefix in prefixes)
    parents = [-1] * (len(texts.cu_seqlens) - 1) if texts.parents is None else texts.parents.tolist()
    assert all(parent < place and (parent < 0 or parents[parent] < 0) for place, parent in enumerate(parents))


@given(batches())
def test_pooled_rows_count_the_spans_of_all_items(batch):
    """One row per span, and none for a prefix."""
    packed = pack(batch, OUTPUTS, alone=False)
    spans = sum(int(one.texts.all_pooled.sum()) for one in batch)
    assert packed.pooled_rows == spans == len(packed.batch.texts.pooled)


def test_plain_texts_have_only_tokens():
    """Without spans, keys or parents the arrays are None, which is a backend's fast path."""
    packed = pack([packed_item([1, 2]), packed_item([3]), packed_item([4, 5, 6])], OUTPUTS, alone=True)
    texts = packed.batch.texts
    assert texts.ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert texts.cu_seqlens.tolist() == [0, 2, 3, 6]
    assert (texts.spans, texts.keys, texts.parents) == (None, None, None)
    assert {texts.ids.dtype, texts.type_ids.dtype, texts.cu_seqlens.dtype} == {np.dtype(np.int32)}
    assert packed.batch.alone


def test_two_prefixes_of_the_same_tokens_are_two():
    """They are compared by identity: two requests with the same query do not share a prefix."""
    batch = [packed_item([1], prefix=Prefix(ids([7, 8]))), packed_item([2], prefix=Prefix(ids([7, 8])))]
    assert pack(batch, OUTPUTS, alone=False).batch.texts.ids.tolist() == [7, 8, 1, 7, 8, 2]
