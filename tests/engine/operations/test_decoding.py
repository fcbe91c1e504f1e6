"""Images of all requests are decoded within one limit of memory, and not for clients that are gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from vectord.engine.operations import decoding
from vectord.engine.operations.decoding import Decoder, ImageRun
from vectord.engine.queue.batch import Job
from vectord.errors import InvalidField, Overloaded, Unavailable, VectordError
from vectord.schema import Caller, Features, TextLengths
from vectord.text.sequence import Texts, cu_seqlens_of

ROWS, WIDTH = 3, 4
LONG_S = 60.0
FOREVER = float("inf")


class FakeImage:
    """Its rows have its number. Decoding waits for `go`, and is counted."""

    count = 1
    rows_bytes = ROWS * WIDTH
    running = most = 0
    decoded: list[int]
    go: threading.Event
    _lock = threading.Lock()

    def __init__(self, number: int, decoding_bytes: int = 10, *, broken: bool = False) -> None:
        self.number, self.decoding_bytes, self._broken = number, decoding_bytes, broken

    def rows(self) -> Sequence[Features]:
        with self._lock:
            FakeImage.decoded.append(self.number)
            FakeImage.running += self.decoding_bytes
            FakeImage.most = max(FakeImage.most, FakeImage.running)
        assert self.go.wait(LONG_S)
        with self._lock:
            FakeImage.running -= self.decoding_bytes
        if self._broken:
            raise InvalidField("{field} is broken.")
        return [np.full((ROWS, WIDTH), self.number, np.uint8)]


@pytest.fixture(autouse=True)
def go() -> Iterator[threading.Event]:
    FakeImage.decoded, FakeImage.go, FakeImage.running, FakeImage.most = [], threading.Event(), 0, 0
    FakeImage.go.set()
    yield FakeImage.go
    FakeImage.go.set()


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    made = Decoder(4)
    yield made
    made.close()


def job_of(*images: FakeImage, partial: bool = False) -> Job:
    count = len(images)
    texts = Texts(
        ids=np.zeros(ROWS * count, np.int32),
        cu_seqlens=cu_seqlens_of([ROWS] * count),
        undecoded=images,
        lengths=TextLengths([ROWS] * count),
        indexes=range(count),
    )
    return Job(texts, frozenset({"dense"}), Caller(), 0.0, partial=partial)


async def until(condition: object) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0)


async def test_only_unknown_images_are_decoded(decoder: Decoder) -> None:
    """Those at the places that the cache did not answer; each into its own rows."""
    job = job_of(*map(FakeImage, range(1, 6)))
    places = await ImageRun(decoder)(job, np.array([1, 3], np.int32), FOREVER)
    assert sorted(FakeImage.decoded) == [2, 4]
    assert places.tolist() == [1, 3]
    assert job.texts.features is not None
    assert job.texts.features[:, 0].tolist() == [0] * ROWS + [2] * ROWS + [0] * ROWS + [4] * ROWS + [0] * ROWS


async def test_requests_together_stay_within_the_limit(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are; all are decoded in the end."""
    monkeypatch.setattr(decoding, "MAX_DECODING_BYTES", 25)
    decoder = Decoder(4)
    jobs = [job_of(*(FakeImage(number) for number in range(4))) for _ in range(16)]
    await asyncio.gather(*(ImageRun(decoder)(job, None, FOREVER) for job in jobs))
    assert len(FakeImage.decoded) == 64
    assert 10 <= FakeImage.most <= 20


async def test_large_images_do_not_delay_small_ones(decoder: Decoder, go: threading.Event) -> None:
    """The second large image waits for the memory of the first; a small image has memory of its own."""
    go.clear()
    large = [
        asyncio.ensure_future(ImageRun(decoder)(job_of(FakeImage(number, decoding.MAX_DECODING_BYTES)), None, FOREVER))
        for number in (1, 2)
    ]
    small = asyncio.ensure_future(ImageRun(decoder)(job_of(FakeImage(3)), None, FOREVER))
    await until(lambda: FakeImage.decoded == [1, 3])
    go.set()
    await asyncio.gather(small, *large)
    assert FakeImage.decoded == [1, 3, 2]


async def test_rows_count_until_their_run_has_ended(decoder: Decoder) -> None:
    """A request without room for its rows waits, and is refused as busy after its time."""
    decoder.rows.limit = 2 * FakeImage.rows_bytes
    first = ImageRun(decoder)
    await first(job_of(FakeImage(1), FakeImage(2)), None, FOREVER)
    with pytest.raises(Overloaded, match=r"took the memory for images for 0\.01 s"):
        await ImageRun(decoder)(job_of(FakeImage(3)), None, 0.01)
    waiting = asyncio.ensure_future(ImageRun(decoder)(job_of(FakeImage(4)), None, FOREVER))
    first.release()
    await waiting
    assert sorted(FakeImage.decoded) == [1, 2, 4]


async def test_a_request_that_waits_too_long_to_decode_is_refused_as_busy(
    go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a whole, also one whose images may fail alone."""
    monkeypatch.setattr(decoding, "MAX_DECODING_BYTES", 10)
    decoder = Decoder(4)
    go.clear()
    first = asyncio.ensure_future(ImageRun(decoder)(job_of(FakeImage(1)), None, FOREVER))
    await until(lambda: FakeImage.decoded)
    late = job_of(FakeImage(2), FakeImage(3), partial=True)
    second = asyncio.ensure_future(ImageRun(decoder)(late, None, 0.01))
    with pytest.raises(Overloaded):
        await late.done
    go.set()
    await asyncio.gather(first, second)
    assert FakeImage.decoded == [1]


async def test_a_client_that_is_gone_stops_its_images(go: threading.Event) -> None:
    """Those after the ones that threads decode, whose memory counts until they end."""
    decoder = Decoder(2)
    go.clear()
    run = ImageRun(decoder)
    task = asyncio.ensure_future(run(job_of(*map(FakeImage, range(10))), None, FOREVER))
    await until(lambda: len(FakeImage.decoded) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    run.release()
    assert (decoder._others.held, decoder.rows.held) == (20, 0)
    go.set()
    await until(lambda: not decoder._others.held)
    assert sorted(FakeImage.decoded) == [0, 1]


async def test_a_broken_image_fails_its_request_before_the_next_one() -> None:
    """Or alone, where inputs may fail alone."""
    decoder = Decoder(1)
    images = [FakeImage(1), FakeImage(2, broken=True), FakeImage(3)]
    job = job_of(*images)
    await ImageRun(decoder)(job, None, FOREVER)
    with pytest.raises(VectordError) as caught:
        await job.done
    assert (caught.value.index, FakeImage.decoded) == (1, [1, 2])
    job = job_of(*images, partial=True)
    assert (await ImageRun(decoder)(job, None, FOREVER)).tolist() == [0, 2]
    assert job.failures.keys() == {1}


async def test_after_the_end_of_the_server_none_is_decoded(go: threading.Event) -> None:
    """Neither those that wait for a thread, nor later ones."""
    decoder = Decoder(1)
    go.clear()
    jobs = [job_of(FakeImage(number)) for number in (1, 2)]
    runs = [asyncio.ensure_future(ImageRun(decoder)(job, None, FOREVER)) for job in jobs]
    await until(lambda: FakeImage.decoded)
    decoder.close()
    go.set()
    await asyncio.gather(*runs)
    with pytest.raises(Unavailable):
        await jobs[1].done
    late = job_of(FakeImage(3))
    await ImageRun(decoder)(late, None, FOREVER)
    with pytest.raises(Unavailable):
        await late.done
    assert FakeImage.decoded == [1]
