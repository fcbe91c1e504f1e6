"""How a text is read: its prompt, the rows that are pooled, and the rows that count."""

from __future__ import annotations

import threading

import numpy as np
from tests.engine.fakes import (
    COLBERT_WIDTH,
    DOCUMENT_MARK,
    M3,
    MASK,
    MAX_TOKENS,
    QUERY_LENGTH,
    QUERY_MARK,
    ByteEncoder,
    expected_colbert,
    expected_row,
    ids_of,
    serving_one,
    spans_of,
    spec,
)

from vectord.checkpoints.spec import Colbert
from vectord.schema import Caller, EmbedRequest, TextOptions

ANYONE = Caller()
COLBERT = spec(("colbert", "tokens"), colbert=Colbert(dimensions=COLBERT_WIDTH))
DENSE_ONE = spec(("dense",), fingerprint="d" * 16)


async def test_a_model_may_leave_its_prompt_out_of_pooling():
    """Only the text's own rows are pooled."""
    asked = EmbedRequest(inputs=["abc"], text=TextOptions(prompt="Q: "), normalize=False)
    async with serving_one(spec(include_prompt=False)) as (engine, backend):
        result = await engine.answer(asked, ANYONE)
        (span,) = spans_of(backend.batches[-1])
    assert (span.start, span.stop) == (3, 6)
    np.testing.assert_array_equal(result.dense["float"], [expected_row("abc")])


async def test_a_text_that_is_all_prompt_still_has_a_row_to_pool():
    """A prompt above the limit leaves no token of the text, and a mean of no rows is not finite."""
    text = TextOptions(prompt="p" * (MAX_TOKENS + 9), truncate=True)
    async with serving_one(spec(include_prompt=False)) as (engine, backend):
        await engine.answer(EmbedRequest(inputs=["abc"], text=text), ANYONE)
        (span,) = spans_of(backend.batches[-1])
    assert (span.start, span.stop) == (MAX_TOKENS - 1, MAX_TOKENS)


async def test_the_cache_keeps_sparse_vectors_too():
    """A text runs once for the same kinds, and again for others."""
    async with serving_one(M3) as (engine, backend):
        for outputs in ({"sparse"}, {"sparse"}, {"dense", "sparse"}, {"dense", "sparse"}):
            result = await engine.answer(EmbedRequest(inputs=["ac"], outputs=frozenset(outputs)), ANYONE)
            assert result.sparse[0].indices.tolist() == [97, 99]
    assert backend.texts_run() == ["ac"] * 2


async def test_a_colbert_model_marks_queries_and_documents():
    """A query is filled up with unattended tokens; the marker's own vector does not count."""
    async with serving_one(COLBERT) as (engine, backend):
        asked = EmbedRequest(inputs=["ab"], outputs=frozenset({"colbert"}), text=TextOptions(kind="query"))
        query = await engine.answer(asked, ANYONE)
        document = await engine.answer(EmbedRequest(inputs=["ab"], outputs=frozenset({"colbert"})), ANYONE)
    read, stored = (batch.texts for batch in backend.batches)
    assert read.ids.tolist() == [QUERY_MARK, 97, 98] + [MASK] * (QUERY_LENGTH - 3)
    assert read.keys.tolist() == [3]
    assert stored.ids.tolist() == [DOCUMENT_MARK, 97, 98]
    assert stored.keys is None
    assert [len(query.colbert[0]), len(document.colbert[0])] == [QUERY_LENGTH - 1, 2]
    np.testing.assert_array_equal(document.colbert[0], expected_colbert(ids_of("ab")))


async def test_texts_under_a_long_prompt_are_not_read_on_the_loop():
    """The prompt is read once for each text: 60 empty texts would hold the loop for 0.1 s."""
    encoder = ByteEncoder(DENSE_ONE)
    async with serving_one(DENSE_ONE, encoder=encoder) as (engine, _):
        encoder.threads.clear()
        text = TextOptions(prompt="p" * 60)
        await engine.answer(EmbedRequest(inputs=[""] * 60, text=text), ANYONE)
        assert threading.current_thread().name not in encoder.threads
