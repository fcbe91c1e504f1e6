"""Packing of items of all kinds, and each item's rows of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.fakes import sequence_of

from vectord.checkpoints.spec import Output
from vectord.compute.backends.base import Answers, PackedTexts
from vectord.compute.ops.base import AttentionSpec
from vectord.compute.ops.numpy import NumpyOps
from vectord.compute.ops.numpy import pack as numpy_tokens
from vectord.engine.queue.batch import Item, Kind
from vectord.engine.queue.packing import pack
from vectord.schema import Int32
from vectord.text.sequence import Prefix

WORDS, WIDTH = 12, 6
KINDS: frozenset[Kind] = frozenset({"dense", "tokens"})
OUTPUTS: Mapping[Kind, Output] = {"dense": "dense", "tokens": "tokens"}


def ids(values: Sequence[int]) -> Int32:
    return np.array(values, np.int32)


def item(
    own: Sequence[int],
    *,
    spans: Sequence[tuple[int, int]] | None = None,
    keys: int | None = None,
    prefix: Prefix | None = None,
    kinds: frozenset[Kind] = KINDS,
) -> Item:
    begun = ids([]) if prefix is None else prefix.ids
    sequence = sequence_of(
        np.concatenate((begun, ids(own))), spans=None if spans is None else ids(spans), keys=keys, prefix=prefix
    )
    return Item(sequence, kinds, "", "interactive")


def alone(one: Item) -> Item:
    """The same text without a shared prefix."""
    sequence = one.sequence
    if sequence.prefix is None:
        return one
    begun = len(sequence.prefix.ids)
    spans = ids([(0, len(sequence.own_ids))]) if sequence.spans is None else sequence.spans
    return item(
        sequence.ids.tolist(),
        spans=(spans + begun).tolist(),
        keys=None if sequence.keys is None else begun + sequence.keys,
    )


def causal_network(seed: int = 0) -> Callable[[PackedTexts], Answers]:
    """Two layers of causal attention over random numbers, in float64."""
    rng = np.random.default_rng(seed)
    words, places = rng.normal(size=(WORDS, WIDTH)), rng.normal(size=(64, WIDTH))
    layers = rng.normal(size=(2, 3, WIDTH, WIDTH))
    attention = AttentionSpec(heads=2, head_size=WIDTH // 2, causal=True)
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
    return item(
        own,
        spans=draw(st.none() | st.lists(spans, min_size=1, max_size=3)),
        keys=draw(st.none() | st.integers(1, len(own))),
        prefix=draw(st.sampled_from([None, *prefixes])),
    )


@given(batches())
@settings(deadline=None, max_examples=150)
def test_every_item_receives_its_own_rows(batch):
    """A causal network's numbers in a batch with shared prefixes equal those alone without a prefix."""
    packed = pack(batch, OUTPUTS, alone=False)
    answers = NETWORK(packed.batch.texts)
    for index, one in enumerate(batch):
        by_itself = pack([alone(one)], OUTPUTS, alone=True)
        expected = NETWORK(by_itself.batch.texts)
        np.testing.assert_allclose(
            packed.part(answers, "dense", index), by_itself.part(expected, "dense", 0), rtol=1e-9, atol=1e-9
        )
        own_tokens = expected["tokens"][-len(one.sequence.own_ids) :]
        np.testing.assert_allclose(packed.part(answers, "tokens", index), own_tokens, rtol=1e-9, atol=1e-9)


@given(batches())
@settings(deadline=None, max_examples=100)
def test_a_prefix_occurs_once_per_batch(batch):
    """Every text occurs once, in order, after its prefix."""
    texts = pack(batch, OUTPUTS, alone=False).batch.texts
    prefixes = {one.sequence.prefix for one in batch if one.sequence.prefix is not None}
    assert len(texts.ids) == sum(len(one.sequence.own_ids) for one in batch) + sum(
        len(prefix.ids) for prefix in prefixes
    )
    parents = [-1] * (len(texts.cu_seqlens) - 1) if texts.parents is None else texts.parents.tolist()
    assert all(parent < place and (parent < 0 or parents[parent] < 0) for place, parent in enumerate(parents))


@given(batches())
@settings(deadline=None, max_examples=100)
def test_pooled_rows_count_the_spans_of_all_items(batch):
    """One row per span, and none for a prefix."""
    packed = pack(batch, OUTPUTS, alone=False)
    spans = sum(one.sequence.pooled for one in batch)
    assert packed.pooled_rows == spans == len(packed.batch.texts.pooled)


def test_plain_texts_have_only_tokens():
    """Without spans, keys or parents the arrays are None, which is a backend's fast path."""
    packed = pack([item([1, 2]), item([3]), item([4, 5, 6])], OUTPUTS, alone=True)
    texts = packed.batch.texts
    assert texts.ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert texts.cu_seqlens.tolist() == [0, 2, 3, 6]
    assert (texts.spans, texts.keys, texts.parents) == (None, None, None)
    assert {texts.ids.dtype, texts.type_ids.dtype, texts.cu_seqlens.dtype} == {np.dtype(np.int32)}
    assert packed.batch.alone


def test_a_batch_requests_the_kinds_of_all_items():
    """By the network's names."""
    outputs: Mapping[Kind, Output] = {"dense": "dense", "sparse": "lexical"}
    batch = [item([1], kinds=frozenset({"dense"})), item([2], kinds=frozenset({"sparse"}))]
    assert pack(batch, outputs, alone=False).batch.outputs == {"dense", "lexical"}


def test_two_prefixes_of_the_same_tokens_are_two():
    """They are compared by identity: two requests with the same query do not share a prefix."""
    batch = [item([1], prefix=Prefix(ids([7, 8]))), item([2], prefix=Prefix(ids([7, 8])))]
    assert pack(batch, OUTPUTS, alone=False).batch.texts.ids.tolist() == [7, 8, 1, 7, 8, 2]
