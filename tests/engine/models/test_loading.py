"""Loading and the self-test."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace
from tests.engine.fakes import CROSS_ENCODER, ByteEncoder, FakeBackend, Recorder, backend_for, source, spec

from vectord.compute.backends.base import Answers, TokenBatch
from vectord.config import EngineConfig
from vectord.engine.engine import Engine
from vectord.engine.models.registry import CompositeSource, ModelSource, reason_of
from vectord.errors import ModelFailed, ModelUnavailable, Unavailable
from vectord.schema import (
    Caller,
    DecodeRequest,
    EmbedRequest,
    Float32,
    RerankRequest,
    SimilarityRequest,
    TokenizeRequest,
)

REQUEST = EmbedRequest(inputs=["a"])


class Spoiled(FakeBackend):
    """Changes the rows of its outputs."""

    def __init__(self, spoil: Callable[[Float32], Float32], **facts: int) -> None:
        super().__init__(**facts)
        self._spoil = spoil

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        return self._spoiled(super().forward(batch, stream))

    def forward_exact(self, batch: TokenBatch) -> Answers:
        return self._spoiled(super().forward_exact(batch))

    def _spoiled(self, answers: Answers) -> Answers:
        return {output: self._spoil(rows) for output, rows in answers.items()}


def failing(error: BaseException, name: str) -> ModelSource:
    def load() -> tuple[ByteEncoder, list[FakeBackend]]:
        raise error

    return ModelSource(name, (), spec(), load)


async def test_start_returns_immediately_and_the_model_serves_when_loaded():
    """Until then it is loading and requests are refused."""
    gate = threading.Event()
    backend, observer = FakeBackend(), Recorder()

    def load() -> tuple[ByteEncoder, list[FakeBackend]]:
        assert gate.wait(10)
        return ByteEncoder(), [backend]

    engine = Engine([ModelSource("m", (), spec(), load)], observer=observer)
    await engine.start()
    assert engine.readiness() == {"m": "loading"}
    with pytest.raises(Unavailable, match="loading"):
        await engine.answer(REQUEST, Caller())
    gate.set()
    await asyncio.wait_for(engine.loaded.wait(), 10)
    assert engine.readiness() == {"m": "ready"}
    await engine.answer(REQUEST, Caller())
    assert observer.states == [("m", "loading"), ("m", "ready")]
    await engine.close()
    assert backend.closed


@pytest.mark.parametrize(
    "error",
    [ModelUnavailable("weights are missing"), RuntimeError("a bug"), MemoryError(), SystemExit(1)],
    ids=lambda error: type(error).__name__,
)
async def test_a_model_that_cannot_load_does_not_affect_the_others(error, caplog):
    """Requests that name no model go to the others. Operators get the reason, and the log the traceback of a bug."""
    engine = Engine([failing(error, "broken"), source(FakeBackend(), "fine")])
    await engine.start()
    await asyncio.wait_for(engine.loaded.wait(), 10)
    assert engine.readiness() == {"broken": "failed", "fine": "ready"}
    assert (await engine.answer(REQUEST, Caller())).model == "fine"
    reason = reason_of(engine.failure("broken"))
    for operator in (True, False):
        caller = Caller(operator=operator)
        with pytest.raises(ModelFailed, match="could not be loaded") as refused:
            await engine.answer(replace(REQUEST, model="broken"), caller)
        assert (reason in refused.value.message) is operator
        assert engine.models(caller).models[0].failure == (reason if operator else "")
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == (
        [] if isinstance(error, ModelUnavailable) else [f"broken failed to load: {engine.failure('broken')}"]
    )
    assert (engine.failure("broken") is error) is not isinstance(error, SystemExit)
    await engine.close()


KINDS_OF_REQUESTS = {
    "dense": EmbedRequest(inputs=["a"]),
    "sparse": EmbedRequest(inputs=["a"], outputs=frozenset({"sparse"})),
    "both": EmbedRequest(inputs=["a"], outputs=frozenset({"dense", "sparse"})),
    "rerank": RerankRequest(query="a", passages=["b"]),
    "rerank by scores": RerankRequest(query="a", passages=["b"], method="scores"),
    "similarity": SimilarityRequest(source="a", sentences=["b"]),
    "tokenize": TokenizeRequest(inputs=["a"]),
    "decode": DecodeRequest(ids=[[97]]),
}
UNREAD = ModelUnavailable("no such folder")


@pytest.mark.parametrize("unread", [False, True], ids=["cannot be loaded", "cannot be read"])
@pytest.mark.parametrize(
    ("failed", "refused"),
    [
        ("dense", {"dense", "both", "similarity"}),
        ("sparse", {"sparse", "both"}),
        ("reranker", {"rerank by scores"}),
    ],
)
async def test_a_request_fails_only_if_no_ready_model_can_answer_it(failed, refused, unread):
    """Without a model name. With a composite of the dense and the sparse model, as Smart Embedder's."""
    specs = {"dense": spec(), "sparse": spec(("splade",)), "reranker": CROSS_ENCODER}
    sources = [source(backend_for(model), name, model=model) for name, model in specs.items()]
    broken = failing(UNREAD, failed)
    if unread:
        broken = replace(broken, spec=spec(()), failure=UNREAD, reopen=broken.load)
    else:
        broken = replace(broken, spec=specs[failed])
    sources = [broken if one.name == failed else one for one in sources]
    engine = Engine(sources, composites=[CompositeSource("both", {"dense": "dense", "sparse": "sparse"})])
    await engine.start()
    await asyncio.wait_for(engine.loaded.wait(), 10)
    found = set()
    for name, request in KINDS_OF_REQUESTS.items():
        try:
            await engine.answer(request, Caller())
        except ModelFailed as error:
            assert "no such folder" in error.message
            found.add(name)
    assert found == refused
    with pytest.raises(ModelFailed, match="no such folder"):
        await engine.answer(TokenizeRequest(inputs=["a"], model=failed), Caller())
    composite = engine.models().models[-1]
    assert (composite.state == "failed", "no such folder" in composite.failure) == (failed != "reranker",) * 2
    await engine.close()


async def test_a_request_whose_model_fails_on_its_first_use_is_answered_by_another():
    """In the same request. One that names the model fails."""
    sources = [failing(UNREAD, "a"), failing(UNREAD, "b"), source(FakeBackend(), "c")]
    for model in (None, "b"):
        engine = Engine(sources, EngineConfig(model_loading="first-use"))
        await engine.start()
        request = replace(REQUEST, model=model)
        if model is None:
            assert (await engine.answer(request, Caller())).model == "c"
        else:
            with pytest.raises(ModelFailed):
                await engine.answer(request, Caller())
        await engine.close()


async def test_the_failure_of_all_models_is_one_error():
    """Of the first one that could have answered."""
    engine = Engine([failing(UNREAD, "a"), failing(UNREAD, "b")], EngineConfig(model_loading="first-use"))
    await engine.start()
    with pytest.raises(ModelFailed, match="model a could"):
        await engine.answer(REQUEST, Caller())
    await engine.close()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda rows: rows * np.nan, "not finite"),
        (lambda rows: rows * 0, "zeros"),
        (lambda rows: rows[:, :-1], "failed on this text"),
        (lambda rows: rows[:-1], "failed on this text"),
        (lambda rows: rows * np.resize([[1], [-1]], (len(rows), 1)).astype(np.float32), "two dense answers"),
    ],
    ids=["not finite", "zeros", "too narrow", "too few rows", "one text, two vectors"],
)
@pytest.mark.parametrize("streams", [1, 2])
async def test_a_model_with_wrong_answers_fails_its_self_test(spoil, reason, streams):
    """The test takes the path of requests, alone and in a batch. Threads and backend are closed."""
    backend = Spoiled(spoil, streams=streams)
    engine = Engine([source(backend, "m")])
    await engine.start()
    await asyncio.wait_for(engine.loaded.wait(), 10)
    assert engine.readiness() == {"m": "failed"}
    assert reason in str(engine.failure("m"))
    assert backend.closed
    await engine.close()


async def test_the_self_test_runs_one_text_alone_and_several_together():
    """Both code paths of a device are tested. The cache is not used."""
    backend = FakeBackend(streams=2)
    engine = Engine([source(backend, "m")])
    await engine.start()
    await asyncio.wait_for(engine.loaded.wait(), 10)
    assert backend.batches[0].alone
    assert max(len(batch.texts.cu_seqlens) - 1 for batch in backend.batches) >= 2
    await engine.close()


@pytest.mark.parametrize(("cosine", "state"), [(1.0, "ready"), (0.5, "failed")])
async def test_the_self_test_compares_pairs_of_texts_with_their_known_cosine(cosine, state):
    backend = FakeBackend(streams=2)
    facts = replace(spec(), known_cosines=(("a text", "a text", cosine),))
    engine = Engine([ModelSource("m", (), facts, lambda: (ByteEncoder(), [backend]))])
    await engine.start()
    await asyncio.wait_for(engine.loaded.wait(), 10)
    assert engine.readiness() == {"m": state}
    assert state == "ready" or "1.000 that is known as 0.5" in str(engine.failure("m"))
    await engine.close()


async def test_a_model_runs_the_configured_warm_up_before_it_is_ready(caplog):
    """WARMUP_STEPS batches of WARMUP_BATCH_SIZE texts on each stream, each step logged as `warmup`."""
    caplog.set_level("INFO")
    backend = FakeBackend()
    config = EngineConfig(warmup_batches=2, warmup_batch_size=3)
    engine = Engine([ModelSource("m", (), spec(), lambda: (ByteEncoder(), [backend]))], config)
    await engine.start()
    await asyncio.wait_for(engine.loaded.wait(), 10)
    await engine.close()
    steps = [record.fields for record in caplog.records if "step" in getattr(record, "fields", {})]
    assert [(step["step"], step["batch_size"], step["workers"]) for step in steps] == [(1, 3, 1), (2, 3, 1)]
    assert [batch.texts.cu_seqlens.size - 1 for batch in backend.batches][-2:] == [3, 3]
