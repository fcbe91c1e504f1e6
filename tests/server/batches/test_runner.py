"""Batches over a fake engine: what they send to it, and every way in which they end."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.keys import entry, keys_file
from tests.refusals import refuses
from tests.server.fakes import FakeEngine

from vectord.config import ServerConfig
from vectord.errors import (
    ConfigError,
    InferenceFailed,
    InvalidField,
    InvalidRequest,
    ModelFailed,
    NoSuchRoute,
    Overloaded,
    PayloadTooLarge,
    Unavailable,
)
from vectord.products.common.batches import (
    CreateBatch,
    ItemRequest,
    ListBatches,
    ListFiles,
    StoredBatch,
    StoredContent,
    StoredFile,
    StoreFile,
)
from vectord.products.common.dialect import Guards, load_dialects
from vectord.products.common.errors import render_any
from vectord.schema import Caller
from vectord.server.admission.gate import Gate
from vectord.server.batches import runner as runner_module
from vectord.server.batches import store as store_module
from vectord.server.batches.runner import CONCURRENT_LINES, BatchRunner
from vectord.server.batches.store import BatchStore
from vectord.server.http.routing import Choice, Endpoint, Table
from vectord.server.pipeline import RequestPipeline, Shutdown

ENDPOINT = "/v1/embeddings"
HOUR_S = 3600
ANYONE = Caller(client="192.0.2.1")
ANN = Caller(client="ann", named=True)
ALL_FILES = ListFiles(purpose=None, newest_first=False, after=None, limit=100)


def lines(count: int) -> bytes:
    rows = ({"custom_id": f"r{i}", "method": "POST", "url": ENDPOINT, "body": {"input": "a"}} for i in range(count))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@asynccontextmanager
async def running(
    folder: Path, engine: FakeEngine | None = None, gate: Gate | None = None, limit_bytes: int = 2**20
) -> AsyncIterator[BatchRunner]:
    table = Table(load_dialects(("openai",)), (), render_any)
    store = BatchStore(str(folder), limit_bytes, HOUR_S)
    pipeline = RequestPipeline(gate or Gate(ServerConfig()), Shutdown())
    runner = BatchRunner(store, engine or FakeEngine(), table, pipeline, Guards())
    async with asyncio.timeout(20), runner.running():
        yield runner


async def create(runner: BatchRunner, content: bytes, caller: Caller = ANYONE, window_s: int = HOUR_S) -> str:
    file = await runner.answer(StoreFile(name="in", content=content), caller)
    assert isinstance(file, StoredFile)
    request = CreateBatch(input_file_id=file.id, endpoint=ENDPOINT, window_s=window_s)
    batch = await runner.answer(request, caller)
    assert isinstance(batch, StoredBatch)
    return batch.id


async def shown(runner: BatchRunner, id: str, caller: Caller = ANYONE) -> StoredBatch:
    batch = await runner.answer(ItemRequest("show batch", id), caller)
    assert isinstance(batch, StoredBatch)
    return batch


async def ended(runner: BatchRunner, id: str, caller: Caller = ANYONE) -> StoredBatch:
    while not (batch := await shown(runner, id, caller)).ended:
        await asyncio.sleep(0.005)
    return batch


async def rows(runner: BatchRunner, file_id: str | None, caller: Caller = ANYONE) -> list[Any]:
    if file_id is None:
        return []
    opened = await runner.answer(ItemRequest("open file", file_id), caller)
    assert isinstance(opened, StoredContent)
    return [json.loads(line) for line in opened.read(0, opened.n_bytes).splitlines()]


def codes(errors: Sequence[Any]) -> set[str | None]:
    return {row["error"] and row["error"]["code"] for row in errors}


async def test_lines_run_in_the_bulk_lane_a_few_at_a_time(tmp_path):
    """So that interactive requests come first, and a batch holds few places of the server."""
    engine = FakeEngine(held=True)
    async with running(tmp_path, engine) as runner:
        id = await create(runner, lines(30))
        for _ in range(CONCURRENT_LINES):
            await engine.entered.acquire()
        assert engine.running == CONCURRENT_LINES
        engine.gate.set()
        assert (await ended(runner, id)).status == "completed"
    assert {(caller.lane, caller.client, caller.named) for caller in engine.callers} == {
        ("bulk", "batches/shared", False)
    }


async def test_a_cancelled_batch_keeps_its_results(tmp_path):
    """Unanswered lines are in the error file, and requests in progress are cancelled."""
    engine = FakeEngine()
    async with running(tmp_path, engine) as runner:
        first = await create(runner, lines(3))
        await ended(runner, first)
        engine.gate.clear()
        id = await create(runner, lines(20))
        await engine.entered.acquire()
        while engine.running == 0:
            await asyncio.sleep(0)
        cancelling = await runner.answer(ItemRequest("cancel batch", id), ANYONE)
        assert isinstance(cancelling, StoredBatch)
        batch = await ended(runner, id)
        assert (batch.status, batch.request_counts.failed) == ("cancelled", 20)
        errors = await rows(runner, batch.error_file_id)
        assert [row["custom_id"] for row in errors] == [f"r{index}" for index in range(20)]
        assert codes(errors) == {"batch_cancelled"}
        assert engine.running == 0


async def test_lines_expire_at_the_end_of_the_window(tmp_path):
    engine = FakeEngine(held=True)
    async with running(tmp_path, engine) as runner:
        batch = await ended(runner, await create(runner, lines(3), window_s=0))
        assert batch.status == "expired"
        assert codes(await rows(runner, batch.error_file_id)) == {"batch_expired"}


@pytest.mark.parametrize(
    ("failure", "status"), [(InferenceFailed("failed"), 500), (ModelFailed("m could not be loaded: why"), 503)], ids=str
)
async def test_a_busy_server_delays_a_line_and_a_failure_is_its_result(tmp_path, failure, status):
    """Overloaded is retried; an error of the model is not, nor a model that could not be loaded: other lines go on."""
    engine = FakeEngine()
    engine.error = Overloaded("busy", retry_after_s=0.01)
    async with running(tmp_path, engine) as runner:
        id = await create(runner, lines(1))
        while len(engine.callers) < 3:
            await asyncio.sleep(0.005)
        assert not (await shown(runner, id)).ended
        engine.error = failure
        batch = await ended(runner, id)
        assert (batch.status, batch.request_counts.failed) == ("completed", 1)
        (row,) = await rows(runner, batch.error_file_id)
        assert row["response"]["status_code"] == status
        assert failure.message in json.dumps(row)


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
async def test_a_restart_continues_after_the_last_part(tmp_path, monkeypatch, killed):
    """A stopped server keeps every result, a killed one those of finished parts. No other line is sent again."""
    monkeypatch.setattr(store_module, "PART_LINES", 4)
    engine = FakeEngine()
    async with running(tmp_path, engine) as runner:
        id = await create(runner, lines(40))
        while (await shown(runner, id)).request_counts.completed < 6:
            await asyncio.sleep(0)
        engine.gate.clear()
    (results,) = tmp_path.glob("*/*.results")
    parts = sorted(results.iterdir())
    if killed:
        parts.pop().rename(results / "_tmp-cut-off")
    answered = sum(part.read_bytes().count(b"\n") for part in parts)
    assert (4 if killed else 6) <= answered < 40
    second = FakeEngine()
    async with running(tmp_path, second) as runner:
        batch = await ended(runner, id)
        assert batch.request_counts.completed == 40
        names = [row["custom_id"] for row in await rows(runner, batch.output_file_id)]
    assert names == [f"r{index}" for index in range(40)]
    assert len(second.callers) == 40 - answered
    assert not results.exists()


async def test_finishing_can_be_repeated(tmp_path, monkeypatch):
    """A crash between the output file and the record of the batch leaves one output file."""
    real = BatchStore.save

    def crash(self: BatchStore, shelf: Any, batch: StoredBatch) -> None:
        if batch.ended:
            raise OSError("crash")
        real(self, shelf, batch)

    monkeypatch.setattr(BatchStore, "save", crash)
    async with running(tmp_path) as runner:
        id = await create(runner, lines(3))
        while not list(tmp_path.glob("*/*_output*")) and len(list(tmp_path.glob("*/file-*.json"))) < 2:
            await asyncio.sleep(0.005)
    monkeypatch.undo()
    async with running(tmp_path) as runner:
        batch = await ended(runner, id)
        assert [row["custom_id"] for row in await rows(runner, batch.output_file_id)] == ["r0", "r1", "r2"]
    assert len(list(tmp_path.glob("*/file-*.json"))) == 2


async def test_a_line_is_counted_before_it_is_decoded(tmp_path, monkeypatch):
    """And selects its product in a thread: one line of 30 MB with two million keys stopped the event loop for 3 s."""
    steps, real = [], Endpoint.choose

    def choose(endpoint: Endpoint, body: bytes, max_inputs: int | None) -> Choice:
        chosen = real(endpoint, body, max_inputs)
        steps.append(("choose", threading.get_ident()))
        return chosen

    def check(body: bytes, max_inputs: int | None) -> None:
        steps.append(("check", threading.get_ident()))
        if b"b" in body:
            raise PayloadTooLarge("Too many values.")

    monkeypatch.setattr(Endpoint, "choose", choose)
    monkeypatch.setattr("vectord.server.http.routing.check_shape", check)
    monkeypatch.setattr("vectord.server.pipeline.ON_LOOP_BYTES", 0)
    async with running(tmp_path) as runner:
        for text, status in (("a", "completed"), ("b", "failed")):
            steps.clear()
            batch = await ended(runner, await create(runner, lines(1).replace(b'"a"', b'"%b"' % text.encode())))
            assert getattr(batch.request_counts, status) == 1
            assert [name for name, _ in steps] == ["check", "choose"][: 2 if text == "a" else 1]
            assert threading.get_ident() not in [thread for _, thread in steps]


async def test_results_beyond_the_disk_limit_fail_the_batch(tmp_path):
    """The results so far are delivered; a new file is refused."""
    content = lines(100)
    async with running(tmp_path, limit_bytes=len(content) + 4000) as runner:
        batch = await ended(runner, await create(runner, content))
        assert batch.status == "failed"
        assert [fault.code for fault in batch.errors] == ["storage_full"]
        good, bad = await rows(runner, batch.output_file_id), await rows(runner, batch.error_file_id)
        assert 0 < len(good) < 100
        assert [row["custom_id"] for row in good + bad] == [f"r{index}" for index in range(100)]
        with pytest.raises(PayloadTooLarge):
            await create(runner, content)


async def test_no_key_takes_the_whole_disk_limit(tmp_path):
    """A named key may use half of what the others leave, before and after a restart; deleting a file makes room."""
    content = bytes(100)
    async with running(tmp_path, limit_bytes=1000) as runner:
        counts = [await fill(runner, Caller(client=name, named=True), content) for name in ("ann", "bob")]
        assert counts == [5, 2]  # of 1,000 bytes, and of the other 500
    async with running(tmp_path, limit_bytes=1000) as runner:
        assert await fill(runner, ANN, content) == 0
        carl = Caller(client="carl", named=True)
        assert await fill(runner, carl, content) == 1
        listed = await runner.answer(ALL_FILES, carl)
        await runner.answer(ItemRequest("delete file", listed.items[0].id), carl)
        assert await fill(runner, carl, content) == 1


async def fill(runner, caller, content):
    """How many files the client can store."""
    count = 0
    with pytest.raises(PayloadTooLarge, match="batch-disk-limit"):
        while count < 100:
            await runner.answer(StoreFile(name="in", content=content), caller)
            count += 1
    return count


@pytest.mark.parametrize("failing", [".part", ".json.part"])
async def test_a_file_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path, monkeypatch, failing):
    """Neither its content nor its record."""

    def full(file):
        if Path(f"/proc/self/fd/{file}").readlink().name.endswith(failing):
            raise OSError(errno.ENOSPC, "No space left on device")

    async with running(tmp_path) as runner:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(Unavailable, match="no space"):
            await runner.answer(StoreFile(name="in", content=b"content"), ANN)
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["LOCK"]
        assert (await runner.answer(ALL_FILES, ANN)).items == []


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("parts", [2, 4], ids=["results", "output"])
async def test_a_batch_on_a_full_disk_fails_and_can_be_continued(tmp_path, monkeypatch, restarted, parts):
    """It stayed in "finalizing", could not be cancelled, and took every byte that was freed. A new batch of the same
    input computes no line of a finished part again, also if the disk had no space for the record either."""
    monkeypatch.setattr(store_module, "PART_LINES", 5)
    full = False

    def fsync(file):
        path = Path(f"/proc/self/fd/{file}").readlink()
        fits = path.is_dir() or (path.name.startswith("_tmp-") and len(list(tmp_path.glob("*/*/part-*"))) < parts)
        if full and not fits:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    engine = FakeEngine(held=True)
    async with running(tmp_path, engine) as runner:
        id = await create(runner, lines(20))
        await engine.entered.acquire()
        full = True
        engine.gate.set()
        batch = await ended(runner, id)
        assert (batch.status, batch.output_file_id) == ("failed", None)
        assert [fault.code for fault in batch.errors] == ["storage_full"]
        request = CreateBatch(input_file_id=batch.input_file_id, endpoint=ENDPOINT, window_s=HOUR_S)
        with pytest.raises(Unavailable, match="no space"):  # after the store has ended its work on the failed batch
            await runner.answer(request, ANYONE)
        assert not [path for path in tmp_path.rglob("*") if path.suffix == ".part" or path.name.startswith("_tmp-")]
        full = False
        before = len(engine.callers)
        if not restarted:
            again = await runner.answer(request, ANYONE)
            assert isinstance(again, StoredBatch)
            id = again.id
            assert (await ended(runner, id)).status == "completed"
    async with running(tmp_path, engine) as runner:
        batch = await ended(runner, id)
        assert len(await rows(runner, batch.output_file_id)) == 20
        assert len(engine.callers) - before == 20 - 5 * parts
        await runner.answer(ItemRequest("delete file", batch.input_file_id), ANYONE)
    assert not list(tmp_path.glob("*/*.results"))


async def test_a_waiting_batch_keeps_no_other_out(tmp_path):
    """Four batches whose owners' quotas were used up had stopped those of all others."""
    names = ["ann", "bob", "carl", "dan", "eve", "free"]
    file = keys_file(tmp_path, entry("free"), *(entry(name, requests_per_minute=1) for name in names[:-1]))
    async with running(tmp_path / "d", FakeEngine(), Gate(ServerConfig(api_keys_file=file))) as runner:
        ids = {name: await create(runner, lines(20), Caller(client=name, named=True)) for name in names}
        free = Caller(client="free", named=True)
        assert (await ended(runner, ids["free"], free)).status == "completed"
        assert not (await shown(runner, ids["ann"], ANN)).ended


async def test_files_and_batches_of_one_second_keep_their_order(tmp_path, monkeypatch):
    """After a restart, too: batches ran in random order."""
    monkeypatch.setattr(time, "time", lambda: 1e9)
    engine = FakeEngine(held=True)
    async with running(tmp_path, engine) as runner:
        ids = [await create(runner, lines(1)) for _ in range(8)]
        files = [file.id for file in (await runner.answer(ALL_FILES, ANYONE)).items]
    async with running(tmp_path, engine) as runner:
        listed = await runner.answer(ListBatches(after=None, limit=100), ANYONE)
        assert [batch.id for batch in listed.items] == ids[::-1]
        assert [file.id for file in (await runner.answer(ALL_FILES, ANYONE)).items] == files


@pytest.mark.parametrize("request_of", [partial(replace, ALL_FILES), partial(ListBatches, limit=100)])
async def test_a_page_after_an_unknown_item_is_refused(tmp_path, request_of):
    """It may have been deleted since the last page: a client that pages would begin again, without end."""
    async with running(tmp_path, FakeEngine()) as runner:
        with refuses(InvalidField, field="after"):
            await runner.answer(request_of(after="file-1"), ANYONE)


async def test_other_folders_are_left_alone(tmp_path):
    """The root of a file system has lost+found."""
    (tmp_path / "lost+found").mkdir(mode=0)
    async with running(tmp_path) as runner:
        assert (await ended(runner, await create(runner, lines(1)))).status == "completed"
    assert (tmp_path / "lost+found").is_dir()


async def test_a_batch_of_a_removed_key_fails(tmp_path):
    """Its key is looked up for each line, so that it has the key's present rights."""
    engine, file = FakeEngine(), keys_file(tmp_path, entry("bob"))
    async with running(tmp_path / "d", engine, Gate(ServerConfig(api_keys_file=file))) as runner:
        batch = await ended(runner, await create(runner, lines(2), ANN), ANN)
        assert [fault.code for fault in batch.errors] == ["invalid_api_key"]
        with pytest.raises(NoSuchRoute):
            await shown(runner, batch.id)
    assert engine.callers == []


async def test_a_batch_has_the_models_and_the_quota_of_its_key(tmp_path):
    """The key's models apply to each line, and its tokens are spent."""
    file = keys_file(tmp_path, entry("ann", models='["only"]', tokens_per_minute=1_000_000))
    engine, gate, spent = FakeEngine(), Gate(ServerConfig(api_keys_file=file)), []
    real = gate.limits.spend

    async def spend(key: Any, result: Any) -> None:
        spent.append(key.name)
        await real(key, result)

    gate.limits.spend = spend  # type: ignore[method-assign]
    async with running(tmp_path / "d", engine, gate) as runner:
        assert (await ended(runner, await create(runner, lines(2), ANN), ANN)).status == "completed"
    assert {(caller.client, caller.models) for caller in engine.callers} == {("ann", frozenset({"only"}))}
    assert spent == ["ann", "ann"]


async def test_files_and_batches_are_deleted_by_age(tmp_path, monkeypatch):
    """After the retention, also on the disk."""
    async with running(tmp_path) as runner:
        await ended(runner, await create(runner, lines(2)))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3 * HOUR_S)
    async with running(tmp_path):
        pass
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["LOCK"]


async def test_counts_are_limited(tmp_path, monkeypatch):
    """Files, unfinished batches and records of each client."""
    monkeypatch.setattr(store_module, "MAX_FILES", 2)
    engine = FakeEngine(held=True)
    async with running(tmp_path, engine) as runner:
        monkeypatch.setattr(store_module, "MAX_ACTIVE", 1)
        id = await create(runner, lines(2))
        with pytest.raises(InvalidRequest, match="1 unfinished"):
            await create(runner, lines(2))
        with pytest.raises(InvalidRequest, match="2 files"):
            await create(runner, lines(2))
        engine.gate.set()
        monkeypatch.setattr(store_module, "MAX_BATCHES", 1)
        input_file_id = (await ended(runner, id)).input_file_id
        with pytest.raises(InvalidRequest, match="1 batches"):
            await runner.answer(CreateBatch(input_file_id=input_file_id, endpoint=ENDPOINT, window_s=1), ANYONE)


async def test_the_lines_of_a_batch_are_limited(tmp_path, monkeypatch):
    """And its requests. Empty lines count as lines, because they take as long to read."""
    monkeypatch.setattr(runner_module, "MAX_REQUESTS", 3)
    for module in (runner_module, store_module):
        monkeypatch.setattr(module, "MAX_LINES", 5)
    async with running(tmp_path) as runner:
        assert (await ended(runner, await create(runner, lines(3) + b"\n\n"))).status == "completed"
        for content in (lines(4), lines(3) + b"\n\n\n"):
            batch = await ended(runner, await create(runner, content))
            assert [fault.code for fault in batch.errors] == ["too_many_requests"]


async def test_the_input_of_an_unfinished_batch_stays(tmp_path):
    """Deleting it is refused, and an id that is a path is unknown."""
    engine = FakeEngine(held=True)
    async with running(tmp_path, engine) as runner:
        id = await create(runner, lines(2))
        with pytest.raises(InvalidRequest, match="unfinished"):
            await runner.answer(ItemRequest("delete file", (await shown(runner, id)).input_file_id), ANYONE)
        for path in ("../LOCK", "file-" + "0" * 32, "", "file-" + "é" * 32):
            with pytest.raises(NoSuchRoute):
                await runner.answer(ItemRequest("show file", path), ANYONE)
        engine.gate.set()


def test_a_folder_has_one_server(tmp_path):
    """A second one does not start, nor one whose folder has a damaged record."""
    first = BatchStore(str(tmp_path), 2**20, HOUR_S)
    with pytest.raises(ConfigError, match="another server"):
        BatchStore(str(tmp_path), 2**20, HOUR_S)
    first.close()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "batch_1.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        BatchStore(str(tmp_path), 2**20, HOUR_S)


def test_files_are_private(tmp_path):
    """Other users of the machine cannot read them."""
    store = BatchStore(str(tmp_path / "d"), 2**20, HOUR_S)
    store.add_file(store.shelf("ann"), StoreFile(name="in", content=b"secret"))
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "d").rglob("*") if path.is_dir()} == {0}
    assert (tmp_path / "d").stat().st_mode & 0o077 == 0
    store.close()
