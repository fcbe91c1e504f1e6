"""Models load and unload: on first use, when idle, and to make room; never while in use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace
from tests.clock import Clock
from tests.engine.fakes import (
    CROSS_ENCODER,
    ByteEncoder,
    FakeBackend,
    Recorder,
    backend_for,
    broken_log,
    close_gate,
    entered,
    sequence_of,
    settle,
    source,
    spec,
)

from vectord.config import EngineConfig
from vectord.engine.cache.lookup import AnswerCache, ModelCache
from vectord.engine.engine import Engine
from vectord.engine.events import discard
from vectord.engine.models.lifecycle import RETRY_FAILED_S, Lifecycle
from vectord.engine.models.registry import ModelSource, Registry, ServedModel
from vectord.engine.queue.runner import ModelRunner
from vectord.errors import InferenceFailed, ModelFailed, ModelUnavailable, Unavailable
from vectord.schema import Caller, EmbedRequest, LoadModel, UnloadModel
from vectord.text.sequence import Texts

ANYONE = Caller()
MIB = 2**20
WAIT_S = 10


class Loader:
    """Loads one model: behind a gate, failing while `error` is set. `backends` are the ones it has made."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.backends: list[FakeBackend] = []
        self.stubborn = False  # whether its backends fail to close

    def __call__(self) -> tuple[ByteEncoder, Sequence[FakeBackend]]:
        self.entered.release()
        assert self.gate.wait(WAIT_S), "the gate stayed closed"
        if self.error is not None:
            raise self.error
        self.backends.append(Stubborn() if self.stubborn else FakeBackend())
        return ByteEncoder(), [self.backends[-1]]

    async def begun(self) -> None:
        """Wait until one more load has started."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=WAIT_S)

    @property
    def held(self) -> int:
        """The number of open backends."""
        return sum(not backend.closed for backend in self.backends)


class Stubborn(FakeBackend):
    def close(self) -> None:
        super().close()
        raise RuntimeError("the fake device does not let go")


@dataclass(frozen=True)
class House:
    """Models and their Lifecycle."""

    lifecycle: Lifecycle
    models: list[ServedModel]
    loaders: list[Loader]
    clock: Clock
    observer: Recorder

    def states(self) -> list[str]:
        return [served.state for served in self.models]

    async def use(self, n: int) -> None:
        async with self.lifecycle.use(self.models[n]):
            self.clock.now_s += 1


def make_runner(served: ServedModel, encoder: ByteEncoder, backends: Sequence[FakeBackend]) -> ModelRunner:
    return ModelRunner(
        served.name,
        served.spec,
        encoder,
        backends,
        config=EngineConfig(),
        max_batch_texts=None,
        cache=ModelCache(served.name, served.spec, "float32", AnswerCache(0), None, discard),
        observer=discard,
        stalled_changed=lambda stalled: None,
        queue_changed=lambda: None,
    )


@asynccontextmanager
async def keeping(
    models: int = 1,
    *,
    sizes_mib: tuple[int, ...] = (),
    pinned: tuple[int, ...] = (),
    at_start: bool = False,
    **settings: Any,
) -> AsyncIterator[House]:
    """This many models, unloaded unless at_start; sizes_mib: 1 each by default; settings: of EngineConfig."""
    loaders = [Loader() for _ in range(models)]
    sources = [
        ModelSource(
            f"m{n}",
            (),
            spec(),
            loader,
            pinned=n in pinned,
            memory_bytes=(sizes_mib[n] if sizes_mib else 1) * MIB,
        )
        for n, loader in enumerate(loaders)
    ]
    settings["model_loading"] = "start" if at_start else "first-use"
    served, clock, observer = Registry(sources).models, Clock(), Recorder()
    house = House(
        Lifecycle(served, EngineConfig(**settings), make_runner, observer, clock), served, loaders, clock, observer
    )
    try:
        yield house
    finally:
        for loader in loaders:
            loader.gate.set()
        await house.lifecycle.close()
        assert [one.users for one in served] == [0] * models
        assert [loader.held for loader in loaders] == [0] * models


def hold_closing(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """From now on a runner that closes sets the first event and waits for the second."""

    def hold(runner: ModelRunner, timeout_s: float) -> bool:
        closing.set()
        assert go_on.wait(WAIT_S)
        return close(runner, timeout_s)

    closing, go_on, close = threading.Event(), threading.Event(), ModelRunner.close
    monkeypatch.setattr(ModelRunner, "close", hold)
    return closing, go_on


async def start(house: House) -> None:
    house.lifecycle.start()
    await asyncio.wait_for(house.lifecycle.loaded.wait(), WAIT_S)


# --- first use ------------------------------------------------------------------------------------------------


async def test_a_first_use_loads_once_for_all_requests():
    """Requests before and during the load wait for it and receive the runner."""
    async with keeping() as house:
        house.loaders[0].gate.clear()
        early = [asyncio.create_task(house.use(0)) for _ in range(5)]
        await house.loaders[0].begun()
        late = [asyncio.create_task(house.use(0)) for _ in range(5)]
        await settle()
        assert house.states() == ["loading"]
        assert house.models[0].users == 10
        house.loaders[0].gate.set()
        await asyncio.wait_for(asyncio.gather(*early, *late), WAIT_S)
        await house.use(0)
        assert len(house.loaders[0].backends) == 1
        assert house.observer.states == [("m0", "loading"), ("m0", "ready")]


async def test_a_cancelled_request_does_not_end_the_load():
    """Neither for other requests nor for the next use."""
    async with keeping() as house:
        house.loaders[0].gate.clear()
        leaver, stayer = asyncio.create_task(house.use(0)), asyncio.create_task(house.use(0))
        await house.loaders[0].begun()
        leaver.cancel()
        await asyncio.wait([leaver])
        assert leaver.cancelled()
        assert house.models[0].users == 1
        house.loaders[0].gate.set()
        await asyncio.wait_for(stayer, WAIT_S)
        assert house.states() == ["ready"]


async def test_a_load_without_waiting_requests_ends_cleanly():
    """After success and after failure."""
    async with keeping(2) as house:
        for n, error in enumerate([None, ModelUnavailable("gone")]):
            house.loaders[n].gate.clear()
            house.loaders[n].error = error
            leaver = asyncio.create_task(house.use(n))
            await house.loaders[n].begun()
            leaver.cancel()
            await asyncio.wait([leaver])
            house.loaders[n].gate.set()
            while house.states()[n] == "loading":
                await asyncio.sleep(0)
        assert house.states() == ["ready", "failed"]


async def test_two_models_load_one_after_the_other():
    """Concurrent loads would add their memory peaks."""
    async with keeping(2) as house:
        house.loaders[0].gate.clear()
        uses = [asyncio.create_task(house.use(n)) for n in range(2)]
        await house.loaders[0].begun()
        await settle()
        assert house.states() == ["loading", "unloaded"]
        house.loaders[0].gate.set()
        await asyncio.wait_for(asyncio.gather(*uses), WAIT_S)
        assert house.states() == ["ready", "ready"]


# --- failures -------------------------------------------------------------------------------------------------


async def test_a_failed_model_is_retried_after_a_while():
    """Not earlier: each attempt may take minutes of the whole machine. The waiting requests receive the error."""
    async with keeping() as house:
        house.loaders[0].error = ModelUnavailable("no such file")
        uses = await asyncio.gather(*[house.use(0) for _ in range(3)], return_exceptions=True)
        assert [type(error) for error in uses] == [ModelFailed] * 3
        house.loaders[0].error = None
        house.clock.now_s += RETRY_FAILED_S - 1
        with pytest.raises(Unavailable, match="could not be loaded"):
            await house.use(0)
        assert house.loaders[0].backends == []
        house.clock.now_s += 1
        await house.use(0)
        assert house.states() == ["ready"]


async def test_a_failed_model_stays_failed_until_a_load_succeeds():
    """Requests that name no model must not choose it while it is tried again."""
    async with keeping() as house:
        (served,), (loader,) = house.models, house.loaders
        loader.error = ModelUnavailable("no such file")
        with pytest.raises(ModelFailed, match="no such file"):
            await house.use(0)
        house.lifecycle.retry_failed()  # too early
        loader.gate.clear()
        loader.error = None
        house.clock.now_s += RETRY_FAILED_S
        house.lifecycle.retry_failed()
        await loader.begun()
        await loader.begun()
        assert (served.info().state, served.able) == ("failed", frozenset())
        loader.gate.set()
        await house.use(0)
        assert (served.info().state, served.info().failure, served.able) == ("ready", "", served.kinds)


async def test_files_that_could_not_be_read_are_read_again():
    """By a later use, with the facts of the files as they are then. Until then the model fails without being loaded."""
    found: list[ModelSource] = []

    def reopen() -> ModelSource:
        if not found:
            raise ModelUnavailable("still no files")
        return found[0]

    missing = spec((), fingerprint="")
    unread = ModelSource("m", (), missing, Loader(), failure=ModelUnavailable("no files"), reopen=reopen)
    async with serving_sources([unread]) as engine:
        assert engine.readiness() == {"m": "failed"}
        with pytest.raises(ModelFailed, match=r"loaded: no files"):
            await engine.answer(EmbedRequest(inputs=["a"]), ANYONE)
        with pytest.raises(ModelFailed, match="still no files"):
            await engine.answer(LoadModel(model="m"), ANYONE)
        found.append(ModelSource("m", (), spec(), Loader(), memory_bytes=MIB))
        await engine.answer(LoadModel(model="m"), ANYONE)
        result = await engine.answer(EmbedRequest(inputs=["a"]), ANYONE)
        assert (result.model, result.fingerprint) == ("m", spec().fingerprint)
        assert engine.models().models[0].outputs == {"dense", "tokens"}


@asynccontextmanager
async def serving_sources(sources: Sequence[ModelSource]) -> AsyncIterator[Engine]:
    engine = Engine(sources)
    await engine.start()
    await asyncio.wait_for(engine.loaded.wait(), WAIT_S)
    try:
        yield engine
    finally:
        await engine.close()


async def test_an_explicit_load_retries_immediately():
    """The operator may have fixed the files."""
    async with keeping() as house:
        house.loaders[0].error = ModelUnavailable("no such file")
        with pytest.raises(Unavailable):
            await house.lifecycle.load(house.models[0])
        house.loaders[0].error = None
        await house.lifecycle.load(house.models[0])
        assert house.states() == ["ready"]


async def test_a_use_while_a_failed_load_closes_is_refused(monkeypatch):
    """Until its threads have ended, the model is neither ready nor can it load again."""
    async with keeping(at_start=True) as house:
        closing, go_on = hold_closing(monkeypatch)
        monkeypatch.setattr("vectord.engine.models.loading.self_test", fails)
        house.lifecycle.start()
        assert await asyncio.to_thread(closing.wait, WAIT_S)
        with pytest.raises(Unavailable):
            await house.use(0)
        go_on.set()
        await asyncio.wait_for(house.lifecycle.loaded.wait(), WAIT_S)
        with pytest.raises(Unavailable, match="could not be loaded"):
            await house.use(0)
        assert house.states() == ["failed"]


async def fails(*args: object) -> None:
    raise InferenceFailed("the self-test failed")


async def test_a_log_handler_that_raises_stops_no_load():
    """Of an application that embeds in its own process: it would wait for its model for ever."""
    with broken_log():
        async with keeping(2, at_start=True) as house:
            house.loaders[0].error = RuntimeError("a bug")
            await start(house)
            assert house.states() == ["failed", "ready"]
            await house.lifecycle.unload(house.models[1])
            await house.use(1)


# --- room -----------------------------------------------------------------------------------------------------


async def test_the_least_recently_used_model_is_evicted():
    """Not the first loaded, and no more models than necessary."""
    async with keeping(3, model_memory_bytes=2 * MIB) as house:
        await house.use(0)
        await house.use(1)
        await house.use(0)
        await house.use(2)
        assert house.states() == ["ready", "unloaded", "ready"]
        assert house.loaders[1].held == 0
        await house.use(1)
        assert house.states() == ["unloaded", "ready", "ready"]


async def test_a_model_in_use_is_not_evicted():
    """The other model is refused with a time to retry, and loads when the use has ended."""
    async with keeping(2, model_memory_bytes=MIB) as house:
        async with house.lifecycle.use(house.models[0]) as runner:
            with pytest.raises(Unavailable, match="no room") as refused:
                await house.use(1)
            assert refused.value.retry_after_s > 1
            assert house.models[0].runner is runner
            assert not house.loaders[0].backends[0].closed
        await house.use(1)
        assert house.states() == ["unloaded", "ready"]


async def test_a_pinned_model_is_unloaded_only_by_the_operator():
    """Neither evicted nor unloaded when idle."""
    async with keeping(2, pinned=(0,), model_memory_bytes=MIB, model_idle_s=60.0) as house:
        await start(house)
        assert house.states() == ["ready", "unloaded"]
        with pytest.raises(Unavailable, match="no room"):
            await house.use(1)
        house.clock.now_s += 1000
        await house.lifecycle.unload_idle()
        assert house.states() == ["ready", "unloaded"]
        await house.lifecycle.unload(house.models[0])
        await house.use(1)
        assert house.states() == ["unloaded", "ready"]


async def test_a_model_that_cannot_fit_evicts_nothing():
    """Its size is known before anything is unloaded."""
    async with keeping(2, sizes_mib=(1, 9), model_memory_bytes=2 * MIB) as house:
        await house.use(0)
        with pytest.raises(Unavailable, match="no room"):
            await house.use(1)
        assert house.states() == ["ready", "unloaded"]


async def test_an_unloading_model_counts_until_it_is_closed(monkeypatch):
    """The next model does not load into memory that is not yet free, and no model loads twice."""
    async with keeping(2, model_memory_bytes=MIB) as house:
        await house.use(0)
        closing, go_on = hold_closing(monkeypatch)
        going = asyncio.create_task(house.lifecycle.unload(house.models[0]))
        assert await asyncio.to_thread(closing.wait, WAIT_S)
        coming = asyncio.create_task(house.use(1))
        await settle()
        assert house.loaders[1].backends == []
        go_on.set()
        await asyncio.wait_for(asyncio.gather(going, coming), WAIT_S)
        assert [loader.held for loader in house.loaders] == [0, 1]


async def test_requests_for_more_models_than_fit_succeed_or_are_refused():
    """In any order: the budget holds, and no request receives an unloaded runner."""
    async with keeping(4, model_memory_bytes=2 * MIB) as house:

        async def ask(n: int) -> None:
            async with house.lifecycle.use(house.models[n % 4]) as runner:
                assert house.models[n % 4].runner is runner
                await asyncio.sleep(0)
                assert not runner.backends[0].closed
                assert sum(loader.held for loader in house.loaders) <= 2

        outcomes = await asyncio.wait_for(
            asyncio.gather(*[ask(n * 7) for n in range(60)], return_exceptions=True), 3 * WAIT_S
        )
        assert {type(outcome) for outcome in outcomes} <= {type(None), Unavailable}
        assert outcomes.count(None) >= 15


# --- start ----------------------------------------------------------------------------------------------------


async def test_a_request_during_the_load_at_start_is_refused():
    """It starts no second load. Also before the first load has started."""
    async with keeping(2, at_start=True) as house:
        house.loaders[0].gate.clear()
        house.lifecycle.start()
        for n in (0, 1):
            with pytest.raises(Unavailable, match="loading"):
                await house.use(n)
        await house.loaders[0].begun()
        for n in (0, 1):
            with pytest.raises(Unavailable, match="loading"):
                await house.use(n)
        house.loaders[0].gate.set()
        await asyncio.wait_for(house.lifecycle.loaded.wait(), WAIT_S)
        assert [len(loader.backends) for loader in house.loaders] == [1, 1]


@pytest.mark.parametrize("at_start", [True, False], ids=["at start", "on first use"])
async def test_only_the_load_at_start_counts_as_starting(at_start):
    """A load on first use delays requests and does not make the server unready."""
    loader = Loader()
    loader.gate.clear()
    loading = "start" if at_start else "first-use"
    engine = Engine([replace(source(FakeBackend(), "m"), load=loader)], EngineConfig(model_loading=loading))
    assert engine.models().starting
    await engine.start()
    await settle()
    waiting = asyncio.create_task(engine.answer(EmbedRequest(inputs=["a"]), ANYONE))
    await loader.begun()
    shown = engine.models()
    assert ([info.state for info in shown.models], shown.starting) == (["loading"], at_start)
    loader.gate.set()
    await asyncio.wait_for(engine.loaded.wait(), WAIT_S)
    assert not engine.models().starting
    await asyncio.gather(waiting, return_exceptions=True)
    await engine.close()


async def test_a_model_without_room_at_start_loads_on_first_use(caplog):
    """Loading at start evicts nothing: earlier models are preferred."""
    async with keeping(3, sizes_mib=(1, 2, 1), at_start=True, model_memory_bytes=2 * MIB) as house:
        await start(house)
        assert house.states() == ["ready", "unloaded", "ready"]
        await house.use(1)
        assert house.states() == ["unloaded", "ready", "unloaded"]
    assert "no room for the model m1" in caplog.text


async def test_pinned_models_come_first_at_start():
    """After the others they would have no room."""
    async with keeping(3, pinned=(2,), at_start=True, model_memory_bytes=2 * MIB) as house:
        await start(house)
        assert house.states() == ["ready", "unloaded", "ready"]
        assert [name for name, state in house.observer.states if state == "ready"] == ["m2", "m0"]


async def test_with_defaults_the_first_of_each_kind_loads_at_start():
    """The first model that embeds and the first reranker. A request loads another one, as Semantic Explorer's list of
    allowed models requires."""
    sources = [source(FakeBackend(), "a"), source(FakeBackend(), "b")]
    sources += [source(backend_for(CROSS_ENCODER), name, model=CROSS_ENCODER) for name in "cd"]
    engine = Engine(sources, EngineConfig(model_loading="defaults"))
    await engine.start()
    await asyncio.wait_for(engine.loaded.wait(), WAIT_S)
    assert engine.readiness() == {"a": "ready", "b": "unloaded", "c": "ready", "d": "unloaded"}
    assert (await engine.answer(EmbedRequest(inputs=["x"], model="b"), ANYONE)).model == "b"
    await engine.close()


# --- unloading ------------------------------------------------------------------------------------------------


async def test_an_idle_model_is_unloaded():
    """Idle time counts from the end of the last use or the load. A model in use is never idle."""
    async with keeping(3, model_idle_s=60.0) as house:
        for n in range(3):
            await house.use(n)
        async with house.lifecycle.use(house.models[2]):
            house.clock.now_s += 50
            await house.use(1)
            house.clock.now_s += 20
            await house.lifecycle.unload_idle()
            assert house.states() == ["unloaded", "ready", "ready"]
            assert house.loaders[0].held == 0
        await house.lifecycle.unload_idle()
        assert house.states() == ["unloaded", "ready", "ready"]
        house.clock.now_s += 60
        await house.lifecycle.unload_idle()
        assert house.states() == ["unloaded"] * 3
        await house.use(0)
        assert house.states() == ["ready", "unloaded", "unloaded"]


async def test_idle_models_are_checked_periodically():
    """From the start of the server."""
    async with keeping(model_idle_s=0.001) as house:
        await start(house)
        await house.use(0)
        house.clock.now_s += 1
        while house.loaders[0].held:  # its state changes before its memory is freed
            await asyncio.sleep(0.001)
        assert house.states() == ["unloaded"]


async def test_a_model_in_use_cannot_be_unloaded():
    """Nor can a loading one. Unloading an unloaded model does nothing."""
    async with keeping(2) as house:
        async with house.lifecycle.use(house.models[0]):
            with pytest.raises(Unavailable, match="in use"):
                await house.lifecycle.unload(house.models[0])
        house.loaders[1].gate.clear()
        loading = asyncio.create_task(house.lifecycle.load(house.models[1]))
        await house.loaders[1].begun()
        with pytest.raises(Unavailable, match="in use"):
            await house.lifecycle.unload(house.models[1])
        house.loaders[1].gate.set()
        await loading
        for _ in range(2):
            await house.lifecycle.unload(house.models[0])
        assert house.states() == ["unloaded", "ready"]


async def test_a_model_used_before_its_unload_starts_stays():
    """The unload waited for another load; meanwhile a request arrived."""
    async with keeping(2) as house:
        await house.use(0)
        house.loaders[1].gate.clear()
        loading = asyncio.create_task(house.use(1))
        await house.loaders[1].begun()
        unloading = asyncio.create_task(house.lifecycle.unload(house.models[0]))
        await settle()
        async with house.lifecycle.use(house.models[0]):
            house.loaders[1].gate.set()
            await loading
            with pytest.raises(Unavailable, match="in use"):
                await unloading
        assert house.states() == ["ready", "ready"]


async def test_a_backend_that_fails_to_close_does_not_block_others(caplog):
    """The failure is logged; this and other models can load."""
    async with keeping(2, model_memory_bytes=MIB) as house:
        house.loaders[0].stubborn = True
        for n in (0, 1, 0):
            await house.use(n)
        assert house.states() == ["ready", "unloaded"]
    assert caplog.text.count("closing the backend of m0 failed") == 2


async def test_the_operator_loads_and_unloads_by_name():
    """Through the engine; the result has the new state."""
    backends = [FakeBackend(), FakeBackend()]
    sources = [source(backend, f"m{n}", f"alias{n}") for n, backend in enumerate(backends)]
    engine = Engine(sources, EngineConfig(model_loading="first-use"))
    await engine.start()
    loaded = await engine.answer(LoadModel(model="alias1"), ANYONE)
    assert [(info.name, info.state) for info in loaded.models] == [("m1", "ready")]
    unloaded = await engine.answer(UnloadModel(model="m1"), ANYONE)
    assert [(info.name, info.state, info.device) for info in unloaded.models] == [("m1", "unloaded", "unknown")]
    assert backends[1].closed
    assert not backends[0].batches
    await engine.close()


async def test_a_running_forward_of_a_cancelled_request_does_not_keep_the_model():
    """Unloading waits for the forward; the next use loads again."""
    async with keeping() as house:
        async with house.lifecycle.use(house.models[0]) as runner:
            backend = house.loaders[0].backends[0]
            close_gate(backend)
            texts = Texts.of([sequence_of("a")])
            request = asyncio.create_task(runner.run(texts, frozenset({"dense"}), ANYONE))
            await entered(backend)
            request.cancel()
            await asyncio.wait([request])
        unloading = asyncio.create_task(house.lifecycle.unload(house.models[0]))
        await settle()
        assert not backend.closed
        backend.gate.set()
        await asyncio.wait_for(unloading, WAIT_S)
        assert backend.closed
        await house.use(0)
        assert house.states() == ["ready"]


# --- the end --------------------------------------------------------------------------------------------------


async def test_closing_fails_requests_that_wait_for_a_load():
    """With Unavailable. The load is cancelled."""
    async with keeping(2) as house:
        house.loaders[0].gate.clear()
        waiters = [asyncio.create_task(house.use(n)) for n in (0, 0, 1)]
        await house.loaders[0].begun()
        await asyncio.wait_for(house.lifecycle.close(), WAIT_S)
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3
        assert house.states() == ["unloaded", "unloaded"]


async def test_after_closing_nothing_loads():
    """Neither for a request nor for the operator."""
    async with keeping() as house:
        await house.lifecycle.close()
        with pytest.raises(Unavailable, match="shut down"):
            await house.use(0)
        with pytest.raises(Unavailable, match="shut down"):
            await house.lifecycle.load(house.models[0])
        assert house.loaders[0].backends == []


async def test_closing_in_the_middle_of_a_self_test_closes_the_backend(monkeypatch):
    """A model in its self-test already has threads and memory."""
    testing = asyncio.Event()

    async def never_ends(*args: object) -> None:
        testing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("vectord.engine.models.loading.self_test", never_ends)
    async with keeping(at_start=True) as house:
        house.lifecycle.start()
        await asyncio.wait_for(testing.wait(), WAIT_S)
        await asyncio.wait_for(house.lifecycle.close(), WAIT_S)
        assert house.loaders[0].held == 0
