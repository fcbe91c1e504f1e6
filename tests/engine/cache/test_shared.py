"""Engines that share answers through a store, a store that misbehaves, and the secret that signs the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.clock import Clock
from tests.engine.cache.test_lookup import cache_key
from tests.engine.fakes import (
    CLASSIFIER,
    M3,
    FakeBackend,
    Recorder,
    backend_for,
    close_gate,
    entered,
    expected_row,
    serving,
    settle,
)

from vectord import housekeeping
from vectord.config import EngineConfig
from vectord.engine.cache import shared as shared_cache
from vectord.engine.cache.shared import MAX_SECRET_BYTES, SharedCache, name_of, shared_secret
from vectord.engine.engine import Engine
from vectord.engine.queue.batch import Answer
from vectord.errors import ConfigError
from vectord.schema import ANYONE, AnswerKind, ClassifyRequest, EmbedRequest, EmbedResult

SECRET = b"what replicas know"


class FakeStore:
    """A dict. `fail` is called before each operation and may raise; `gate` blocks reads, `write_gate` writes."""

    def __init__(self) -> None:
        self.values: dict[bytes, object] = {}
        self.reads: list[Sequence[bytes]] = []
        self.writes: list[Mapping[bytes, bytes]] = []
        self.fail: Callable[[str], None] = lambda call: None
        self.gate, self.write_gate = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.write_gate.set()
        self.reading = asyncio.Semaphore(0)
        self.closed = False

    async def open(self) -> None:
        self.fail("open")

    async def read(self, names: Sequence[bytes]) -> Sequence[object]:
        self.reads.append(names)
        self.reading.release()
        self.fail("read")
        await self.gate.wait()
        return [self.values.get(name) for name in names]

    async def write(self, values: Mapping[bytes, bytes]) -> None:
        self.writes.append(values)
        await self.write_gate.wait()
        self.fail("write")
        self.values.update(values)

    async def close(self) -> None:
        self.closed = True
        self.fail("close")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the breakers only."""
    clock = Clock()
    monkeypatch.setattr(housekeeping, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@asynccontextmanager
async def replica(store: FakeStore, **settings: object) -> AsyncIterator[tuple[Engine, FakeBackend, Recorder]]:
    """Another process with an empty cache."""
    backend, observer = FakeBackend(), Recorder()
    async with serving(backend, observer=observer, store=store, **settings) as engine:  # type: ignore[arg-type]
        yield engine, backend, observer


async def ask(engine: Engine, *texts: str) -> None:
    """Checks that every answer belongs to its text."""
    result = await engine.answer(EmbedRequest(inputs=texts, normalize=False), ANYONE)
    assert isinstance(result, EmbedResult)
    np.testing.assert_array_equal(result.dense["float"], [expected_row(text) for text in texts])


async def written(store: FakeStore, texts: int) -> None:
    while len(store.values) < texts:
        await asyncio.sleep(0)


async def test_a_replica_finds_what_another_computed(store: FakeStore) -> None:
    """It keeps the answer in its own memory: the store is read once."""
    async with replica(store) as (engine, _, _):
        await ask(engine, "a", "b")
        await written(store, 2)
    async with replica(store) as (engine, backend, observer):
        await ask(engine, "b", "a")
        await ask(engine, "a", "b")
    assert backend.batches == []
    assert len(store.reads) == 2
    assert observer.lookups == [(0, 2), (2, 0)]
    assert observer.shared_lookups == [(2, 0)]


async def test_answers_from_memory_store_and_model_come_in_order(store: FakeStore) -> None:
    """One round trip reads all misses of the memory; a repeated text is read once."""
    async with replica(store) as (engine, _, _):
        await ask(engine, "shared", "too")
        await written(store, 2)
    async with replica(store) as (engine, backend, observer):
        await ask(engine, "memory")
        store.reads.clear()
        await ask(engine, "new", "shared", "memory", "new", "too", "newer")
    assert sorted(backend.texts_run()) == ["memory", "new", "newer"]
    assert [len(names) for names in store.reads] == [4]
    assert observer.shared_lookups == [(0, 1), (2, 3)]


async def test_many_texts_take_several_round_trips(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other."""
    monkeypatch.setattr("vectord.engine.cache.lookup.TEXTS_PER_LOOKUP", 3)
    texts = [f"t{n}" for n in range(10)]
    async with replica(store) as (engine, _, _):
        await ask(engine, *texts)
        await written(store, 10)
    async with replica(store) as (engine, backend, _):
        await ask(engine, *texts)
    assert [len(names) for names in store.reads] == [3, 3, 3, 1] * 2
    assert backend.batches == []


async def test_dense_sparse_and_scores_are_shared(store: FakeStore) -> None:
    """Vectors per token are not."""
    both = EmbedRequest(inputs=["abc", "z"], outputs=frozenset({"dense", "sparse"}))
    tokens = EmbedRequest(inputs=["abc"], outputs=frozenset({"colbert"}))
    labels = ClassifyRequest(inputs=["abc"])
    results = []
    for _ in range(2):
        backends = [backend_for(M3), backend_for(CLASSIFIER)]
        async with serving(*backends, models=[M3, CLASSIFIER], store=store) as engine:
            results.append([await engine.answer(request, ANYONE) for request in (both, labels)])
            await engine.answer(tokens, ANYONE)
            await written(store, 3)
        assert len(store.values) == 3
    assert [len(backend.batches) for backend in backends] == [1, 0]  # the vectors per token
    (first, first_labels), (second, second_labels) = results
    np.testing.assert_array_equal(first.dense["float"], second.dense["float"])
    for one, other in zip(first.sparse, second.sparse, strict=True):
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.values, other.values)
    np.testing.assert_array_equal(first_labels.scores, second_labels.scores)


async def test_the_store_works_without_a_cache_in_memory(store: FakeStore) -> None:
    """cache_bytes=0 concerns the cache in memory only."""
    async with replica(store, cache_bytes=0) as (engine, backend, _):
        await ask(engine, "a")
        await written(store, 1)
        await ask(engine, "a")
    assert backend.texts_run() == ["a"]


@pytest.mark.parametrize("broken", ["no bytes", "other bytes", "too many", "too few", "text", "None"])
async def test_an_invalid_value_is_a_miss(store: FakeStore, broken: str) -> None:
    """The model runs, and its answer replaces the value."""
    async with replica(store) as (engine, _, _):
        await ask(engine, "a")
        await written(store, 1)
    (name, value), *_ = store.values.items()
    assert isinstance(value, bytes)
    store.values[name] = {
        "no bytes": b"",
        "other bytes": value[:-1] + b"?",
        "too many": bytes(shared_cache.MAX_VALUE_BYTES + 1),
        "too few": value[:-4],
        "text": "text",
        "None": None,
    }[broken]
    async with replica(store) as (engine, backend, observer):
        await ask(engine, "a")
        while store.values[name] != value:
            await asyncio.sleep(0)
    assert backend.texts_run() == ["a"]
    assert observer.shared_lookups == [(0, 1)]


async def test_a_failing_store_is_a_miss_and_retried(
    store: FakeStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests succeed; the log has one line for the failure and one for the recovery."""
    fails = True

    def fail(call: str) -> None:
        if fails:
            raise ConnectionError("redis://secret")

    store.fail = fail
    async with replica(store) as (engine, backend, _):
        for text in "abc":
            await ask(engine, text)
        assert len(store.reads) == 0  # it failed when it was opened
        clock.now_s += housekeeping.RETRY_S
        await ask(engine, "d")
        await ask(engine, "e")
        assert len(store.reads) == 1
        fails = False
        clock.now_s += housekeeping.RETRY_S
        await ask(engine, "f")
        await written(store, 1)
    assert backend.texts_run() == list("abcdef")
    logged = [record.getMessage() for record in caplog.records if record.name == "vectord.cache"]
    assert sorted(logged) == [
        "reading the shared cache fails (ConnectionError): going on without it",
        "reading the shared cache works again",
        "writing to the shared cache fails (ConnectionError): going on without it",
        "writing to the shared cache works again",
    ]


async def test_a_hung_store_delays_one_request(store: FakeStore, clock: Clock) -> None:
    """By LOOKUP_TIMEOUT_S; later requests do not wait."""
    store.gate.clear()
    async with replica(store) as (engine, _, _):
        for text in "abc":
            await ask(engine, text)
    assert len(store.reads) == 1


async def test_a_request_cancelled_during_a_look_up_does_not_run(store: FakeStore, clock: Clock) -> None:
    """The store does not count as failing."""
    store.gate.clear()
    async with replica(store) as (engine, backend, _):
        leaver = asyncio.create_task(ask(engine, "left"))
        await store.reading.acquire()
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        store.gate.set()
        await ask(engine, "next")
        assert engine.gauges().under_way == 0
    assert len(store.reads) == 2
    assert backend.texts_run() == ["next"]


async def test_two_requests_that_miss_share_one_run(store: FakeStore) -> None:
    """A text that is already running is not looked up."""
    async with replica(store) as (engine, backend, _):
        store.gate.clear()
        both = [asyncio.create_task(ask(engine, "same")) for _ in range(2)]
        for _ in both:
            await store.reading.acquire()
        close_gate(backend)
        store.gate.set()
        await entered(backend)
        third = asyncio.create_task(ask(engine, "same"))
        await settle()
        backend.gate.set()
        await asyncio.gather(*both, third)
    assert backend.texts_run() == ["same"]
    assert len(store.reads) == 2


async def test_a_text_answered_during_a_look_up_does_not_run_again(store: FakeStore) -> None:
    """Another request computed it meanwhile."""
    store.write_gate.clear()
    async with replica(store) as (engine, backend, _):
        store.gate.clear()
        slow = asyncio.create_task(ask(engine, "same", "other"))
        await store.reading.acquire()
        read = store.read
        store.read = lambda names: asyncio.sleep(0, [None] * len(names))  # type: ignore[method-assign, assignment]
        await ask(engine, "same")
        store.read = read  # type: ignore[method-assign]
        store.gate.set()
        await slow
    assert sorted(backend.texts_run()) == ["other", "same"]


async def test_requests_do_not_wait_for_writes(store: FakeStore) -> None:
    """Nor does closing the engine."""
    store.write_gate.clear()
    async with replica(store) as (engine, _, _):
        await ask(engine, "a")
        await ask(engine, "b")
    assert store.closed
    assert store.values == {}


def dense(value: float) -> Answer:
    return {"dense": np.full((1, 256), value, np.float32)}  # 1 KiB


async def test_answers_being_written_free_their_room(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only queued answers count."""
    monkeypatch.setattr(shared_cache, "MAX_WAITING_BYTES", 10 * 1024)
    monkeypatch.setattr(shared_cache, "TEXTS_PER_WRITE", 4)
    store.write_gate.clear()
    cache = SharedCache(store)
    for n in range(20):
        if n == 10:
            await settle()  # the first four are being written
        cache.keep(b"%d" % n, dense(n))
    store.write_gate.set()
    await written(store, 14)
    await settle()
    assert store.values.keys() == {b"%d" % n for n in range(14)}
    assert [len(values) for values in store.writes] == [4, 4, 4, 2]
    await cache.close()


async def test_a_large_answer_is_not_shared(store: FakeStore) -> None:
    """The next, smaller one is."""
    cache = SharedCache(store)
    cache.keep(b"large", {"dense": np.zeros((1, shared_cache.MAX_ANSWER_BYTES // 4 + 1), np.float32)})
    cache.keep(b"largest", {"dense": np.ones((1, shared_cache.MAX_ANSWER_BYTES // 4), np.float32)})
    await written(store, 1)
    found = await cache.find(
        {b"largest": {"dense": (1, shared_cache.MAX_ANSWER_BYTES // 4)}, b"large": {"dense": (1, 1)}}
    )
    assert found.answers.keys() == {b"largest"}
    await cache.close()


async def test_values_signed_with_another_secret_are_rejected(store: FakeStore) -> None:
    """A valid value from a replica without the secret is a miss and is counted; one from a replica with it is a hit."""
    async with replica(store) as (stranger, _, _):
        await ask(stranger, "a", "b")
        await written(store, 2)
    forged = dict(store.values)
    async with replica(store, store_secret=SECRET) as (engine, backend, observer):
        await ask(engine, "a", "b")
        assert sorted(backend.texts_run()) == ["a", "b"]
        assert (observer.shared_rejected, observer.shared_lookups) == (2, [(0, 2)])
        while any(store.values[name] == value for name, value in forged.items()):
            await asyncio.sleep(0)
    async with replica(store, store_secret=SECRET) as (engine, backend, observer):
        await ask(engine, "a", "b")
        assert (backend.batches, observer.shared_rejected) == ([], 0)


async def test_concurrent_look_ups_are_bounded(store: FakeStore, clock: Clock) -> None:
    """Further requests count as misses, and the store does not count as failing."""
    cache = SharedCache(store)
    cache.keep(b"a", dense(1))
    await written(store, 1)
    store.gate.clear()
    names = {b"a": {"dense": (1, 256)}}
    busy = [asyncio.create_task(cache.find(names)) for _ in range(shared_cache.MAX_LOOKUPS)]
    await settle()
    assert not (await cache.find(names)).answers
    store.gate.set()
    assert all(found.answers for found in await asyncio.gather(*busy))
    assert (await cache.find(names)).answers
    await cache.close()


def test_a_name_depends_on_everything_that_determines_an_answer() -> None:
    """On each part of the key and on the dtype. It contains no token."""
    ids, kinds = np.array([1, 2, 3], np.int32), frozenset[AnswerKind]({"dense"})
    keys = [
        cache_key("model", ids),
        cache_key("other", ids),
        cache_key("model", ids[:2]),
        cache_key("model", ids, keys=1),
    ]
    keys += [cache_key("model", ids, type_ids=ids), cache_key("model", ids, kinds | {"sparse"})]
    keys += [cache_key("model", ids, kinds, part) for part in (b"a key's part", b"another's")]
    names = {name_of(keys[0], "bfloat16"), *(name_of(key, "float32") for key in keys)}
    assert len(names) == len(keys) + 1
    assert {len(name) for name in names} == {len(b"vectord:answer:1:model:") + 64}
    assert ids.tobytes() not in b"".join(names)


WRITTEN_SECRET = "sixteen letters!"


def file_of(path: Path, content: bytes, mode: int = 0o640) -> EngineConfig:
    path.write_bytes(content)
    path.chmod(mode)
    return EngineConfig(shared_cache_secret_file=str(path))


def test_the_secret_comes_from_the_setting_or_a_file(tmp_path: Path) -> None:
    """A line break at the end of the file does not count. Without a secret nothing is signed."""
    assert shared_secret(EngineConfig(shared_cache_secret=WRITTEN_SECRET)) == WRITTEN_SECRET.encode()
    assert shared_secret(file_of(tmp_path / "secret", f"{WRITTEN_SECRET}\n".encode())) == WRITTEN_SECRET.encode()
    assert shared_secret(EngineConfig()) == b""


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"short", 0o600, "must hold 16 to 4096 bytes"),
        (b"x" * (MAX_SECRET_BYTES + 1), 0o600, "must hold 16 to 4096 bytes"),
        (WRITTEN_SECRET.encode(), 0o666, "is writable by others"),
    ],
    ids=["short", "long", "writable by others"],
)
def test_an_invalid_secret_file_stops_the_start(tmp_path: Path, content: bytes, mode: int, why: str) -> None:
    """The error names the file and does not show its content."""
    with pytest.raises(ConfigError, match=why) as refused:
        shared_secret(file_of(tmp_path / "secret", content, mode))
    assert content.decode() not in str(refused.value)


def test_a_missing_secret_file_stops_the_start(tmp_path: Path) -> None:
    """So does setting both options."""
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        shared_secret(EngineConfig(shared_cache_secret_file=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="set one of them"):
        shared_secret(EngineConfig(shared_cache_secret=WRITTEN_SECRET, shared_cache_secret_file="x"))
