"""Request bodies: complete, never above the limit before or after decompression, and not of too many values.

And work is cancelled if its client disconnects, and only then.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from vectord.errors import MalformedBody, Overloaded, PayloadTooLarge, UnsupportedMediaType, UploadTooSlow
from vectord.products.common.body import Content
from vectord.server.http.hardening import body as module
from vectord.server.http.hardening import decompression
from vectord.server.http.hardening.body import (
    CONTAINERS_PER_INPUT,
    MAX_BODIES,
    MAX_CONTAINERS,
    MAX_STRINGS,
    MAX_VALUES,
    MIN_BYTES,
    PIECE_BYTES,
    Body,
    BodyRoom,
    ClientDisconnected,
    WatchingDisconnect,
    check_media_type,
    check_shape,
)
from vectord.server.http.hardening.decompression import decompress

LIMIT_BYTES = 1000


async def unpacked(sent: bytes, encoding: str = "gzip", limit_bytes: int = LIMIT_BYTES) -> Content:
    return await decompress(sent, encoding, limit_bytes, lambda n_bytes: None, asyncio.Semaphore())


def body(*parts: bytes, headers: dict[str, str] | None = None, ends: bool = True) -> Body:
    """A body that arrives in `parts`; the client disconnects after them unless it `ends`."""
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if ends:
        messages[-1]["more_body"] = False
    waiting = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(waiting, {"type": "http.disconnect"})

    return Body(receive, {"transfer-encoding": "chunked"} if headers is None else headers)


@given(parts=st.lists(st.binary(max_size=100), min_size=1, max_size=10))
async def test_a_body_is_joined_from_its_parts(parts: list[bytes]) -> None:
    """However the network splits it; its room is released."""
    room = BodyRoom(LIMIT_BYTES)
    reading = body(*parts)
    assert await reading.read(room) == b"".join(parts)
    reading.release()
    assert room.budget.held == 0


@pytest.mark.parametrize("parts", [[b"x" * 1001], [b"x" * 600, b"x" * 401], [b"x"] * 1001], ids=["one", "two", "many"])
async def test_one_byte_above_the_limit_is_refused(parts: Sequence[bytes]) -> None:
    """Chunked bodies are counted while they arrive."""
    room = BodyRoom(LIMIT_BYTES)
    with pytest.raises(PayloadTooLarge):
        await body(*parts).read(room)
    assert room.budget.held == 0


async def test_content_length_above_the_limit_is_refused_unread() -> None:

    async def receive() -> dict[str, Any]:
        raise AssertionError("read")

    with pytest.raises(PayloadTooLarge):
        await Body(receive, {"content-length": "1001"}).read(BodyRoom(LIMIT_BYTES))


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    assert len(await body(b"x" * LIMIT_BYTES).read(BodyRoom(LIMIT_BYTES))) == LIMIT_BYTES


async def test_a_body_of_the_announced_length_is_complete() -> None:
    """Some servers report its end later. It holds no room."""
    room = BodyRoom(LIMIT_BYTES)
    room.budget.add(room.budget.limit)
    assert await body(b"abc", headers={"content-length": "3"}, ends=False).read(room) == b"abc"


async def test_a_disconnect_within_a_body_releases_its_room() -> None:
    room = BodyRoom(LIMIT_BYTES)
    with pytest.raises(ClientDisconnected):
        await body(b"abc", ends=False).read(room)
    assert room.budget.held == 0


async def test_decompressed_bytes_are_held_until_they_are_parsed() -> None:
    """A thousand bytes of gzip are a megabyte of memory; without room for that they are refused."""
    room = BodyRoom(2**20)
    sent = gzip.compress(b"a" * 2**20)
    reading = body(sent, headers={"content-encoding": "gzip", "content-length": str(len(sent))})
    assert await reading.read(room) == b"a" * 2**20
    assert room.budget.held == 2**20
    room.hold(room.budget.limit - room.budget.held)
    with pytest.raises(Overloaded):
        await body(sent, headers={"content-encoding": "gzip"}).read(room)
    reading.release()
    reading.release()
    assert room.budget.held == room.budget.limit - 2**20


async def test_large_bodies_are_decompressed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the bombs of some clients take every core from the event loop."""
    room, running, most = BodyRoom(2**20), 0, 0
    real = asyncio.to_thread

    async def counted(*arguments: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await real(*arguments)
        finally:
            running -= 1

    monkeypatch.setattr(asyncio, "to_thread", counted)
    sent = gzip.compress(b"a" * 2**20)
    await asyncio.gather(*(body(sent, headers={"content-encoding": "gzip"}).read(room) for _ in range(4)))
    assert most == 1


async def test_a_slow_upload_is_aborted_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest first, and only after its grace time."""
    room = BodyRoom(LIMIT_BYTES)
    arrived = asyncio.Event()

    async def trickle() -> dict[str, Any]:
        if arrived.is_set():
            await asyncio.Event().wait()
        arrived.set()
        return {"type": "http.request", "body": b"a" * LIMIT_BYTES, "more_body": True}

    slow = asyncio.create_task(Body(trickle, {"transfer-encoding": "chunked"}).read(room))
    await arrived.wait()
    await asyncio.sleep(0)
    room.hold(room.budget.limit - room.budget.held)
    with pytest.raises(Overloaded):
        await body(b"b", b"c").read(room)
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    assert await body(b"b", b"c").read(room) == b"bc"
    with pytest.raises(UploadTooSlow):
        await slow


async def test_a_slow_upload_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """After MIN_BYTES_S with fewer than MIN_BYTES."""
    monkeypatch.setattr(module, "MIN_BYTES_S", 0.05)
    room = BodyRoom(LIMIT_BYTES)
    parts = iter([b"a", b"b"])

    async def trickle() -> dict[str, Any]:
        if (part := next(parts, None)) is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": part, "more_body": True}

    with pytest.raises(UploadTooSlow, match=f"Fewer than {MIN_BYTES} bytes"):
        await Body(trickle, {"transfer-encoding": "chunked"}).read(room)
    assert room.budget.held == 0


async def test_all_bodies_together_are_bounded() -> None:
    """If slow bodies hold all the room, the next one is refused, and small ones in one piece pass."""
    room = BodyRoom(LIMIT_BYTES)
    room.hold(MAX_BODIES * LIMIT_BYTES)
    with pytest.raises(Overloaded):
        await body(b"a", b"b").read(room)
    assert await body(b"a").read(room) == b"a"


def deflated(content: bytes, window: int) -> bytes:
    packer = zlib.compressobj(wbits=window)
    return packer.compress(content) + packer.flush()


ENCODERS = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "x-gzip": gzip.compress,
    "GZIP": gzip.compress,
    "deflate": zlib.compress,
    "identity": bytes,
}


@pytest.mark.parametrize("encoding", ENCODERS)
async def test_every_content_encoding_is_decoded(encoding: str) -> None:
    sent = ENCODERS[encoding](b"some body")
    headers = {"content-encoding": encoding, "content-length": str(len(sent))}
    assert await body(sent, headers=headers).read(BodyRoom(LIMIT_BYTES)) == b"some body"


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "compress", "aws-chunked", "\x00"])
async def test_an_unknown_encoding_is_refused(encoding: str) -> None:
    """Before the body is read, and without the value."""
    with pytest.raises(UnsupportedMediaType) as caught:
        await body(b"x", headers={"content-encoding": encoding, "content-length": "1"}).read(BodyRoom(LIMIT_BYTES))
    assert encoding not in caught.value.message.replace("zstd, gzip, deflate", "")


@given(content=st.binary(max_size=2000), window=st.sampled_from([zlib.MAX_WBITS, -zlib.MAX_WBITS]))
async def test_deflate_is_read_with_and_without_its_header(content: bytes, window: int) -> None:
    """RFC 9110 defines the zlib format; clients also send the bare stream."""
    assert await unpacked(deflated(content, window), "deflate", 2000) == content


@pytest.mark.parametrize("wrong", [b"", b"tail"])
@pytest.mark.parametrize("step_bytes", [1, 7, 64])
async def test_gzip_is_read_in_steps(step_bytes: int, wrong: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a step ends: in a header, a trailer, or between two members. The rest of the body is never copied."""
    monkeypatch.setattr(decompression, "INPUT_STEP_BYTES", step_bytes)
    sent = gzip.compress(b"a" * 500) + gzip.compress(b"") + gzip.compress(b"b") + wrong
    reading = unpacked(sent)
    if wrong:
        with pytest.raises(MalformedBody):
            await reading
    else:
        assert await reading == b"a" * 500 + b"b"


SPACES = bytes(50_000_000)
BOMBS = {
    "gzip": (gzip.compress(SPACES, 1), 3 * 2**20),
    "zstd": (zstandard.ZstdCompressor(write_content_size=False).compress(SPACES), 20 * 2**20),
    "zstd that states its size": (zstandard.compress(SPACES), 2**16),
}


@pytest.mark.parametrize("limit_bytes", [1000, 200_000], ids=["on the loop", "in a thread"])
@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_costs_no_more_than_the_limit(name: str, limit_bytes: int) -> None:
    """50 MB in a few kB are refused at the limit, with little more memory, and at once if a frame states its size."""
    bomb, peak_limit_bytes = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLarge):
            await unpacked(bomb, name[:4], limit_bytes)
        assert tracemalloc.get_traced_memory()[1] < peak_limit_bytes
    finally:
        tracemalloc.stop()


FRAME = zstandard.compress(b"some body")
LARGE_WINDOW = zstandard.ZstdCompressor(
    compression_params=zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
).compressobj()
GZIPPED = gzip.compress(b"some body")
INVALID = {
    "gzip": (b"not gzip", GZIPPED[:-3], GZIPPED + b"tail", GZIPPED[:2], b""),
    "gzip of a million members": (gzip.compress(b"") * 17,),  # each has the cost of many bytes
    "zstd": (b"not zstd", FRAME[:-3], FRAME + b"tail", FRAME + FRAME, FRAME[:4], b""),
    "zstd of 2 GiB": (LARGE_WINDOW.compress(b"some body") + LARGE_WINDOW.flush(),),  # of memory, for its window
}


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_body_is_refused(name: str) -> None:
    """Another format, an incomplete body, a tail, and one that costs too much."""
    for sent in INVALID[name]:
        with pytest.raises(MalformedBody):
            await unpacked(sent, name[:4])


# --- Content-Type ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/vnd.api+json",
        "application/x-www-form-urlencoded",
        "text/plain;charset=UTF-8",
        "application/octet-stream",
    ],
)
def test_content_types_of_possible_json_are_accepted(kind: str | None) -> None:
    """Also none, and those that common clients send for any body."""
    check_media_type(kind or "")


@pytest.mark.parametrize(
    "kind",
    ["multipart/form-data; boundary=x", "application/xml", "image/png", "application/jsonp", "application/msgpack"],
)
def test_other_content_types_are_refused(kind: str) -> None:
    """Forms and files."""
    with pytest.raises(UnsupportedMediaType, match="application/json"):
        check_media_type(kind)


# --- the number of values --------------------------------------------------------------------------------------


def many(value: str, count: int) -> bytes:
    return f'{{"input": [{",".join([value] * count)}]}}'.encode()


@pytest.mark.parametrize(
    "body",
    [
        many("1", MAX_VALUES + 1),
        many('"a"', MAX_STRINGS + 1),
        many(r'"\\"', MAX_STRINGS * 2 + 1),
        many("[1]", MAX_CONTAINERS),
        many("{}", MAX_CONTAINERS),
    ],
    ids=["ids", "texts", "backslashes", "lists", "objects"],
)
def test_too_many_values_are_refused(body: bytes) -> None:
    """Numbers, strings, lists and objects, with the count and the limit in the message."""
    with pytest.raises(PayloadTooLarge, match=f"{MAX_STRINGS}|{MAX_VALUES} and {MAX_CONTAINERS}"):
        check_shape(body)


@pytest.mark.parametrize(
    "text", [",[{" * 1_500_000, '\\",' * 1_500_000, "\\\\" * 1_500_000 + ","], ids=["brackets", "quotes", "backslashes"]
)
def test_text_content_does_not_count(text: str) -> None:
    """A long text may contain any number of commas and brackets, with any escapes."""
    check_shape(many(f'"{text}"', 2))


def test_bodies_at_the_limits_pass() -> None:
    """Invalid JSON passes, too: the parser rejects it."""
    check_shape(many("1", MAX_VALUES))
    check_shape(many('"a"', 100_000))
    check_shape(b'"' * 300_001)


@pytest.mark.parametrize("opening", [b",", b"["])
@pytest.mark.parametrize("end", [b"", b"\\"])
def test_an_unterminated_string_is_scanned_once(opening: bytes, end: bytes) -> None:
    """A scan from each of its quotes would take weeks for a body of maximum size."""
    many = opening * (MAX_VALUES if opening == b"," else MAX_CONTAINERS + 1)
    with pytest.raises(PayloadTooLarge):
        check_shape(b'{"input":[' + many + b'"' + b'\\"' * 2_000_000 + end)


class PiecewiseBody(bytearray):
    """Records the largest slice; the methods of bytes that read the whole body fail."""

    largest = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        self.largest = max(self.largest, len(part))
        return part

    def _whole(self, *arguments: Any) -> Any:
        raise AssertionError("one call for the whole body")

    count = replace = translate = split = find = _whole


@pytest.mark.parametrize("content", [",[{", '\\"', "\\\\", "a"], ids=["brackets", "quotes", "backslashes", "letters"])
def test_the_shape_is_counted_in_pieces(content: str) -> None:
    """No other thread runs Python during one call; 30 MB of brackets in one string took 670 ms."""
    large = PiecewiseBody(many(f'"{content * (2**21 // len(content))}"', 2))
    check_shape(large)
    assert large.largest == PIECE_BYTES


@given(
    value=st.recursive(
        st.none() | st.integers() | st.text(st.sampled_from('a"\\,[]{}\n\u00e9')),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('"\\,[{')), inner),
        max_leaves=20,
    ),
    piece_bytes=st.integers(1, 20),
)
def test_counts_are_exact_for_pieces_of_any_size(value: object, piece_bytes: int) -> None:
    """As in the parsed value: each list or object of n members has n - 1 commas."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", piece_bytes)
        assert module._counts(json.dumps(value).encode()) == counts(value)


def counts(value: object) -> tuple[int, int, int]:
    if isinstance(value, str):
        return 1, 0, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0
    members = [*value, *value.values()] if isinstance(value, dict) else value
    strings, commas, containers = (sum(each) for each in zip((0, 0, 0), *map(counts, members), strict=True))
    return strings, commas + max(0, len(value) - 1), containers + 1


def test_the_limit_of_containers_follows_the_limit_of_inputs() -> None:
    body = many("[111]", CONTAINERS_PER_INPUT * 1000)  # and the two around them
    check_shape(body, 1001)
    with pytest.raises(PayloadTooLarge, match=f"limits are {MAX_VALUES} and {CONTAINERS_PER_INPUT * 1000}"):
        check_shape(body, 1000)


def test_a_few_excess_inputs_are_left_to_the_product() -> None:
    """Its error names the field."""
    parts = '{"content":[{"type":"text","text":"a text of some words"}]}'
    for one in ("[101,102,103,104,105,106,107,108]", parts, f"[{parts},{parts}]"):
        check_shape(many(one, 2049), 2048)


# --- disconnects --------------------------------------------------------------------------------------------------


class Line:
    """The client's end of ASGI's receive."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.watched = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        self.watched.set()
        await self.gone.wait()
        return {"type": "http.disconnect"}


@pytest.fixture(autouse=True)
def watch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_AFTER_S", 0.0)


async def test_work_of_a_connected_client_finishes() -> None:
    """No part of the watch is left."""
    line = Line()

    with WatchingDisconnect(line.receive):
        await line.watched.wait()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_of_a_disconnected_client_is_cancelled() -> None:
    """The work gets CancelledError, the caller ClientDisconnected, and its task continues."""
    line = Line()
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            line.gone.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(ClientDisconnected):
        async with asyncio.timeout(5):
            with WatchingDisconnect(line.receive):
                await work()
    assert cancelled.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_an_outer_cancellation_is_not_a_disconnect() -> None:
    line = Line()
    task = asyncio.create_task(_cancelled_by_others(line))
    await line.watched.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _cancelled_by_others(line: Line) -> None:
    with WatchingDisconnect(line.receive):
        await asyncio.Event().wait()
