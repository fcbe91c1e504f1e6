"""The raw vectors of one model: limits of memory, and inputs that fail alone."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tests.engine.fakes import (
    COLBERT_WIDTH,
    M3,
    MAX_TOKENS,
    WIDTH,
    ByteEncoder,
    FakeBackend,
    Recorder,
    close_gate,
    entered,
    expected_colbert,
    expected_row,
    ids_of,
    serving,
    serving_one,
    settle,
    spec,
)

from vectord.checkpoints.spec import Colbert
from vectord.compute.backends.base import TokenBatch
from vectord.engine.models.registry import CompositeSource
from vectord.engine.operations import vectors
from vectord.errors import (
    EmptyInput,
    InferenceFailed,
    InputTooLong,
    InvalidField,
    ModelCannot,
    OutOfMemory,
    Overloaded,
    TooManyInputs,
    Unavailable,
)
from vectord.schema import Caller, EmbedRequest, RerankRequest, TextLength, TextOptions

ANYONE = Caller()
ALL = frozenset({"dense", "sparse", "colbert", "tokens"})
TOO_LONG = "x" * (MAX_TOKENS + 1)


@pytest.mark.parametrize("kind", ["tokens", "colbert"])
async def test_token_vectors_beyond_a_response_are_rejected(kind, monkeypatch):
    """600 texts of MiniLM would be a response of 700 MB, 2,048 of BGE-M3 one of 200 GB."""
    width = WIDTH if kind == "tokens" else COLBERT_WIDTH
    monkeypatch.setattr(vectors, "MAX_SHOWN_NUMBERS", 6 * width)
    async with serving_one(M3) as (engine, backend):
        await engine.answer(EmbedRequest(inputs=["abc", "def"], outputs=frozenset({kind})), ANYONE)
        asked = len(backend.batches)
        with pytest.raises(TooManyInputs) as refused:
            await engine.answer(EmbedRequest(inputs=["abc", "defg"], outputs=frozenset({kind})), ANYONE)
        assert refused.value.field == "inputs"
        assert "at most 6 tokens" in refused.value.message
        assert len(backend.batches) == asked
        await engine.answer(EmbedRequest(inputs=["abc", "defg"], outputs=frozenset({"dense", "sparse"})), ANYONE)


async def test_token_vectors_beyond_memory_are_rejected(monkeypatch):
    """Scores are small, but their token vectors are not."""
    monkeypatch.setattr(vectors, "MAX_HELD_NUMBERS", 6 * COLBERT_WIDTH)
    async with serving_one(M3) as (engine, _):
        await engine.answer(RerankRequest(query="a", passages=["abc", "def"], method="colbert"), ANYONE)
        with pytest.raises(TooManyInputs) as refused:
            await engine.answer(RerankRequest(query="a", passages=["abc", "defg"], method="colbert"), ANYONE)
        assert refused.value.field == "passages"


# --- an input that fails, alone -------------------------------------------------------------------------------


def some(*inputs: object, **changes: object) -> EmbedRequest:
    return EmbedRequest(inputs=inputs, partial=True, normalize=False, **changes)  # type: ignore[arg-type]


async def test_an_input_that_cannot_be_embedded_fails_alone():
    """Too long, empty, or failed by the network: it has its error and zeros, and the others their vectors."""
    inputs = ["ab", TOO_LONG, "c", [], "no!", "d"]
    async with serving_one(M3) as (engine, backend):
        backend.poison = ord("!")
        result = await engine.answer(some(*inputs, outputs=ALL), ANYONE)
    assert {i: (type(error), error.field, error.index) for i, error in result.failures.items()} == {
        1: (InputTooLong, "inputs", 1),
        3: (EmptyInput, "inputs", 3),
        4: (InferenceFailed, "inputs", 4),
    }
    for i, text in enumerate(inputs):
        row, (sparse, colbert, tokens) = (
            result.dense["float"][i],
            (made[i] for made in (result.sparse, result.colbert, result.tokens)),
        )
        if i in result.failures:
            np.testing.assert_array_equal(row, np.zeros(WIDTH))
            assert (len(sparse.indices), colbert.shape, tokens.shape) == (0, (0, COLBERT_WIDTH), (0, WIDTH))
        else:
            np.testing.assert_array_equal(row, expected_row(text))
            assert len(tokens) == len(text)
            np.testing.assert_array_equal(colbert, expected_colbert(ids_of(text))[1:])


async def test_a_rejected_input_has_length_zero():
    """An input that failed in the network was run, and counts."""
    async with serving_one(spec(("dense",))) as (engine, backend):
        backend.poison = ord("!")
        result = await engine.answer(some("ab", TOO_LONG, "no!"), ANYONE)
    assert result.usage.lengths == result.lengths["m0"] == [TextLength(2, 2), TextLength(0, 0), TextLength(3, 3)]
    assert result.usage.tokens == 5


async def test_all_inputs_may_fail():
    """The result has the right shape, and nothing ran."""
    async with serving_one(M3) as (engine, backend):
        result = await engine.answer(some(TOO_LONG, [], precisions=("float", "ubinary")), ANYONE)
        assert not backend.batches
    assert set(result.failures) == {0, 1}
    assert result.dense["float"].shape == (2, WIDTH)
    assert result.dense["ubinary"].tolist() == [[0], [0]]
    assert result.usage.tokens == 0


async def test_without_failures_the_result_is_the_same():
    """To the last number, in as many batches, and nothing is tokenized twice."""
    encoder, backend = ByteEncoder(M3), FakeBackend()
    calls = []
    read = encoder.read
    encoder.read = lambda request, part=None: (calls.append(part), read(request, part))[1]
    async with serving(backend, models=[M3], encoder=encoder, cache_bytes=0) as engine:
        calls.clear()
        results = [
            await engine.answer(EmbedRequest(inputs=["ab", "c"], outputs=ALL, partial=partial), ANYONE)
            for partial in (True, False)
        ]
    first, second = results
    np.testing.assert_array_equal(first.dense["float"], second.dense["float"])
    assert first.failures == second.failures == {}
    assert first.usage.lengths == second.usage.lengths
    assert calls == [range(2), range(2)]


async def test_precisions_and_dimensions_of_a_row_that_failed():
    """A row of zeros in each precision, of the same width."""
    request = EmbedRequest(inputs=["ab", TOO_LONG], partial=True, dimensions=4, precisions=("float", "int8"))
    async with serving_one(spec(("dense",))) as (engine, _):
        result = await engine.answer(request, ANYONE)
    assert {name: rows.shape for name, rows in result.dense.items()} == {"float": (2, 4), "int8": (2, 4)}
    assert all(not rows[1].any() and rows[0].any() for rows in result.dense.values())


async def test_a_colbert_model_s_input_fails_alone():
    """Its sequences have markers and rows that do not count."""
    colbert = spec(("colbert",), colbert=Colbert(dimensions=COLBERT_WIDTH))
    async with serving_one(colbert) as (engine, _):
        result = await engine.answer(some(TOO_LONG, "ab", outputs=frozenset({"colbert"})), ANYONE)
    assert set(result.failures) == {0}
    assert result.colbert[0].shape == (0, COLBERT_WIDTH)
    np.testing.assert_array_equal(result.colbert[1], expected_colbert(ids_of("ab")))


async def test_an_input_fails_if_one_model_of_a_composite_cannot_read_it():
    """The client asked for the vectors of both."""
    both = CompositeSource("both", {"dense": "m0", "sparse": "m1"})
    dense, sparse = FakeBackend(), FakeBackend()
    async with serving(dense, sparse, models=[spec(("dense",)), spec(("splade",))], composites=[both]) as engine:
        dense.poison, sparse.poison = ord("?"), ord("!")
        request = some("fine", "no!", "no?", model="both", outputs=frozenset({"dense", "sparse"}))
        result = await engine.answer(request, ANYONE)
    assert {i: error.index for i, error in result.failures.items()} == {1: 1, 2: 2}
    np.testing.assert_array_equal(result.dense["float"][0], expected_row("fine"))


async def test_a_text_that_is_too_much_for_the_device_fails_alone():
    """Out of memory is an error of that text only, not of its batch."""

    def fail(batch: TokenBatch) -> None:
        if ord("!") in batch.texts.ids:
            raise MemoryError

    backend = FakeBackend()
    async with serving(backend, cache_bytes=0) as engine:
        close_gate(backend)
        blocker = asyncio.create_task(engine.answer(some("blocker"), ANYONE))
        await entered(backend)
        backend.fail = fail
        asked = [asyncio.create_task(engine.answer(some("a", text), ANYONE)) for text in ("x!", "b")]
        await settle()
        backend.gate.set()
        await blocker
        first, second = await asyncio.gather(*asked)
    assert {i: type(error) for i, error in first.failures.items()} == {1: OutOfMemory}
    assert not second.failures


async def test_two_requests_share_a_text_that_fails():
    """One request fails with it, the other lists it among its failures."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        backend.poison = ord("!")
        close_gate(backend)
        blocker = asyncio.create_task(engine.answer(some("blocker"), ANYONE))
        await entered(backend)
        requests = [some("a", "no!"), EmbedRequest(inputs=["no!"])]
        asked = [asyncio.create_task(engine.answer(request, ANYONE)) for request in requests]
        await settle()
        backend.gate.set()
        await blocker
        partly, failed = await asyncio.gather(*asked, return_exceptions=True)
    assert [error.index for error in partly.failures.values()] == [1]
    assert isinstance(failed, InferenceFailed)
    assert (failed.field, failed.index) == ("inputs", None)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (some("a", dimensions=WIDTH + 1), InvalidField),
        (some("a", model="m0", outputs=frozenset({"sparse"})), ModelCannot),
        (some(), EmptyInput),
    ],
    ids=["dimensions", "kinds", "no inputs"],
)
async def test_an_invalid_request_fails_as_a_whole(request_, error):
    """The error is of no input."""
    async with serving_one(spec(("dense",))) as (engine, _):
        with pytest.raises(error):
            await engine.answer(request_, ANYONE)


async def test_an_unknown_prompt_fails_the_request():
    """Only the encoder knows the model's prompts."""

    class Strict(ByteEncoder):
        def read(self, request, part=None):
            raise InvalidField("{field} is unknown", field="prompt_name")

    async with serving(FakeBackend()) as engine:
        engine._registry.models[0].runner.encoder = Strict()
        with pytest.raises(InvalidField):
            await engine.answer(some("a", "b"), ANYONE)


async def test_a_server_that_closes_or_is_full_fails_the_request():
    """Every text would have failed."""
    backend = FakeBackend()
    async with serving(backend, max_concurrent_requests=1) as engine:
        close_gate(backend)
        asked = asyncio.create_task(engine.answer(some("a"), ANYONE))
        await entered(backend)
        with pytest.raises(Overloaded):
            await engine.answer(some("b"), ANYONE)
        engine._registry.models[0].runner.stop()
        with pytest.raises(Unavailable):
            await asked


async def test_a_partial_result_is_one_successful_report():
    """The result itself lists the failures."""
    observer = Recorder()
    async with serving(FakeBackend(), observer=observer) as engine:
        await engine.answer(some("ab", TOO_LONG), ANYONE)
    assert observer.requests == [("m0", "embed", None, 2, 2)]


async def test_of_many_inputs_each_keeps_its_place():
    """In any parts and batches."""
    inputs = [TOO_LONG if i % 7 == 3 else f"text {i}" for i in range(700)]
    backend = FakeBackend(max_batch_tokens=64)
    async with serving(backend, cache_bytes=0) as engine:
        result = await engine.answer(some(*inputs, text=TextOptions(truncate=False)), ANYONE)
    assert sorted(result.failures) == [i for i in range(700) if i % 7 == 3]
    assert all(error.index == i for i, error in result.failures.items())
    expected = [np.zeros(WIDTH) if text is TOO_LONG else expected_row(text) for text in inputs]
    np.testing.assert_array_equal(result.dense["float"], expected)
