"""Models come and go: on first use, when idle, and to make room; never while somebody has one in his hands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from tests.engine.fakes import (
    ByteEncoder,
    Clock,
    FakeBackend,
    Recorder,
    close_gate,
    entered,
    sequence_of,
    settle,
    source,
    spec,
)

from vectord.config import EngineConfig
from vectord.engine.cache.lookup import ModelCache
from vectord.engine.cache.memory import AnswerCache
from vectord.engine.engine import Engine
from vectord.engine.events import discard
from vectord.engine.models.lifecycle import RETRY_FAILED_S, Lifecycle, Policy
from vectord.engine.models.registry import ModelSource, Registry, ServedModel
from vectord.engine.queue.runner import ModelRunner
from vectord.errors import InferenceFailed, ModelUnavailable, Unavailable
from vectord.schema import Caller, EmbedRequest, LoadModel, UnloadModel

ANYONE = Caller()
MIB = 2**20
WAIT_S = 10


class Loader:
    """How one model is loaded: behind a gate, failing as long as `error` is set; `backends` are those it has made."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.backends: list[FakeBackend] = []
        self.stubborn = False  # whether its backends fail to close

    def __call__(self) -> tuple[ByteEncoder, Sequence[FakeBackend]]:
        self.entered.release()
        assert self.gate.wait(WAIT_S), "nobody opened the gate"
        if self.error is not None:
            raise self.error
        self.backends.append(Stubborn() if self.stubborn else FakeBackend())
        return ByteEncoder(), [self.backends[-1]]

    async def begun(self) -> None:
        """Return when one more load than last time has begun."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=WAIT_S)

    @property
    def held(self) -> int:
        """How many of its backends are still open."""
        return sum(not backend.closed for backend in self.backends)


class Stubborn(FakeBackend):
    def close(self) -> None:
        super().close()
        raise RuntimeError("the fake device does not let go")


@dataclass(frozen=True)
class House:
    """Some models and what keeps them."""

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
    models: int = 1, *, sizes_mib: tuple[int, ...] = (), pinned: tuple[int, ...] = (), **policy: object
) -> AsyncIterator[House]:
    """So many models, unloaded; sizes_mib: 1 each if nothing is said."""
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
    served, clock, observer = Registry(sources).models, Clock(), Recorder()
    rules = Policy(**({"at_start": False} | policy))  # type: ignore[arg-type]
    house = House(Lifecycle(served, rules, make_runner, observer, clock), served, loaders, clock, observer)
    try:
        yield house
    finally:
        for loader in loaders:
            loader.gate.set()
        await house.lifecycle.close()
        assert [one.users for one in served] == [0] * models
        assert [loader.held for loader in loaders] == [0] * models


async def start(house: House) -> None:
    house.lifecycle.start()
    await asyncio.wait_for(house.lifecycle.loaded.wait(), WAIT_S)


# --- first use ------------------------------------------------------------------------------------------------


async def test_a_first_use_loads_once_for_all_who_wait():
    """Those that come before the load begins and while it goes on; each gets the runner."""
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


async def test_one_who_leaves_does_not_end_the_load_for_others():
    """Nor for nobody: the work is done, and the next use finds the model."""
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


async def test_a_load_that_nobody_waits_for_any_more_ends_well():
    """Everybody who asked has left; whether it fails or not, nothing is left over."""
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
    """Both at once would hold both their peaks of memory."""
    async with keeping(2) as house:
        house.loaders[0].gate.clear()
        uses = [asyncio.create_task(house.use(n)) for n in range(2)]
        await house.loaders[0].begun()
        await settle()
        assert house.states() == ["loading", "unloaded"]
        house.loaders[0].gate.set()
        await asyncio.wait_for(asyncio.gather(*uses), WAIT_S)
        assert house.states() == ["ready", "ready"]


async def test_a_request_finds_its_model_whatever_its_state():
    """Through the whole engine: loaded for the first request, answered."""
    backend = FakeBackend()
    engine = Engine([source(backend, "m")], EngineConfig(model_loading="first-use"))
    await engine.start()
    await asyncio.wait_for(engine.loaded.wait(), WAIT_S)
    assert engine.readiness() == {"m": "unloaded"}
    requests = [asyncio.create_task(engine.answer(EmbedRequest(inputs=[f"{n}"]), ANYONE)) for n in range(8)]
    assert [(await request).model for request in requests] == ["m"] * 8
    assert engine.readiness() == {"m": "ready"}
    await engine.close()


# --- failures -------------------------------------------------------------------------------------------------


async def test_a_model_that_failed_to_load_is_tried_again_after_a_while():
    """Not before: each try may take minutes of the whole machine. Waiters of the one that failed are told."""
    async with keeping() as house:
        house.loaders[0].error = ModelUnavailable("no such file")
        uses = await asyncio.gather(*[house.use(0) for _ in range(3)], return_exceptions=True)
        assert [type(error) for error in uses] == [Unavailable] * 3
        house.loaders[0].error = None
        house.clock.now_s += RETRY_FAILED_S - 1
        with pytest.raises(Unavailable, match="could not be loaded"):
            await house.use(0)
        assert house.loaders[0].backends == []
        house.clock.now_s += 1
        await house.use(0)
        assert house.states() == ["ready"]


async def test_the_operator_need_not_wait_to_try_again():
    """Who has put the file there knows better."""
    async with keeping() as house:
        house.loaders[0].error = ModelUnavailable("no such file")
        with pytest.raises(Unavailable):
            await house.lifecycle.load(house.models[0])
        house.loaders[0].error = None
        await house.lifecycle.load(house.models[0])
        assert house.states() == ["ready"]


async def test_a_use_while_a_failed_load_is_cleared_away_is_told_of_it(monkeypatch):
    """Between the failure and the last of its threads the model is neither ready nor to be loaded again."""
    async with keeping(at_start=True) as house:

        def hold(runner: ModelRunner, timeout_s: float) -> bool:
            closing.set()
            assert go_on.wait(WAIT_S)
            return close(runner, timeout_s)

        closing, go_on, close = threading.Event(), threading.Event(), ModelRunner.close
        monkeypatch.setattr(ModelRunner, "close", hold)
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


async def test_a_model_that_fails_leaves_the_others_serving(caplog):
    """At start and later."""
    async with keeping(3, at_start=True) as house:
        house.loaders[1].error = RuntimeError("a bug")
        await start(house)
        assert house.states() == ["ready", "failed", "ready"]
        for n in (0, 2):
            await house.use(n)
    assert "m1 failed to load" in caplog.text


# --- room -----------------------------------------------------------------------------------------------------


async def test_the_longest_unused_makes_room():
    """Not the first loaded; and no more of them than need be."""
    async with keeping(3, budget_bytes=2 * MIB) as house:
        await house.use(0)
        await house.use(1)
        await house.use(0)
        await house.use(2)
        assert house.states() == ["ready", "unloaded", "ready"]
        assert house.loaders[1].held == 0
        await house.use(1)
        assert house.states() == ["unloaded", "ready", "ready"]


async def test_several_small_ones_make_room_for_a_large_one():
    """As many as it takes, the longest unused first."""
    async with keeping(4, sizes_mib=(1, 1, 1, 2), budget_bytes=3 * MIB) as house:
        for n in (0, 1, 2, 3):
            await house.use(n)
        assert house.states() == ["unloaded", "unloaded", "ready", "ready"]


async def test_a_model_in_use_is_never_unloaded_to_make_room():
    """The other one is told so, with a time to come back, and comes in when it has ended."""
    async with keeping(2, budget_bytes=MIB) as house:
        async with house.lifecycle.use(house.models[0]) as runner:
            with pytest.raises(Unavailable, match="no room") as refused:
                await house.use(1)
            assert refused.value.retry_after_s > 1
            assert house.models[0].runner is runner
            assert not house.loaders[0].backends[0].closed
        await house.use(1)
        assert house.states() == ["unloaded", "ready"]


async def test_a_pinned_model_is_never_unloaded_by_itself():
    """Neither to make room nor for being idle; the operator may."""
    async with keeping(2, pinned=(0,), budget_bytes=MIB, idle_s=60.0) as house:
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


async def test_a_model_that_can_never_fit_throws_nobody_out():
    """What it needs is known before anything is unloaded for it."""
    async with keeping(2, sizes_mib=(1, 9), budget_bytes=2 * MIB) as house:
        await house.use(0)
        with pytest.raises(Unavailable, match="no room"):
            await house.use(1)
        assert house.states() == ["ready", "unloaded"]


async def test_one_that_is_being_unloaded_counts_until_it_is_gone(monkeypatch):
    """The next model is not loaded into memory that is not free yet, nor the same model twice."""
    async with keeping(2, budget_bytes=MIB) as house:

        def hold(runner: ModelRunner, timeout_s: float) -> bool:
            closing.set()
            assert go_on.wait(WAIT_S)
            return close(runner, timeout_s)

        closing, go_on, close = threading.Event(), threading.Event(), ModelRunner.close
        await house.use(0)
        monkeypatch.setattr(ModelRunner, "close", hold)
        going = asyncio.create_task(house.lifecycle.unload(house.models[0]))
        assert await asyncio.to_thread(closing.wait, WAIT_S)
        coming = asyncio.create_task(house.use(1))
        await settle()
        assert house.loaders[1].backends == []
        go_on.set()
        await asyncio.wait_for(asyncio.gather(going, coming), WAIT_S)
        assert [loader.held for loader in house.loaders] == [0, 1]


async def test_a_model_that_somebody_waits_for_is_not_taken_from_him():
    """It has just been loaded for him and he has not begun: another load must find its room elsewhere."""
    async with keeping(2, budget_bytes=MIB) as house:
        house.loaders[0].gate.clear()
        uses = [asyncio.create_task(house.use(n)) for n in range(2)]
        await house.loaders[0].begun()
        await settle()
        house.loaders[0].gate.set()
        first, second = await asyncio.wait_for(asyncio.gather(*uses, return_exceptions=True), WAIT_S)
        assert first is None
        assert second is None or isinstance(second, Unavailable)


async def test_many_requests_for_more_models_than_fit_are_each_answered_or_told():
    """Whatever the order in which they come: the budget holds, and nobody gets a runner that was taken away."""
    async with keeping(4, budget_bytes=2 * MIB) as house:

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


async def test_who_asks_at_start_is_told_to_come_back_and_starts_no_second_load():
    """From the moment the server starts: also before the first load has begun."""
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
async def test_only_the_loading_of_the_start_is_called_so(at_start):
    """A model that its first use loads answers whoever asks, after a while: the server does not start for that."""
    loader = Loader()
    loader.gate.clear()
    loading = "start" if at_start else "first-use"
    engine = Engine([replace(source(FakeBackend(), "m"), load=loader)], EngineConfig(model_loading=loading))
    assert engine.models().starting
    await engine.start()
    await settle()
    asked = asyncio.create_task(engine.answer(EmbedRequest(inputs=["a"]), ANYONE))
    await loader.begun()
    shown = engine.models()
    assert ([info.state for info in shown.models], shown.starting) == (["loading"], at_start)
    loader.gate.set()
    await asyncio.wait_for(engine.loaded.wait(), WAIT_S)
    assert not engine.models().starting
    await asyncio.gather(asked, return_exceptions=True)
    await engine.close()


async def test_what_has_no_room_at_start_waits_for_its_first_use(caplog):
    """Earlier models are preferred: a later one that nobody has asked for takes no other's place."""
    async with keeping(3, sizes_mib=(1, 2, 1), at_start=True, budget_bytes=2 * MIB) as house:
        await start(house)
        assert house.states() == ["ready", "unloaded", "ready"]
        await house.use(1)
        assert house.states() == ["unloaded", "ready", "unloaded"]
    assert "no room for the model m1" in caplog.text


async def test_pinned_models_come_first_at_start():
    """They would find no room behind the others."""
    async with keeping(3, pinned=(2,), at_start=True, budget_bytes=2 * MIB) as house:
        await start(house)
        assert house.states() == ["ready", "unloaded", "ready"]
        assert [name for name, state in house.observer.states if state == "ready"] == ["m2", "m0"]


async def test_only_pinned_models_load_at_start_where_the_others_wait_for_their_first_use():
    """`loaded` is set when they are."""
    async with keeping(3, pinned=(1,)) as house:
        await start(house)
        assert house.states() == ["unloaded", "ready", "unloaded"]


# --- unloading ------------------------------------------------------------------------------------------------


async def test_a_model_that_nobody_used_is_unloaded():
    """Counted from the end of its last use, or from when it was loaded; one in use is not idle however long."""
    async with keeping(3, idle_s=60.0) as house:
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


async def test_idle_models_are_looked_for_by_itself():
    """As soon as the server has started."""
    async with keeping(idle_s=0.001) as house:
        await start(house)
        await house.use(0)
        house.clock.now_s += 1
        while house.loaders[0].held:  # its state changes first, then its memory is given back
            await asyncio.sleep(0.001)
        assert house.states() == ["unloaded"]


async def test_a_model_in_use_cannot_be_unloaded():
    """Nor one that loads; and what is not loaded need not be."""
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


async def test_a_model_taken_up_while_its_unloading_waits_its_turn_stays():
    """The operator's wish came first, but a load was going on, and meanwhile somebody came."""
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


async def test_a_backend_that_does_not_close_holds_up_nobody(caplog):
    """It is logged; the model can be loaded again, and others take its place."""
    async with keeping(2, budget_bytes=MIB) as house:
        house.loaders[0].stubborn = True
        for n in (0, 1, 0):
            await house.use(n)
        assert house.states() == ["ready", "unloaded"]
    assert caplog.text.count("closing the backend of m0 failed") == 2


async def test_the_operator_loads_and_unloads_by_name():
    """Through the engine, with the state in the answer."""
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


async def test_a_request_that_left_a_forward_behind_does_not_keep_its_model():
    """Nobody has it in his hands; unloading waits for the forward, and the next use finds a new one."""
    async with keeping() as house:
        async with house.lifecycle.use(house.models[0]) as runner:
            backend = house.loaders[0].backends[0]
            close_gate(backend)
            text = sequence_of("a")
            request = asyncio.create_task(runner.run([text], frozenset({"dense"}), ANYONE))
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


async def test_closing_answers_those_who_wait_for_a_load():
    """Unavailable, not silence, and not a cancellation nobody asked for; the load itself is given up."""
    async with keeping(2) as house:
        house.loaders[0].gate.clear()
        waiters = [asyncio.create_task(house.use(n)) for n in (0, 0, 1)]
        await house.loaders[0].begun()
        await asyncio.wait_for(house.lifecycle.close(), WAIT_S)
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3
        assert house.states() == ["unloaded", "unloaded"]


async def test_after_closing_nothing_loads():
    """A request that was on its way, or the operator's."""
    async with keeping() as house:
        await house.lifecycle.close()
        with pytest.raises(Unavailable, match="shut down"):
            await house.use(0)
        with pytest.raises(Unavailable, match="shut down"):
            await house.lifecycle.load(house.models[0])
        assert house.loaders[0].backends == []


async def test_closing_in_the_middle_of_a_self_test_closes_the_backend(monkeypatch):
    """A model that was almost ready has threads and memory already."""
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
