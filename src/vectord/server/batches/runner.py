"""Answers the routes of files and batches, and runs the batches of each owner in their order.

    input file ── line ──▶ routing.Table ── parse ──▶ engine.answer (bulk lane) ── render ──▶ results ──▶ output, errors

A line takes the path of an HTTP request: the same product, limits of its key, and errors. Results are written in parts;
after a restart a batch continues after its last part.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import ParamSpec, TypeVar

from msgspec.structs import replace

from vectord.engine.client import EngineClient
from vectord.errors import (
    UNFORESEEN,
    InvalidField,
    InvalidRequest,
    ModelFailed,
    Overloaded,
    Unauthorized,
    Unavailable,
    VectordError,
)
from vectord.observability.logs import log_failure
from vectord.products.common.batches import (
    MAX_LINES,
    MAX_LISTED_FAULTS,
    MAX_REQUESTS,
    BatchRequest,
    BatchResult,
    CreateBatch,
    DeletedFile,
    Fault,
    ItemRequest,
    ListBatches,
    ListedItems,
    ListFiles,
    StoredBatch,
    StoreFile,
    fault_of,
    read_request_line,
    result_line,
)
from vectord.products.common.dialect import Call, Guards, Incoming, Rendered
from vectord.products.common.vectors import render_row_by_row
from vectord.schema import Caller, EmbedRequest, Request, Result
from vectord.server.admission.gate import REQUEST_ID
from vectord.server.admission.keys import Key
from vectord.server.batches.store import BatchStore, DiskFull, ResultWriter, Shelf, full_disk_detected, request_id
from vectord.server.http.incoming import LazyModelList
from vectord.server.http.routing import Table
from vectord.server.pipeline import RequestPipeline

CONCURRENT_LINES = 8  # of one batch; each owner runs one batch at a time
RUNNING_LINES = 32  # of all batches
MAX_RETRY_S = 30.0
SWEEP_S = 600.0

log = logging.getLogger("vectord.batches")

P = ParamSpec("P")
T = TypeVar("T")


class BatchRunner:
    def __init__(
        self, store: BatchStore, engine: EngineClient, table: Table, pipeline: RequestPipeline, guards: Guards
    ) -> None:
        self._store = store
        self._engine = engine
        self._table = table
        self._pipeline = pipeline
        self._guards = guards
        self._storing = asyncio.Lock()  # one call of the store at a time
        self._places = asyncio.Semaphore(RUNNING_LINES)
        self._workers: dict[str, asyncio.Task[None]] = {}  # by owner
        self._windows: dict[str, asyncio.Timeout] = {}  # of running batches

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Continues unfinished batches. At the end their lines in progress are cancelled; the next start has them."""
        for shelf in self._store.shelves():
            self._wake(shelf)
        sweeper = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            tasks = [sweeper, *self._workers.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            async with self._storing:
                self._store.close()

    async def answer(self, request: Request | BatchRequest, caller: Caller) -> Result | BatchResult:
        """Each key with a name of its own has its own files and batches; all other clients share theirs. The engine
        answers other requests."""
        if not isinstance(request, BatchRequest):
            return await self._engine.answer(request, caller)
        try:
            return await self._answered(request, caller)
        except DiskFull:
            raise Unavailable("There is no space for the stored files; delete some, or try again later.") from None

    async def _answered(self, request: BatchRequest, caller: Caller) -> BatchResult:
        store, shelf = self._store, self._store.shelf(caller.client if caller.named else "")
        match request:
            case StoreFile():
                return await self._stored(store.add_file, shelf, request)
            case ListFiles():
                files = [file for file in list(shelf.files.values()) if request.purpose in (None, file.purpose)]
                return ListedItems(*_page(files, request.newest_first, request.after, request.limit))
            case ItemRequest(action="show file"):
                return store.file(shelf, request.id)
            case ItemRequest(action="open file"):
                return store.content(shelf, request.id)
            case ItemRequest(action="delete file"):
                await self._stored(store.delete_file, shelf, request.id)
                return DeletedFile(request.id)
            case CreateBatch():
                batch = await self._stored(store.add_batch, shelf, request)
                self._wake(shelf)
                return batch
            case ListBatches():
                return ListedItems(*_page(list(shelf.batches.values()), True, request.after, request.limit))
            case ItemRequest(action="show batch"):
                return store.batch(shelf, request.id)
            case ItemRequest():  # cancel batch
                batch = store.batch(shelf, request.id)
                if batch.ended or batch.status == "finalizing":
                    raise InvalidRequest("The batch has ended or is being finished.")
                batch.status = "cancelling"
                batch.cancelling_at = batch.cancelling_at or int(time.time())
                with suppress(DiskFull):
                    await self._stored(store.save, shelf, batch)
                if (window := self._windows.get(batch.id)) is not None:
                    window.reschedule(asyncio.get_running_loop().time())
                return batch

    async def _stored(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs one method of the store in a thread, to its end even if the client disconnects."""
        async with self._storing:
            work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
            try:
                with full_disk_detected():
                    return await asyncio.shield(work)
            except asyncio.CancelledError:
                with suppress(Exception):
                    await work
                raise

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            await self._stored(self._store.sweep)

    # --- one owner's batches ---

    def _wake(self, shelf: Shelf) -> None:
        if all(batch.ended for batch in list(shelf.batches.values())):
            return
        worker = self._workers.get(shelf.owner)
        if worker is None or worker.done():
            self._workers[shelf.owner] = asyncio.create_task(self._work(shelf))

    async def _work(self, shelf: Shelf) -> None:
        while batch := next((one for one in list(shelf.batches.values()) if not one.ended), None):
            try:
                await self._run(shelf, batch)
            except DiskFull:
                fault = Fault("storage_full", "There is no space for the results; create the batch again to continue.")
                await self._stored(self._store.fail, shelf, batch, [fault])
                log.error("the disk of --batch-dir is full", extra={"fields": {"batch": batch.id}})
            except Exception as problem:  # such as a disk that fails: the batch continues later
                log_failure(problem, request_id=batch.id, method="POST", route=batch.endpoint)
                await asyncio.sleep(MAX_RETRY_S)

    async def _run(self, shelf: Shelf, batch: StoredBatch) -> None:
        custom_ids, faults = await self._stored(self._validated, shelf, batch)
        if faults:
            batch.errors = faults
            await self._end(shelf, batch, "failed", ())
            return
        if batch.ending is not None:  # the server was stopped while it wrote the files
            await self._end(shelf, batch, batch.ending, custom_ids)
            return
        batch.request_counts.total = len(custom_ids)
        if batch.status == "validating":
            batch.status = "in_progress"
            batch.in_progress_at = int(time.time())
            await self._stored(self._store.save, shelf, batch)
        left_s = 0.0 if batch.status == "cancelling" else max(0.0, batch.expires_at - time.time())
        window = asyncio.timeout(left_s)
        try:
            async with window:
                self._windows[batch.id] = window
                if batch.status != "cancelling":
                    await self._answer_lines(shelf, batch)
            ending = "completed"
        except TimeoutError:
            if not window.expired():
                raise
            ending = "expired"
        except DiskFull:
            batch.errors = [Fault("storage_full", "The results do not fit on the disk, or into --batch-disk-limit.")]
            ending = "failed"
        except Unauthorized:
            batch.errors = [Fault("invalid_api_key", "The key that created the batch was removed.")]
            ending = "failed"
        finally:
            self._windows.pop(batch.id, None)
        if batch.status == "cancelling" and ending != "failed":
            ending = "cancelled"
        await self._end(shelf, batch, ending, custom_ids)

    def _validated(self, shelf: Shelf, batch: StoredBatch) -> tuple[Sequence[str], list[Fault]]:
        """The ids of all lines, and the faults. In a thread."""
        if batch.input_file_id not in shelf.files:  # deleted while a full disk kept the batch's end from its record
            return (), [Fault("invalid_input_file", "The input file was deleted.")]
        custom_ids: dict[str, None] = {}
        faults: list[Fault] = []
        for count, (number, line) in enumerate(self._store.input_lines(shelf, batch), 1):
            if count > MAX_REQUESTS or number > MAX_LINES or len(faults) == MAX_LISTED_FAULTS:
                break
            try:
                custom_id = read_request_line(line, batch.endpoint).custom_id
            except VectordError as error:
                faults.append(fault_of(error, number))
                continue
            if custom_id in custom_ids:
                message = "`custom_id` must differ from those of all other lines."
                faults.append(Fault("duplicate_custom_id", message, number, "custom_id"))
            custom_ids[custom_id] = None
        else:
            if not custom_ids and not faults:
                faults.append(Fault("empty_file", "The input file has no requests."))
            return tuple(custom_ids), faults
        if len(faults) < MAX_LISTED_FAULTS:
            message = f"The input file has more than {MAX_REQUESTS} requests or {MAX_LINES} lines."
            faults.append(Fault("too_many_requests", message))
        return (), faults

    async def _end(self, shelf: Shelf, batch: StoredBatch, ending: str, custom_ids: Sequence[str]) -> None:
        batch.ending = ending  # type: ignore[assignment]
        batch.status = "finalizing"
        batch.finalizing_at = batch.finalizing_at or int(time.time())
        await self._stored(self._store.save, shelf, batch)
        await self._stored(self._store.finish, shelf, batch, custom_ids)
        counts = batch.request_counts
        log.info("batch ended", extra={"fields": {"batch": batch.id, "status": ending, "requests": counts.total}})

    # --- lines ---

    async def _answer_lines(self, shelf: Shelf, batch: StoredBatch) -> None:
        answered = await self._stored(self._store.recover, shelf, batch)
        lines = self._store.input_lines(shelf, batch)
        results = ResultWriter(self._store, shelf, batch)
        tasks: deque[asyncio.Task[tuple[bytes, bool]]] = deque()

        async def write_first() -> None:
            line, succeeded = await tasks[0]
            tasks.popleft()
            async with self._storing:
                is_due = results.add(line, succeeded=succeeded)
            if is_due:
                await self._stored(results.finish)

        try:
            for index, (_, line) in enumerate(lines):
                if index < answered:
                    continue
                tasks.append(asyncio.create_task(self._answer(shelf, batch, index, line)))
                if len(tasks) >= CONCURRENT_LINES:
                    await write_first()
            while tasks:
                await write_first()
            await self._stored(results.finish)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(DiskFull):  # the first failure counts
                await self._stored(results.finish)

    async def _answer(self, shelf: Shelf, batch: StoredBatch, index: int, line: bytes) -> tuple[bytes, bool]:
        """The result of one line, and whether it succeeded. Raises Unauthorized if the owner's key was removed."""
        keys = self._pipeline.gate.keys
        key = keys.named(shelf.owner) if shelf.owner else None
        if shelf.owner and key is None:
            raise Unauthorized("")
        request = await asyncio.to_thread(read_request_line, line, batch.endpoint)
        caller = Caller(
            client=shelf.owner or "batches/shared",  # no key has a name with a slash
            named=bool(shelf.owner),
            lane="bulk",
            request_id=request_id(batch, index),
            route=batch.endpoint,
            models=None if key is None else key.models,
            operator=keys.anyone_operates if key is None else key.admin,
        )
        rendered = await self._rendered(bytes(request.body), caller, key)
        result = await asyncio.to_thread(
            result_line, request.custom_id, caller.request_id, rendered.status, rendered.body
        )
        return result, rendered.status < 400

    async def _rendered(self, body: bytes, caller: Caller, key: Key | None) -> Rendered:
        """The response that the endpoint has for this body."""
        found = self._table.find("POST", caller.route)
        endpoint, render_error = found.endpoint, found.endpoint.render_error
        models = LazyModelList(self._engine, caller)
        models.load()
        record = self._pipeline.begin("POST", endpoint.route, endpoint.owner, {REQUEST_ID: caller.request_id})
        record.key = key

        def parse() -> Call:
            nonlocal render_error
            choice = endpoint.choose(body, self._guards.max_inputs)
            render_error = choice.render_error
            return choice.route.parse(Incoming(body=body, path=found.values, models=models, guards=self._guards))

        try:
            if not endpoint.choices:
                raise endpoint.error or VectordError(UNFORESEEN)
            return await self._pipeline.answer(record, caller, parse, len(body), partial(self._ask, key), _render)
        except Exception as cause:
            return render_error(self._pipeline.failed(record, cause))

    async def _ask(self, key: Key | None, request: Request | BatchRequest, caller: Caller) -> Result:
        """Retries while the server is busy or the key's limits are reached: the batch's window bounds the time.

        Raises ModelFailed at once: its owner's other lines and batches may use other models.
        """
        assert not isinstance(request, BatchRequest)
        if isinstance(request, EmbedRequest):
            request = replace(request, waits=True)
        while True:
            try:
                async with self._places:
                    await self._pipeline.gate.limits.check(address=None, key=key, dialect=None)
                    return await self._engine.answer(request, caller)
            except ModelFailed:
                raise
            except (Overloaded, Unavailable) as refused:
                await asyncio.sleep(min(max(refused.retry_after_s, 0.05), MAX_RETRY_S))


async def _render(call: Call, result: Result | BatchResult) -> Rendered:
    return await asyncio.to_thread(render_row_by_row, partial(call.answered, result))


def _page(items: Sequence[T], newest_first: bool, after: str | None, limit: int) -> tuple[Sequence[T], bool]:
    """The items after the one with the id `after`, at most `limit`, and whether there are more.

    Raises InvalidField for another `after`: a client that pages would begin again, without end.
    """
    ordered = list(reversed(items)) if newest_first else list(items)
    ids = [item.id for item in ordered]  # type: ignore[attr-defined]
    if after and after not in ids:
        raise InvalidField("{field} is no item of this list, or no longer.", field="after")
    start = ids.index(after) + 1 if after else 0
    return ordered[start : start + limit], len(ordered) > start + limit
