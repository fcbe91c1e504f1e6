"""A MultiRequest: its parts run together, under one admission, each by its own model."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tests.engine.fakes import (
    CLASSIFIER,
    CROSS_ENCODER,
    FakeBackend,
    Recorder,
    backend_for,
    close_gate,
    entered,
    expected_row,
    serving,
    serving_one,
    settle,
    slow,
    spec,
)

from vectord.engine.operations.multi import lane_of
from vectord.errors import (
    EmptyInput,
    FingerprintMismatch,
    InferenceFailed,
    ModelNotFound,
    Overloaded,
    TooManyInputs,
)
from vectord.schema import (
    Caller,
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    MultiRequest,
    RerankRequest,
    RerankResult,
    UnloadModel,
)

ANYONE = Caller()
DENSE = spec(("dense",), fingerprint="d" * 16)
MODELS = [DENSE, CLASSIFIER, CROSS_ENCODER]


def embed(*texts: str, **changes: object) -> EmbedRequest:
    return EmbedRequest(inputs=texts, normalize=False, **changes)  # type: ignore[arg-type]


def rerank(passages: int = 2) -> RerankRequest:
    return RerankRequest(query="what", passages=["that"] * passages)


async def test_each_part_is_answered_by_its_own_model():
    """In order, with the same results as separate requests."""
    parts = [embed("ab"), rerank(), ClassifyRequest(inputs=["x", "yz"]), embed("c", "d")]
    async with serving(*map(backend_for, MODELS), models=MODELS) as engine:
        result = await engine.answer(MultiRequest(requests=parts), ANYONE)
        alone = [await engine.answer(part, ANYONE) for part in parts]
    assert [type(one) for one in result.results] == [EmbedResult, RerankResult, ClassifyResult, EmbedResult]
    assert [one.model for one in result.results] == ["m0", "m2", "m1", "m0"]
    for one, other in zip(result.results, alone, strict=True):
        assert one.usage.lengths == other.usage.lengths
    np.testing.assert_array_equal(result.results[3].dense["float"], [expected_row("c"), expected_row("d")])
    np.testing.assert_array_equal(result.results[2].scores, alone[2].scores)


async def test_usage_covers_all_parts():
    """All lengths in order; further tokens are billed too."""
    rerank_by_vectors = RerankRequest(query="what", passages=["that"])
    async with serving_one(DENSE) as (engine, _):
        result = await engine.answer(MultiRequest(requests=[embed("ab", "c"), rerank_by_vectors]), ANYONE)
    assert [length.kept for length in result.usage.lengths] == [2, 1, 4]
    assert (result.usage.tokens, result.usage.further_tokens) == (11, 4)
    assert result.usage.characters == 3 + 8
    assert result.usage.device == "cpu"
    timings = result.usage.timings
    assert 0 < timings.computing_s <= timings.total_s
    assert timings.total_s >= max(one.usage.timings.computing_s for one in result.results)


async def test_parts_share_one_admission_and_a_batch():
    """A body counts as one request."""
    backend = FakeBackend()
    async with serving(backend, models=[DENSE], max_concurrent_requests=1) as engine:
        close_gate(backend)
        asked = asyncio.create_task(engine.answer(MultiRequest(requests=[embed("a"), embed("b"), embed("c")]), ANYONE))
        await entered(backend)
        await settle()
        with pytest.raises(Overloaded):
            await engine.answer(embed("d"), ANYONE)
        backend.gate.set()
        await asked
        await engine.answer(embed("e"), ANYONE)
    assert len(backend.batches) <= 3  # a, then b and c, then e


@pytest.mark.parametrize(
    ("parts", "error", "given"),
    [
        ([], EmptyInput, None),
        ([embed("a")] * 5, TooManyInputs, 5),
        ([embed("a", "b"), rerank(3)], TooManyInputs, 5),
        ([embed("a"), embed()], EmptyInput, None),
    ],
    ids=["none", "too many parts", "too many inputs of all", "a part without inputs"],
)
async def test_parts_and_their_inputs_are_counted(parts, error, given):
    """Many small parts must stay within the limit of one request."""
    async with serving_one(DENSE, max_client_batch_size=4) as (engine, backend):
        with pytest.raises(error) as refused:
            await engine.answer(MultiRequest(requests=parts), ANYONE)
        assert refused.value.field == ("inputs" if parts[1:] == [embed()] else "requests")
        assert refused.value.part == (1 if parts[1:] == [embed()] else None)
        if given is not None:
            assert (refused.value.limit, refused.value.given) == (4, given)
            assert not backend.batches


@pytest.mark.parametrize(
    ("part", "error"),
    [(embed("a", model="?"), ModelNotFound), (embed("!"), InferenceFailed)],
    ids=["no such model", "a text that fails"],
)
async def test_the_first_failure_fails_the_body(part, error):
    """The texts of the other parts leave the queue."""
    async with serving_one(DENSE) as (engine, backend):
        backend.poison = ord("!")
        with pytest.raises(error):
            await engine.answer(MultiRequest(requests=[embed("fine"), part, embed("fine too")]), ANYONE)
        await engine.answer(UnloadModel(model="m0"), ANYONE)  # nothing uses it
        assert (await engine.answer(embed("next"), ANYONE)).model == "m0"


async def test_the_expected_space_is_that_of_every_part():
    """One part of another space fails the body."""
    fits, other = embed("a"), embed("a", dimensions=2)
    caller = Caller(expect_fingerprint="d" * 16 + ":raw")
    async with serving_one(DENSE) as (engine, _):
        await engine.answer(MultiRequest(requests=[fits, fits]), caller)
        with pytest.raises(FingerprintMismatch):
            await engine.answer(MultiRequest(requests=[fits, other]), caller)


async def test_parts_are_not_rejected_for_their_siblings_in_the_queue():
    """An idle server accepts a body of any number of parts."""
    backend = FakeBackend(max_batch_tokens=16)
    async with serving(backend, models=[DENSE], max_queue_wait_s=1.0) as engine:
        slow(engine, backend, 10)
        asked = asyncio.create_task(
            engine.answer(MultiRequest(requests=[embed(f"part {n:03}") for n in range(50)]), ANYONE)
        )
        await entered(backend)
        await settle()
        with pytest.raises(Overloaded):  # a later request is rejected, also in several parts
            await engine.answer(MultiRequest(requests=[embed("another"), embed("and one more")]), ANYONE)
        backend.gate.set()
        assert len((await asked).results) == 50


@pytest.mark.parametrize(
    ("parts", "lane"),
    [
        ([embed("a" * 100)] * 3, None),
        ([embed("a" * 100)] * 700, "bulk"),
        ([RerankRequest(query="q" * 1000, passages=["p"] * 100)], "bulk"),
        ([ClassifyRequest(inputs=[("a" * 100, "b" * 100)] * 400)], "bulk"),
        ([EmbedRequest(inputs=[[7] * 17_000])], "bulk"),
    ],
    ids=["few", "many small parts", "a long query for each passage", "pairs", "ids"],
)
def test_many_small_parts_are_a_bulk_job(parts, lane):
    """Otherwise a job in parts would use the interactive lane."""
    assert lane_of(MultiRequest(requests=parts)) == lane


async def test_each_part_is_reported():
    """With its model; a body that is rejected as a whole is one report."""
    observer = Recorder()
    async with serving(*map(backend_for, MODELS), models=MODELS, observer=observer, max_client_batch_size=4) as engine:
        await engine.answer(MultiRequest(requests=[embed("ab"), ClassifyRequest(inputs=["x"])]), ANYONE)
        with pytest.raises(TooManyInputs):
            await engine.answer(MultiRequest(requests=[embed("a")] * 5), ANYONE)
    assert sorted(observer.requests[:2]) == [("m0", "embed", None, 1, 2), ("m1", "classify", None, 1, 1)]
    assert observer.requests[2:] == [("", "multi", "TooManyInputs", 0, 0)]
