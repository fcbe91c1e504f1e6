"""Long texts in chunks: a vector for each chunk, read alone or in context."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.fakes import (
    CROSS_ENCODER,
    WIDTH,
    ByteEncoder,
    backend_for,
    expected_row,
    ids_of,
    serving,
    serving_one,
    spec,
)
from tests.refusals import refuses

from vectord.errors import EmptyInput, InferenceFailed, InputTooLong, InvalidField, ModelCannot, TooManyInputs
from vectord.schema import Caller, ChunkOptions, DocumentsRequest, Span, TextOptions

ANYONE = Caller()
DENSE = spec(("dense",))
DOCUMENTS = ["abcdefghij", "klm", "nopqrstuvwxyzab"]
FOURS = ChunkOptions(max_tokens=4)


def ask(**changes: object) -> DocumentsRequest:
    facts = {"documents": DOCUMENTS, "chunks": FOURS, "normalize": False}
    return DocumentsRequest(**(facts | changes))  # type: ignore[arg-type]


def pieces(document: str) -> list[str]:
    return [document[start : start + 4] for start in range(0, len(document), 4)]


@pytest.mark.parametrize("late", [False, True], ids=["one by one", "late"])
async def test_every_document_has_its_own_chunks_and_vectors(late):
    """In order, regardless of windows and batches."""
    async with serving_one(DENSE) as (engine, _):
        result = await engine.answer(ask(late=late), ANYONE)
    for document, made in zip(DOCUMENTS, result.documents, strict=True):
        texts = pieces(document)
        assert [document[c.span.start : c.span.stop] for c in made.chunks] == texts
        assert [chunk.tokens for chunk in made.chunks] == [len(text) for text in texts]
        np.testing.assert_array_equal(made.vectors["float"], [expected_row(text) for text in texts])
        assert made.mean is None


async def test_one_by_one_each_chunk_is_a_text():
    """The length of a document is the sum of its chunks' lengths."""
    async with serving_one(DENSE) as (engine, backend):
        result = await engine.answer(ask(), ANYONE)
    assert sorted(backend.texts_run()) == sorted(text for document in DOCUMENTS for text in pieces(document))
    assert [length.kept for length in result.usage.lengths] == [10, 3, 15]
    assert result.usage.characters == 28


async def test_chunks_without_vectors_are_not_computed():
    """Also of a model that makes no dense vectors."""
    async with serving_one(spec(("splade",))) as (engine, backend):
        result = await engine.answer(ask(vectors=False, model="m0"), ANYONE)
    assert backend.texts_run() == []
    for document, made in zip(DOCUMENTS, result.documents, strict=True):
        assert [document[c.span.start : c.span.stop] for c in made.chunks] == pieces(document)
        assert made.vectors == {}
    assert result.usage.tokens == 28


async def test_late_chunking_reads_windows():
    """Each chunk's vector is pooled from its rows in the window; the two special tokens of each window are billed."""
    async with serving_one(DENSE) as (engine, backend):
        result = await engine.answer(ask(late=True), ANYONE)
    (batch,) = backend.batches
    windows = np.split(batch.texts.ids, batch.texts.cu_seqlens[1:-1])
    assert [window[1:-1].tolist() for window in windows] == [
        ids_of(stretch).tolist() for stretch in ("abcdefgh", "ij", "klm", "nopqrstu", "vwxyzab")
    ]
    assert [length.kept for length in result.usage.lengths] == [10 + 4, 3 + 2, 15 + 4]


@pytest.mark.parametrize("normalize", [True, False])
async def test_the_mean_of_a_document_is_that_of_its_chunks(normalize):
    """The mean is normalized if the vectors are."""
    async with serving_one(DENSE) as (engine, _):
        result = await engine.answer(ask(mean=True, normalize=normalize), ANYONE)
    for made in result.documents:
        mean = made.vectors["float"].astype(np.float64).mean(axis=0)
        expected = mean / np.linalg.norm(mean) if normalize else mean
        np.testing.assert_allclose(made.mean, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("late", [False, True], ids=["one by one", "late"])
async def test_a_document_without_text_has_no_chunks(late):
    """It keeps its place, and has no mean."""
    async with serving_one(DENSE) as (engine, _):
        result = await engine.answer(ask(documents=["abc", "", "def"], late=late, mean=True), ANYONE)
    assert [len(made.chunks) for made in result.documents] == [1, 0, 1]
    assert [made.vectors["float"].shape for made in result.documents] == [(1, WIDTH), (0, WIDTH), (1, WIDTH)]
    assert [made.mean is None for made in result.documents] == [False, True, False]
    assert result.usage.lengths[1].seen == 0


async def test_documents_without_any_text_are_rejected():
    """Nothing goes to the device."""
    async with serving_one(DENSE) as (engine, backend):
        with refuses(EmptyInput, field="documents"):
            await engine.answer(ask(documents=["", ""]), ANYONE)
    assert not backend.batches


@pytest.mark.parametrize("pooling", ["cls", "last", "max"])
async def test_late_chunking_needs_mean_pooling(pooling):
    """A chunk's first token does not summarize it."""
    async with serving_one(spec(("dense",), pooling=pooling)) as (engine, backend):
        with refuses(ModelCannot, field="late"):
            await engine.answer(ask(late=True), ANYONE)
        assert not backend.batches
        await engine.answer(ask(), ANYONE)


async def test_a_model_without_dense_vectors_is_rejected():
    """Named or not."""
    async with serving_one(CROSS_ENCODER) as (engine, backend):
        for name in ("m0", None):
            with pytest.raises(ModelCannot):
                await engine.answer(ask(model=name), ANYONE)
    assert not backend.batches


async def test_chunks_count_as_inputs():
    """A request has at most as many chunks as it may have texts."""
    async with serving_one(DENSE, max_client_batch_size=5) as (engine, backend):
        with pytest.raises(TooManyInputs, match="chunks") as refused:
            await engine.answer(ask(), ANYONE)
        assert (refused.value.field, refused.value.limit) == ("documents", 5)
        assert not backend.batches


async def test_chunking_stops_at_too_many_chunks(monkeypatch):
    """A body of 32 MB holds a million chunks, which would keep the tokenizing threads busy for half a minute."""
    read = []
    chunk = ByteEncoder.chunk
    monkeypatch.setattr(
        ByteEncoder,
        "chunk",
        lambda self, text, how, most: (read.append((text[0], most)), chunk(self, text, how, most))[1],
    )
    async with serving_one(DENSE, max_client_batch_size=5) as (engine, _):
        with pytest.raises(TooManyInputs):
            await engine.answer(ask(documents=["a" * 24, "b", "c"]), ANYONE)
    assert read == [("a", 5)]


@pytest.mark.parametrize("late", [False, True], ids=["one by one", "late"])
async def test_an_error_about_a_chunk_names_its_document(late):
    """The client does not know the chunks."""
    async with serving_one(DENSE) as (engine, backend):
        backend.poison = ord("w")
        with refuses(InferenceFailed, index=2):
            await engine.answer(ask(late=late), ANYONE)


async def test_a_chunk_that_is_too_long_with_its_prompt_names_its_document():
    """The prompt is added after chunking."""
    text = TextOptions(prompt="p" * 61, truncate=False)
    async with serving_one(DENSE) as (engine, _):
        with refuses(InputTooLong, field="documents", index=1):
            await engine.answer(ask(documents=["abc", "abcd"], text=text), ANYONE)


async def test_dimensions_cut_every_vector():
    """The space has the width in its name; a width above the model's is rejected."""
    async with serving_one(DENSE) as (engine, _):
        result = await engine.answer(ask(dimensions=3, normalize=True, mean=True), ANYONE)
        assert {made.vectors["float"].shape[1] for made in result.documents} == {3}
        assert result.documents[0].mean.shape == (3,)
        assert result.fingerprint == DENSE.fingerprint + ":3"
        with pytest.raises(InvalidField):
            await engine.answer(ask(dimensions=WIDTH + 1), ANYONE)


# --- chunks of the caller's own -------------------------------------------------------------------------------

SPANS = [[Span(0, 2), Span(4, 9)], [], [Span(3, 15)]]


def ask_at(spans: object, **changes: object) -> DocumentsRequest:
    return ask(chunks=None, spans=spans, **changes)


@pytest.mark.parametrize("late", [False, True], ids=["one by one", "late"])
async def test_the_client_s_own_chunks_are_embedded(late):
    """Gaps between them are allowed; a document may have none."""
    spans = [[Span(0, 2), Span(2, 9)], [], [Span(0, 15)]] if late else SPANS  # the fake's windows have no gaps
    async with serving_one(DENSE) as (engine, _):
        result = await engine.answer(ask_at(spans, late=late), ANYONE)
    for document, own, made in zip(DOCUMENTS, spans, result.documents, strict=True):
        assert [chunk.span for chunk in made.chunks] == own
        assert [chunk.tokens for chunk in made.chunks] == [span.stop - span.start for span in own]
        assert made.vectors["float"].shape == (len(own), WIDTH)
        if own:
            np.testing.assert_array_equal(
                made.vectors["float"], [expected_row(document[span.start : span.stop]) for span in own]
            )


@pytest.mark.parametrize(
    "own",
    [
        [Span(-1, 2)],
        [Span(2, 2)],
        [Span(3, 2)],
        [Span(0, 11)],
        [Span(0, 5), Span(4, 6)],
        [Span(4, 6), Span(0, 2)],
        [Span(0, 10**30)],
    ],
    ids=["before the text", "empty", "backwards", "beyond the text", "overlapping", "in another order", "absurd"],
)
async def test_spans_must_be_disjoint_and_in_order(own):
    """The error has the document's index, and the model is not loaded."""
    async with serving(backend_for(DENSE), models=[DENSE], model_loading="first-use") as engine:
        with pytest.raises(InvalidField) as refused:
            await engine.answer(ask_at([[Span(0, 1)], own], documents=["x", DOCUMENTS[0]]), ANYONE)
        assert engine.readiness() == {"m0": "unloaded"}
    assert (refused.value.field, refused.value.index) == ("spans", 1)
    assert f"`spans[1]`: span {len(own) - 1}, counted from 0, must" in refused.value.message


@pytest.mark.parametrize("spans", [[], SPANS[:2], [*SPANS, []]], ids=["none", "one too few", "one too many"])
async def test_spans_must_have_a_list_for_each_document(spans):
    """Otherwise spans would be used for the wrong document."""
    async with serving_one(DENSE) as (engine, _):
        with refuses(InvalidField, field="spans", limit=3, given=len(spans)):
            await engine.answer(ask_at(spans), ANYONE)


async def test_the_client_s_chunks_count_as_inputs():
    """Before any text is read."""
    spans = [[Span(i, i + 1) for i in range(3)], [], [Span(i, i + 1) for i in range(3)]]
    async with serving_one(DENSE, max_client_batch_size=5) as (engine, backend):
        with refuses(TooManyInputs, field="spans", limit=5, given=6):
            await engine.answer(ask_at(spans), ANYONE)
        with pytest.raises(EmptyInput):
            await engine.answer(ask_at([[], [], []]), ANYONE)
    assert not backend.batches
