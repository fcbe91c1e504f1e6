"""The whole engine on a fake backend: the promises to every caller."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.collection import without_collection
from tests.engine.fakes import (
    MAX_TOKENS,
    WIDTH,
    ByteEncoder,
    FakeBackend,
    Recorder,
    close_gate,
    entered,
    expected_row,
    queue_of,
    serving,
    settle,
    slow,
    spec,
)
from tests.refusals import refuses

from vectord.checkpoints.spec import ChatTemplate
from vectord.compute.backends.base import TokenBatch
from vectord.engine.cache.lookup import TEXTS_PER_STEP, AnswerCache
from vectord.engine.engine import Engine
from vectord.engine.events import BatchRan, Event, RequestEnded
from vectord.engine.queue.batch import Answer, CacheKey, Item, Job
from vectord.errors import (
    EmptyInput,
    InferenceFailed,
    InputTooLong,
    InvalidField,
    ModelNotFound,
    Overloaded,
    TimedOut,
    TooManyInputs,
    Unavailable,
)
from vectord.schema import (
    Caller,
    ClassifyRequest,
    Conversation,
    DecodeRequest,
    DocumentsRequest,
    EmbedRequest,
    EmbedResult,
    ListModels,
    LoadModel,
    Media,
    MultiRequest,
    PullModel,
    RemoveModel,
    Request,
    RerankRequest,
    SimilarityRequest,
    TextOptions,
    TokenizeRequest,
    UnloadModel,
    VectorKind,
)

ANYONE = Caller()
ROLES = ChatTemplate("{% for one in messages %}{{ one.role }}: {{ one.content }};{% endfor %}", {})
BULK = Caller(client="indexer", lane="bulk")
TOKENS: frozenset[VectorKind] = frozenset({"tokens"})
texts_strategy = st.lists(st.text("ab é", max_size=12), min_size=1, max_size=30)


def rows(result: EmbedResult) -> np.ndarray:
    return result.dense["float"]


def embed(*texts: str, **changes: object) -> EmbedRequest:
    return EmbedRequest(inputs=texts, normalize=False, **changes)


def ask(engine: Engine, *texts: str, caller: Caller = ANYONE, **changes: object) -> asyncio.Task:
    return asyncio.create_task(engine.answer(embed(*texts, **changes), caller))


def die(batch: TokenBatch) -> None:
    if ord("!") in batch.texts.ids:
        raise SystemExit


# --- order, bills, shapes -------------------------------------------------------------------------------------


@given(texts_strategy, st.integers(1, 3), st.integers(4, 64), st.sampled_from([0, 2**20]))
@settings(max_examples=40)
def test_results_keep_the_order_of_inputs(texts, streams, max_batch_tokens, cache_bytes):
    """Across batches and streams, and with repeated texts."""

    async def run() -> None:
        backend = FakeBackend(streams=streams, max_batch_tokens=max_batch_tokens)
        async with serving(backend, cache_bytes=cache_bytes) as engine:
            result = await engine.answer(embed(*texts), ANYONE)
        np.testing.assert_array_equal(rows(result), [expected_row(text) for text in texts])

    asyncio.run(run())


@given(st.lists(st.text("ab", max_size=2 * MAX_TOKENS), min_size=1, max_size=20))
@settings(max_examples=30)
def test_billed_tokens_are_the_tokens_that_ran(texts):
    """After truncation, with special tokens. TextLength also has the length before truncation."""

    async def run() -> None:
        backend = FakeBackend()
        async with serving(backend, cache_bytes=0) as engine:
            result = await engine.answer(embed(*texts, text=TextOptions(truncate=True)), ANYONE)
        assert result.usage.tokens == sum(len(batch.texts.ids) for batch in backend.batches)
        assert result.usage.characters == sum(map(len, texts))
        assert result.usage.device == "cpu"
        assert [length.seen for length in result.usage.lengths] == [max(1, len(text)) for text in texts]

    asyncio.run(run())


async def test_similarity_is_the_cosine_of_the_first_with_each():
    """In the order of the sentences. The source's tokens are billed as well."""
    async with serving(FakeBackend()) as engine:
        result = await engine.answer(SimilarityRequest(source="a", sentences=["a", "bcd"]), ANYONE)
    a, b = expected_row("a"), expected_row("bcd")
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    np.testing.assert_allclose(result.scores, [1, cosine], rtol=1e-5)
    assert result.usage.tokens == 1 + 1 + 3


# --- refused before it costs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error", "field"),
    [
        (embed(*["a"] * 11), TooManyInputs, "inputs"),
        (embed(*[Media(b"")] * 11), TooManyInputs, "inputs"),
        (embed(), EmptyInput, "inputs"),
        (embed("a", dimensions=0), InvalidField, "dimensions"),
        (embed("a", dimensions=WIDTH + 1), InvalidField, "dimensions"),
        (embed("a", dimensions=2, outputs=TOKENS), InvalidField, "dimensions"),
        (SimilarityRequest(source="a", sentences=["a"] * 11), TooManyInputs, "sentences"),
        (SimilarityRequest(source="a", sentences=[]), EmptyInput, "sentences"),
        (TokenizeRequest(inputs=["a"] * 11), TooManyInputs, "inputs"),
        (DecodeRequest(ids=[[1]] * 11), TooManyInputs, "ids"),
        (RerankRequest(query="q", passages=[]), EmptyInput, "passages"),
        (RerankRequest(query="q", passages=["a"] * 11), TooManyInputs, "passages"),
        (RerankRequest(query="q", passages=["a"], max_passage_tokens=0), InvalidField, "max_passage_tokens"),
        (RerankRequest(query="q", passages=["a"], max_query_tokens=-(10**30)), InvalidField, "max_query_tokens"),
        (embed(outputs=frozenset()), EmptyInput, "inputs"),
        (embed(*["a"] * 11, outputs=frozenset()), TooManyInputs, "inputs"),
    ],
)
async def test_invalid_requests_are_refused_before_tokenising(request_, error, field):
    """The error names the request's field and the limit."""
    encoder = ByteEncoder()
    async with serving(FakeBackend(), encoder=encoder, max_client_batch_size=10) as engine:
        encoder.threads.clear()
        with refuses(error, field=field):
            await engine.answer(request_, ANYONE)
    assert not encoder.threads


@pytest.mark.parametrize(
    ("requested", "configured", "default", "cut"),
    [
        (True, False, False, True),
        (False, True, True, False),
        (None, True, False, True),
        (None, False, True, False),
        (None, None, True, True),
        (None, None, False, False),
    ],
)
async def test_truncation_follows_the_request_then_the_setting_then_the_default(requested, configured, default, cut):
    """A request with a text that is too long and not truncated runs nothing."""
    backend = FakeBackend()
    async with serving(backend, auto_truncate=configured) as engine:
        request = embed("ok", "x" * 100, text=TextOptions(truncate=requested, truncate_by_default=default))
        if cut:
            result = await engine.answer(request, ANYONE)
            assert result.usage.lengths[1].truncated
        else:
            with refuses(InputTooLong, index=1):
                await engine.answer(request, ANYONE)
            assert not backend.batches


async def test_models_are_found_by_name_alias_or_default():
    """Each has its own worker. Without a name the first model answers."""
    first, second = FakeBackend(), FakeBackend()
    async with serving(first, second) as engine:
        for model in (None, "m0", "alias0"):
            assert (await engine.answer(embed("a", model=model), ANYONE)).model == "m0"
        assert (await engine.answer(embed("b", model="alias1"), ANYONE)).model == "m1"
    assert "b" not in first.texts_run()
    assert "b" in second.texts_run()


def requests_for(model: str) -> list[Request]:
    """One of each type that names a model."""
    embed_one = embed("a", model=model)
    rank_one = RerankRequest(query="q", passages=["a"], model=model)
    return [
        embed_one,
        rank_one,
        DocumentsRequest(documents=["a"], chunks=None, spans=[[(0, 1)]], model=model),
        SimilarityRequest(source="a", sentences=["b"], model=model),
        ClassifyRequest(inputs=["a"], model=model),
        TokenizeRequest(inputs=["a"], model=model),
        DecodeRequest(ids=[[1]], model=model),
        ListModels(model=model),
        MultiRequest(requests=[replace(embed_one, model="m0"), rank_one]),
    ]


async def test_a_key_cannot_use_a_model_that_it_does_not_name():
    """With any type of request; the answer is that of a model that does not exist."""
    assert {type(request) for request in requests_for("m1")} == {
        kind for kind in get_args(Request) if "model" in kind.__annotations__ or kind is MultiRequest
    } - {LoadModel, PullModel, RemoveModel, UnloadModel}  # of the admin key alone
    backends = [FakeBackend(), FakeBackend()]
    async with serving(*backends) as engine:
        for request, unknown in zip(requests_for("alias1"), requests_for("alias9"), strict=True):
            refusals = []
            for each in (request, unknown):
                with pytest.raises(ModelNotFound) as refused:
                    await engine.answer(each, Caller(models=frozenset({"m0"})))
                refusals.append(refused.value.message)
            assert refusals[0] == refusals[1], type(request).__name__
            assert "m1" not in refusals[0]
    assert not backends[1].texts_run()


async def test_models_and_limits_are_listed():
    """The limits are the enforced ones. A name selects one model."""
    async with serving(FakeBackend(), FakeBackend(), max_client_batch_size=7, max_batch_texts=3) as engine:
        everything = await engine.answer(ListModels(), ANYONE)
        one = await engine.answer(ListModels(model="alias1"), ANYONE)
        with pytest.raises(ModelNotFound):
            await engine.answer(ListModels(model="?"), ANYONE)
    assert [(info.name, info.state, info.device) for info in everything.models] == [
        ("m0", "ready", "cpu"),
        ("m1", "ready", "cpu"),
    ]
    assert [info.name for info in one.models] == ["m1"]
    limits = everything.limits
    assert (limits.max_inputs_per_request, limits.max_batch_tokens, limits.max_batch_texts) == (7, 256, 3)


# --- cache and single flight ----------------------------------------------------------------------------------


async def test_a_cached_text_does_not_run_again_and_is_billed_the_same():
    """The raw row is cached: other dimensions and normalisation need no second run."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        first = await engine.answer(embed("hello"), ANYONE)
        second = await engine.answer(embed("hello"), ANYONE)
        third = await engine.answer(EmbedRequest(inputs=["hello"], dimensions=2), ANYONE)
    assert backend.texts_run() == ["hello"]
    np.testing.assert_array_equal(rows(first), rows(second))
    assert first.usage.tokens == second.usage.tokens == third.usage.tokens == 5
    assert second.usage.timings.computing_s == second.usage.timings.waiting_s == 0
    assert np.linalg.norm(rows(third)) == pytest.approx(1)


TEAM_A, TEAM_B = Caller(client="a", named=True), Caller(client="b", named=True)


@pytest.mark.parametrize(
    ("first", "second", "settings_", "runs"),
    [
        ((TEAM_A, ""), (TEAM_A, ""), {}, 1),
        ((TEAM_A, ""), (TEAM_B, ""), {}, 2),
        ((TEAM_A, ""), (ANYONE, ""), {}, 2),
        ((TEAM_A, ""), (TEAM_B, ""), {"share_cache_between_keys": True}, 1),
        ((ANYONE, ""), (Caller(client="10.0.0.1"), ""), {}, 1),
        ((ANYONE, "s"), (ANYONE, "s"), {}, 1),
        ((ANYONE, "s"), (ANYONE, "t"), {}, 2),
        ((ANYONE, "s"), (ANYONE, ""), {}, 2),
        ((TEAM_A, "s"), (TEAM_B, "s"), {}, 2),
        ((TEAM_A, "s"), (TEAM_B, "s"), {"share_cache_between_keys": True}, 1),
        ((TEAM_A, "s"), (TEAM_B, "t"), {"share_cache_between_keys": True}, 2),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value) if isinstance(value, int) else value[0].client,
)
@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
async def test_clients_of_other_keys_and_salts_do_not_share_answers(first, second, settings_, runs, at_once):
    """A shared answer is fast, and its time shows that another client has sent the same text."""
    backend = FakeBackend()
    async with serving(backend, **settings_) as engine:
        requests = []
        for caller, salt in (first, second):
            requests.append(ask(engine, "secret", caller=caller, text=TextOptions(cache_salt=salt)))
            if not at_once:
                await requests[-1]
        results = await asyncio.gather(*requests)
    assert len(backend.texts_run()) == runs
    np.testing.assert_array_equal(rows(results[0]), rows(results[1]))


async def test_an_answer_belongs_to_its_caller():
    """Changing it does not change the cache."""
    async with serving(FakeBackend()) as engine:
        rows(await engine.answer(embed("hello"), ANYONE))[:] = 0
        rows(await engine.answer(embed("hello"), ANYONE))[:] = 0
        result = await engine.answer(embed("hello"), ANYONE)
    np.testing.assert_array_equal(rows(result), [expected_row("hello")])


async def test_vectors_of_tokens_are_not_cached():
    """They are large and rarely requested twice."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        for outputs in (TOKENS, frozenset({"dense"}), TOKENS):
            await engine.answer(embed("hello", outputs=outputs), ANYONE)
    assert backend.texts_run() == ["hello"] * 3


async def test_without_a_cache_every_text_runs():
    """Benchmarks rely on it."""
    backend = FakeBackend()
    async with serving(backend, cache_bytes=0) as engine:
        await asyncio.gather(ask(engine, "a", "a"), ask(engine, "a"))
    assert backend.texts_run() == ["a"] * 3


async def test_identical_concurrent_texts_run_once():
    """Within one request and across requests."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        close_gate(backend)
        first = ask(engine, "a", "b", "a")
        await entered(backend)
        second = ask(engine, "b", "a")
        await settle()
        backend.gate.set()
        results = await asyncio.gather(first, second)
    assert sorted(backend.texts_run()) == ["a", "b"]
    a, b = expected_row("a"), expected_row("b")
    np.testing.assert_array_equal(rows(results[0]), [a, b, a])
    np.testing.assert_array_equal(rows(results[1]), [b, a])


async def test_a_shared_text_in_the_middle_of_a_bulk_request_moves_alone():
    """The other texts of the request stay in the bulk lane, and it receives all answers in order."""
    backend = FakeBackend(max_batch_tokens=4)
    texts = [f"{n:04}" for n in range(20)]
    async with serving(backend) as engine:
        close_gate(backend)
        job = ask(engine, *texts, caller=BULK)
        await entered(backend)
        queries = [ask(engine, "0007"), ask(engine, "0007", "0012")]
        await settle()
        backend.gate.set()
        answers = await asyncio.gather(*queries, job)
    run = backend.texts_run()
    assert {"0007", "0012"} < set(run[1:4])
    assert [text for text in run if text not in ("0007", "0012")] == [*texts[:7], *texts[8:12], *texts[13:]]
    for answer, asked in zip(answers, [["0007"], ["0007", "0012"], texts], strict=True):
        np.testing.assert_array_equal(rows(answer), [expected_row(text) for text in asked])


async def test_texts_that_others_wait_for_stay_when_their_request_leaves():
    """Only those. When the last waiting request leaves too, they leave the queue."""
    backend = FakeBackend(max_batch_tokens=4)
    async with serving(backend) as engine:
        close_gate(backend)
        blocker = ask(engine, "blocker")
        await entered(backend)
        owner = ask(engine, "aaaa", "bbbb", "cccc", "dddd", "bbbb")
        await settle()
        stayer, leaver = ask(engine, "bbbb", "aaaa"), ask(engine, "dddd", "eeee")
        await settle()
        owner.cancel()
        await settle()
        assert queue_of(engine) == (4, 16)
        leaver.cancel()
        await settle()
        assert queue_of(engine) == (2, 8)
        backend.gate.set()
        answer = (await asyncio.gather(blocker, stayer))[1]
        await engine.answer(embed("dddd"), ANYONE)
    assert backend.texts_run() == ["blocker", "aaaa", "bbbb", "dddd"]
    np.testing.assert_array_equal(rows(answer), [expected_row("bbbb"), expected_row("aaaa")])


async def test_a_shared_text_that_fails_has_each_requests_index():
    """Each request receives an error with its own index."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        backend.poison = ord("!")
        close_gate(backend)
        blocker = ask(engine, "blocker")
        await entered(backend)
        callers = [ask(engine, "!", "ok"), ask(engine, "ok", "!")]
        await settle()
        backend.gate.set()
        await blocker
        failures = await asyncio.gather(*callers, return_exceptions=True)
    assert [(type(e), e.field, e.index) for e in failures] == [
        (InferenceFailed, "inputs", 0),
        (InferenceFailed, "inputs", 1),
    ]
    assert backend.texts_run().count("!") == 1


async def test_a_failure_is_not_cached():
    """The next request runs the text again."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        backend.poison = ord("a")
        with pytest.raises(InferenceFailed):
            await engine.answer(embed("a"), ANYONE)
        backend.poison = None
        await engine.answer(embed("a"), ANYONE)


# --- leaving, failing, exiting ---------------------------------------------------------------------------------


async def test_a_cancelled_requests_texts_leave_the_queue():
    """They do not run, and other requests are not affected."""
    backend, observer = FakeBackend(max_batch_tokens=8), Recorder()
    async with serving(backend, observer=observer, cache_bytes=0) as engine:
        close_gate(backend)
        blocker = ask(engine, "blocker")
        await entered(backend)
        leaver, stayer = ask(engine, *["xxxx"] * 100), ask(engine, "stay")
        while queue_of(engine) != (101, 404):  # a thread tokenizes so many texts
            await asyncio.sleep(0.001)
        leaver.cancel()
        await settle()
        assert queue_of(engine) == (1, 4)
        backend.gate.set()
        await asyncio.gather(blocker, stayer)
    assert backend.texts_run() == ["blocker", "stay"]
    assert ("m0", "embed", "Cancelled", 0, 0) in observer.requests


@given(st.lists(st.sampled_from(["ok", "!", "ok too"]), min_size=1, max_size=12), st.integers(1, 3))
@settings(max_examples=25)
def test_every_request_is_answered_for_any_failure_of_the_backend(texts, streams):
    """Exits, failing and good texts on several streams: each request ends with a correct row or an error."""

    async def run() -> None:
        async with serving(FakeBackend(streams=streams, fail=die), cache_bytes=0) as engine:
            answers = await asyncio.wait_for(
                asyncio.gather(*[ask(engine, text) for text in texts], return_exceptions=True), 10
            )
        for text, answer in zip(texts, answers, strict=True):
            if isinstance(answer, BaseException):
                assert isinstance(answer, InferenceFailed)
            else:
                np.testing.assert_array_equal(rows(answer), [expected_row(text)])
                assert text != "!"

    asyncio.run(run())


async def test_draining_finishes_accepted_requests_and_refuses_new_ones():
    """Queued ones included."""
    backend = FakeBackend(max_batch_tokens=4)
    async with serving(backend) as engine:
        close_gate(backend)
        accepted = [ask(engine, f"{n:04}") for n in range(10)]
        await entered(backend)
        draining = asyncio.create_task(engine.drain())
        await settle()
        with pytest.raises(Unavailable):
            await engine.answer(embed("new"), ANYONE)
        assert not draining.done()
        backend.gate.set()
        await asyncio.wait_for(draining, 10)
        assert [len(rows(request.result())) for request in accepted] == [1] * 10


async def test_closing_fails_waiting_requests():
    """With an error. Afterwards threads and backend are closed."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        close_gate(backend)
        running = ask(engine, "a")
        await entered(backend)
        waiting = ask(engine, "b")
        await settle()
        closing = asyncio.create_task(engine.close())
        for request in (running, waiting):
            with pytest.raises(Unavailable):
                await request
        backend.gate.set()
        await asyncio.wait_for(closing, 10)
        for text in ("c", "long" * 1000):
            with pytest.raises(Unavailable):
                await engine.answer(embed(text), ANYONE)
    assert backend.closed


async def test_a_compiling_backend_does_not_delay_shutdown():
    """A thread closes it later."""
    compiled = threading.Event()

    class Compiling(FakeBackend):
        def close(self) -> None:
            assert compiled.wait(10)
            super().close()

    backend = Compiling()
    async with serving(backend) as engine:
        await asyncio.wait_for(engine.close(0.05), 5)
        assert not backend.closed
        compiled.set()


async def test_closing_fails_requests_during_tokenisation():
    """The queue is closed when their tokens are ready."""
    gate = threading.Event()

    class Slow(ByteEncoder):
        def read(self, *args):
            assert gate.wait(10)
            return super().read(*args)

    gate.set()
    async with serving(FakeBackend(), encoder=Slow()) as engine:
        gate.clear()
        request = ask(engine, "long" * 1000, text=TextOptions(truncate=True))
        await settle()
        await engine.close()
        gate.set()
        with pytest.raises(Unavailable):
            await request


# --- overload -------------------------------------------------------------------------------------------------


async def test_a_patient_request_waits_without_a_queue_timeout():
    """Other requests are refused. It waits at most max_queue_wait_s."""
    backend = FakeBackend()
    async with serving(backend, max_concurrent_requests=1) as engine:
        close_gate(backend)
        first = ask(engine, "a")
        await entered(backend)
        batch = asyncio.create_task(engine.answer(embed("b", "c", waits=True), ANYONE))
        await settle()
        with pytest.raises(Overloaded):
            await engine.answer(embed("d"), ANYONE)
        backend.gate.set()
        await asyncio.gather(first, batch)
    assert sorted(backend.texts_run()) == ["a", "b", "c"]


async def busy(engine: Engine, backend: FakeBackend) -> list[asyncio.Task]:
    """Queues 4,000 tokens on a server with a measured speed and a closed gate."""
    await engine.answer(embed(*[f"warm{n:04}" for n in range(100)]), BULK)
    close_gate(backend)
    requests = [ask(engine, *[f"{c}{n:07}" for n in range(50)], caller=Caller(client=c)) for c in "abcdefghij"]
    await entered(backend)
    await settle()
    return requests


async def leave(requests: list[asyncio.Task]) -> None:
    for request in requests:
        request.cancel()
    await settle()


async def test_a_wait_that_is_too_long_is_refused_at_the_door():
    """Before the body is read, with a Retry-After, and again by the real tokens."""
    backend, encoder = FakeBackend(max_batch_tokens=16), ByteEncoder()
    async with serving(backend, encoder=encoder, max_queue_wait_s=1e-6) as engine:
        requests = await busy(engine, backend)
        encoder.threads.clear()
        with pytest.raises(Overloaded) as refused:
            await engine.check_busy("embed", Caller(client="a"))
        assert refused.value.retry_after_s >= 1
        assert not encoder.threads
        with pytest.raises(Overloaded):  # by its real tokens
            await engine.answer(embed("new"), Caller(client="a"))
        await leave(requests)
        backend.gate.set()
        await engine.answer(embed("new"), Caller(client="a"))


async def test_a_refused_request_is_reported_once_and_does_no_work():
    """Under overload most requests are refused; each is counted under its operation."""
    backend, recorder = FakeBackend(max_batch_tokens=16), Recorder()
    async with serving(backend, observer=recorder, max_queue_wait_s=1e-6) as engine:
        requests = await busy(engine, backend)
        before = len(recorder.reports)
        for _ in range(3):
            with pytest.raises(Overloaded):
                await engine.answer(SimilarityRequest(source="a", sentences=["b"]), Caller(client="a"))
        reported = [(report.operation, report.error) for report in recorder.reports[before:]]
        assert reported == [("similarity", "Overloaded")] * 3
        await leave(requests)


async def test_requests_without_a_forward_are_answered_under_overload():
    """Token counts, decoded ids, lists of models, and embedding requests without outputs."""
    backend = FakeBackend(max_batch_tokens=16)
    async with serving(backend, max_queue_wait_s=1e-6) as engine:
        requests = await busy(engine, backend)
        caller = Caller(client="a")
        await engine.answer(TokenizeRequest(inputs=["a"]), caller)
        await engine.answer(DecodeRequest(ids=[[97]]), caller)
        await engine.answer(ListModels(), caller)
        await engine.answer(embed("a", outputs=frozenset()), caller)
        await leave(requests)


async def test_a_passed_deadline_is_timed_out_and_not_overloaded():
    """Also with a full queue: a retry would not help."""
    backend = FakeBackend(max_batch_tokens=16)
    async with serving(backend, max_queue_wait_s=1e-6) as engine:
        requests = await busy(engine, backend)
        with pytest.raises(TimedOut):
            await engine.answer(embed("a"), Caller(client="a", deadline_s=time.monotonic() - 1))
        await leave(requests)


async def test_a_small_request_is_accepted_where_a_large_one_is_refused():
    """Each is judged by the tokens served before it: of another client at most its own size."""
    backend = FakeBackend(max_batch_tokens=16)
    async with serving(backend, max_queue_wait_s=5.0, max_client_batch_size=200) as engine:
        slow(engine, backend, 100)
        job = ask(engine, *[f"job {n:06}" for n in range(100)], caller=Caller(client="a"))  # 1,000 tokens: 10 s
        await entered(backend)
        small = ask(engine, *[f"small{n:05}" for n in range(10)], caller=Caller(client="b"))
        await settle()
        with refuses(Overloaded, retry_after_s=pytest.approx(5.9, abs=0.1)):
            await engine.answer(embed(*[f"large{n:05}" for n in range(100)]), Caller(client="c"))
        backend.gate.set()
        await asyncio.gather(job, small)


async def test_a_failed_request_queues_no_further_texts():
    """Their results would not be used."""
    async with serving(FakeBackend()) as engine:
        runner = engine._registry.models[0].runner
        puts: list[int] = []
        runner.worker.put = lambda items: (puts.append(sum(map(len, items))), runner.stop())
        with pytest.raises(Unavailable):
            await engine.answer(embed(*[f"{n:05}" for n in range(2000)]), ANYONE)
    assert puts == [TEXTS_PER_STEP]


async def test_an_idle_server_refuses_nothing_for_its_size():
    """A request is judged by the queue ahead of it, also on a slow device."""
    backend = FakeBackend(max_batch_tokens=16)
    async with serving(backend, max_queue_wait_s=1e-6) as engine:
        await engine.answer(embed(*[f"{n:04}" for n in range(500)]), ANYONE)
        result = await engine.answer(embed(*[f"{n:05}" for n in range(2000)]), ANYONE)
    assert rows(result).shape == (2000, WIDTH)


async def test_a_hundred_thousand_tiny_inputs_in_one_request():
    """Answered in order and in parts, while queries of other clients are answered."""
    backend = FakeBackend(streams=2, max_batch_tokens=8192)
    backend.forward = (
        lambda batch, stream: {  # type: ignore[method-assign]  # fast: row = first id
            "dense": np.repeat(batch.texts.ids[batch.texts.cu_seqlens[:-1]][:, None], WIDTH, axis=1).astype(np.float32)
        }
    )
    models = [spec(("dense",))]
    async with serving(backend, models=models, max_client_batch_size=100_000, cache_bytes=0) as engine:
        numbers = np.arange(100_000) % 5000 + 1
        worker = engine._registry.models[0].runner.worker
        put, turn, taken = worker.put, 0, Counter()

        def put_counted(items):
            taken[turn] += sum(map(len, items))
            put(items)

        async def count_turns():
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        worker.put = put_counted
        counting = asyncio.create_task(count_turns())
        job = asyncio.create_task(
            engine.answer(EmbedRequest(inputs=[[n] for n in numbers.tolist()], normalize=False), BULK)
        )
        queries = 0
        while not job.done():
            await engine.answer(embed("query"), ANYONE)
            queries += 1
        result = await job
        counting.cancel()
    np.testing.assert_array_equal(rows(result)[:, 0], numbers)
    assert queries > 20
    assert max(taken.values()) <= TEXTS_PER_STEP + 1  # plus a query


async def test_a_request_leaves_no_reference_cycles():
    """After success, failure and cancellation, items and rows are freed without the garbage collector."""
    backend = FakeBackend(max_batch_tokens=8)
    async with serving(backend) as engine:
        backend.poison = ord("!")
        with without_collection():
            before = {id(one) for one in gc.get_objects() if type(one) in (Item, Job)}  # held by threads of other tests
            await engine.answer(embed("a", "b", "a"), ANYONE)
            with pytest.raises(InferenceFailed):
                await engine.answer(embed("c", "!"), ANYONE)
            close_gate(backend)
            leaver = ask(engine, "running", "waiting")
            await entered(backend)
            leaver.cancel()
            await settle()
            backend.gate.set()
            await engine.answer(embed("last"), ANYONE)  # the cancelled text has run by now
    left = [one for one in gc.get_objects() if id(one) not in before]
    assert not [one for one in left if type(one) is Item]
    assert not [one for one in left if type(one) is Job and len(one.answers)]


# --- events ---------------------------------------------------------------------------------------------------


async def test_every_request_is_reported():
    """With the served name, never the client's words; errors by class."""
    observer = Recorder()
    async with serving(FakeBackend(), observer=observer) as engine:
        await engine.answer(embed("abc", "d", model="alias0"), ANYONE)
        await engine.answer(embed("abc"), ANYONE)
        await engine.answer(TokenizeRequest(inputs=["ab"]), ANYONE)
        await engine.answer(DecodeRequest(ids=[[97]]), ANYONE)
        await engine.answer(SimilarityRequest(source="a", sentences=["b"]), ANYONE)
        with pytest.raises(ModelNotFound):
            await engine.answer(embed("a", model="nope"), ANYONE)
    assert observer.requests == [
        ("m0", "embed", None, 2, 4),
        ("m0", "embed", None, 1, 3),
        ("m0", "tokenize", None, 1, 2),
        ("m0", "decode", None, 1, 0),
        ("m0", "similarity", None, 2, 2),
        ("", "embed", "ModelNotFound", 0, 0),
    ]
    assert observer.lookups == [(0, 2), (1, 0), (0, 2)]


async def test_timings_do_not_exceed_the_request():
    """Also for a request that joined a running text."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        close_gate(backend)
        first = ask(engine, "a")
        await entered(backend)
        await asyncio.to_thread(time.sleep, 0.05)
        second = ask(engine, "a")
        await settle()
        backend.gate.set()
        timings = [(await request).usage.timings for request in (first, second)]
    for t in timings:
        assert 0 <= t.tokenizing_s + t.waiting_s + t.computing_s <= t.total_s
    assert timings[0].computing_s - timings[1].computing_s > 0.045


# --- conversations --------------------------------------------------------------------------------------------


async def test_a_conversation_is_read_as_its_text() -> None:
    """In the template of the requested model; its vector is that of the rendered text."""
    conversation = Conversation(messages='[{"role": "user", "content": ["hi"]}]')
    async with serving(FakeBackend(), FakeBackend(), models=[spec(), spec(chat_template=ROLES)]) as engine:
        asked = EmbedRequest(inputs=(), model="m1", conversations=[conversation])
        found = await engine.answer(asked, ANYONE)
        expected = await engine.answer(replace(asked, inputs=["user: hi;"], conversations=()), ANYONE)
        assert isinstance(found, EmbedResult)
        assert isinstance(expected, EmbedResult)
        assert np.array_equal(found.dense["float"], expected.dense["float"])
        assert found.usage.lengths == expected.usage.lengths
        tokens = await engine.answer(TokenizeRequest(inputs=(), model="m1", conversations=[conversation]), ANYONE)
        assert tokens.usage.characters == len("user: hi;")  # type: ignore[union-attr]
        with pytest.raises(InvalidField, match="no chat template"):
            await engine.answer(replace(asked, model="m0"), ANYONE)


async def test_an_observer_that_raises_fails_nothing(caplog):
    """Models load, requests of all outcomes are answered, and the log names each class of failure once."""

    def observe(event: Event) -> None:
        raise {BatchRan: ValueError, RequestEnded: KeyError}.get(type(event), RuntimeError)("broken")

    async with serving(FakeBackend(), observer=observe) as engine:
        assert engine.readiness() == {"m0": "ready"}
        for _ in range(2):  # computed, and from the cache
            result = await engine.answer(embed("abc", "d"), ANYONE)
            assert result.dense["float"].shape == (2, WIDTH)
        with pytest.raises(ModelNotFound):
            await engine.answer(embed("a", model="nope"), ANYONE)
    raised = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert sorted(raised, key=repr) == sorted([ValueError, KeyError, RuntimeError], key=repr)


async def test_a_cache_that_raises_fails_nothing(monkeypatch):
    """All texts of the batch are answered, and so are later requests for the same texts."""

    def keep(cache: AnswerCache, key: CacheKey, answer: Answer) -> None:
        raise MemoryError

    monkeypatch.setattr(AnswerCache, "keep", keep)
    async with serving(FakeBackend()) as engine:
        for _ in range(2):
            async with asyncio.timeout(10):
                result = await engine.answer(embed("abc", "d"), ANYONE)
            assert result.dense["float"].shape == (2, WIDTH)
