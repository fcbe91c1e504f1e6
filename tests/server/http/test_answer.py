"""The rendering and the compression of a response."""

from __future__ import annotations

import asyncio
import gzip
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import zstandard
from tests.server.fakes import FINGERPRINT, MODEL
from tests.server.live import FORM_TYPE, Client, Live, connected, file_form, get, live, post, until

from vectord.errors import Overloaded
from vectord.products.common.batches import StoredContent
from vectord.products.common.dialect import Call, Rendered, load_dialects
from vectord.products.common.vectors import dump_json
from vectord.schema import (
    EmbedRequest,
    EmbedResult,
    Result,
    TextLengths,
    Usage,
)
from vectord.server.http.answer import (
    COMPRESS_ON_LOOP_BYTES,
    FILE_THREADS,
    RENDER_ON_LOOP_NUMBERS,
    Responder,
    compressed,
)
from vectord.server.http.hardening.write_backpressure import WriteBackpressure
from vectord.server.http.negotiation import Coding
from vectord.server.pipeline import Shutdown
from vectord.server.results import (
    SMALL_NUMBERS,
)

USED = Usage(lengths=TextLengths([1]), characters=1)


# --- rendering -------------------------------------------------------------------------------------------------


def responder(backpressure: WriteBackpressure | None = None) -> Responder:
    return Responder(0, 0, Shutdown(), backpressure or WriteBackpressure(0))


def embedded(numbers: int) -> EmbedResult:
    rows = np.ones((numbers, 1), np.float32)
    return EmbedResult(model=MODEL, fingerprint=FINGERPRINT, usage=USED, dense={"float": rows})


@pytest.mark.parametrize(
    ("numbers", "on_loop"),
    [(1, True), (RENDER_ON_LOOP_NUMBERS, True), (RENDER_ON_LOOP_NUMBERS + 1, False)],
    ids=["one", "most", "more"],
)
async def test_large_responses_are_rendered_in_a_thread(numbers: int, on_loop: bool) -> None:
    """Others are not: a thread costs more than a usual response."""
    seen: list[threading.Thread] = []

    def render(result: Result) -> Rendered:
        seen.append(threading.current_thread())
        return Rendered(body=b"made")

    made = await responder().render(Call(EmbedRequest(inputs=["a"]), render), embedded(numbers))
    assert made.body == b"made"
    assert (seen == [threading.current_thread()]) is on_loop


async def test_the_loop_runs_while_a_large_response_is_rendered() -> None:
    """The thread releases the interpreter between rows."""
    rows = np.random.default_rng(0).standard_normal((20_000, 384), np.float32)
    result = EmbedResult(model=MODEL, fingerprint=FINGERPRINT, usage=USED, dense={"float": rows})
    call = Call(EmbedRequest(inputs=["a"]), lambda result: Rendered(body=dump_json(rows)))
    making = asyncio.create_task(responder().render(call, result))
    turns = 0
    while not making.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await making).body == dump_json(rows)
    assert turns > 10  # 2 or 3 where it is dumped at once; at least one in 5 ms, some 40, where it is not


async def test_a_large_response_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is rendered. A small one is not."""
    monkeypatch.setattr("vectord.server.http.hardening.write_backpressure.WAIT_S", 0.0)
    backpressure = WriteBackpressure(0)
    backpressure.budget.add(backpressure.budget.limit)
    made: list[Result] = []

    def render(result: Result) -> Rendered:
        made.append(result)
        return Rendered(body=b"")

    call = Call(EmbedRequest(inputs=["a"]), render)
    await responder(backpressure).render(call, embedded(SMALL_NUMBERS))
    with pytest.raises(Overloaded, match="large responses"):
        await responder(backpressure).render(call, embedded(SMALL_NUMBERS + 1))
    assert len(made) == 1


# --- compression -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [1, COMPRESS_ON_LOOP_BYTES, COMPRESS_ON_LOOP_BYTES + 1])
async def test_compression_is_lossless(size: int, coding: str) -> None:
    """On the loop or in a thread."""
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    sent = await compressed(body, cast("Coding", coding))
    assert (gzip.decompress(sent) if coding == "gzip" else zstandard.decompress(sent)) == body


# --- stored files ----------------------------------------------------------------------------------------------


def open_files() -> str:
    return str([link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()])


CONTENT = bytes(range(256)) * 40_000


@asynccontextmanager
async def stored(folder: Path) -> AsyncIterator[tuple[Live, Client, str]]:
    """A server, a connection, and the id of a file with CONTENT."""
    async with (
        live(dialects=load_dialects(("openai",)), batch_dir=str(folder)) as running,
        connected(running) as client,
    ):
        client.send(post(file_form(CONTENT), "/v1/files", FORM_TYPE))
        yield running, client, (await client.reply()).json["id"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed in /proc")
async def test_an_unread_download_holds_no_descriptor(tmp_path: Path) -> None:
    """150 of them held all 256 descriptors of a server, and a fifth of the probes was not answered."""
    async with stored(tmp_path) as (running, client, id):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(get(f"/v1/files/{id}/content"))
        (protocol,) = running.server.connections
        await until(lambda: protocol.transport.get_write_buffer_size() > 0)
        async with asyncio.timeout(10):  # a piece may be read at this moment
            while id in await asyncio.to_thread(open_files):
                pass
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await client.reply()).body == CONTENT


async def test_downloads_read_few_pieces_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """800 of them, each with a piece of 256 kB, stopped the event loop for more than a second."""
    real, places, had_place = StoredContent.read, threading.Semaphore(FILE_THREADS), []

    def read(content: StoredContent, start: int, size: int) -> bytes:
        has_place = places.acquire(blocking=False)
        had_place.append(has_place)
        time.sleep(0.01)  # long enough for other threads to begin
        if has_place:
            places.release()
        return real(content, start, size)

    monkeypatch.setattr(StoredContent, "read", read)
    async with stored(tmp_path) as (running, _, id), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(running)) for _ in range(3 * FILE_THREADS)]
        for client in clients:
            client.send(get(f"/v1/files/{id}/content"))
        await until(lambda: len(had_place) > 50)
    assert all(had_place)


@pytest.mark.parametrize(("error", "status"), [(FileNotFoundError(), 404), (OSError(24, "Too many"), 500)])
async def test_a_file_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, status: int
) -> None:
    """And not the beginning of a response with status 200. A deleted file is unknown."""

    def read(content: StoredContent, start: int, size: int) -> bytes:
        raise error

    async with stored(tmp_path) as (_, client, id):
        monkeypatch.setattr(StoredContent, "read", read)
        client.send(get(f"/v1/files/{id}/content"))
        assert (await client.reply()).status == status


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["deleted", "shortened"])
async def test_a_download_of_a_damaged_file_is_cut_off(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], object],
) -> None:
    """One log line has the file's id."""
    real = StoredContent.read

    def read(content: StoredContent, start: int, size: int) -> bytes:
        if start:
            damage(content.path)
        return real(content, start, size)

    monkeypatch.setattr(StoredContent, "read", read)
    async with stored(tmp_path) as (_, client, id):
        client.send(get(f"/v1/files/{id}/content"))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.reply()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.message == "download cut off"
    assert record.fields["file"] == id  # type: ignore[attr-defined]
