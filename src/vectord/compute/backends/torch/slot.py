"""A batch's way to the device and back: one Slot for each of the backend's streams, used by one worker thread.

All kernels of a model run on one CUDA stream, in launch order; copies run on a separate stream for each slot. While
one thread's batch computes, the other packs the next one into pinned memory, sends it, and queues its kernels after
the first's, so that the device goes from one to the other without a pause. Nothing here waits for the whole device.
torch caches pinned memory and reuses it once its copies are done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, Protocol

import torch
from torch import Tensor

from vectord.checkpoints.spec import Output
from vectord.compute.backends.base import Answers


class Slot(Protocol):
    def buffer(self, size: int) -> Tensor:
        """Return (size,) int32 on the host, from which `send` copies fastest."""

    def send(self, numbers: Tensor) -> Tensor:
        """Start to copy them to the device; kernels launched within the next `computing` wait for them."""

    def computing(self) -> AbstractContextManager[None]:
        """Kernels are launched within this context, by one thread at a time."""

    def fetch(self, answers: Mapping[Output, Tensor]) -> Answers:
        """Return the outputs in float32. Blocks until they are computed."""


class PlainSlot:
    """For the CPU, MPS, and rare work on CUDA: sequential, on the thread's current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def buffer(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32)

    def send(self, numbers: Tensor) -> Tensor:
        return numbers.to(self._device)

    def computing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def fetch(self, answers: Mapping[Output, Tensor]) -> Answers:
        return {output: answer.float().cpu().numpy() for output, answer in answers.items()}


class CudaSlot:
    def __init__(self, kernels: torch.cuda.Stream, copies: torch.cuda.Stream) -> None:
        """kernels: the stream that all slots of a model share. copies: this slot's own."""
        self._kernels = kernels
        self._copies = copies
        self._sent = _new_event()
        self._computed = _new_event()
        self._fetched = _new_event(blocking=True)  # the thread sleeps: polling would take a core

    def buffer(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, pin_memory=True)

    def send(self, numbers: Tensor) -> Tensor:
        with torch.cuda.stream(self._copies):
            sent = numbers.to(self._kernels.device, non_blocking=True)
            self._sent.record(self._copies)
        # Its memory belongs to the copy stream, and is in use until the kernels are done.
        sent.record_stream(self._kernels)
        return sent

    @contextmanager
    def computing(self) -> Iterator[None]:
        with torch.cuda.stream(self._kernels):
            self._kernels.wait_event(self._sent)
            yield
            self._computed.record(self._kernels)

    def fetch(self, answers: Mapping[Output, Tensor]) -> Answers:
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(self._computed)
            fetched = {}
            for output, answer in answers.items():  # in the answer's own dtype: half the bytes
                answer.record_stream(self._copies)
                room = torch.empty(answer.shape, dtype=answer.dtype, pin_memory=True)
                fetched[output] = room.copy_(answer, non_blocking=True)
            self._fetched.record(self._copies)
        self._fetched.synchronize()
        return {output: answer.float().numpy() for output, answer in fetched.items()}


StreamUse = Literal["kernels", "copies"]

# The idle streams of this process, by device and use. Loading and closing threads share it: append and pop are atomic.
_idle: defaultdict[tuple[torch.device, StreamUse], list[torch.cuda.Stream]] = defaultdict(list)


class Streams:
    """The streams of one model, which are reused by the next model after this one is closed.

    torch makes 32 streams and then returns the first again: two models on one stream would wait for each other, and
    kernels of one would enter the other's capture. And cuBLAS never frees a stream's memory, 32 MiB on Hopper.
    """

    def __init__(
        self, device: torch.device, make: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
    ) -> None:
        self._device = device
        self._make = make
        self._taken: list[tuple[StreamUse, torch.cuda.Stream]] = []
        self._kernels: torch.cuda.Stream | None = None

    @property
    def kernels(self) -> torch.cuda.Stream:
        """The stream on which the model's kernels run, in launch order; another one after `forget`."""
        if self._kernels is None:
            self._kernels = self.take("kernels")
        return self._kernels

    def take(self, use: StreamUse) -> torch.cuda.Stream:
        try:
            stream = _idle[self._device, use].pop()
        except IndexError:
            stream = self._make(self._device)
        self._taken.append((use, stream))
        return stream

    def give_back(self) -> None:
        """Return the streams for reuse. Nothing may run on them any more."""
        for use, stream in self._taken:
            _idle[self._device, use].append(stream)
        self.forget()

    def forget(self) -> None:
        """Never use the streams taken so far again: something may run on them forever."""
        self._taken = []
        self._kernels = None


def _new_event(*, blocking: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(blocking=blocking)  # type: ignore[no-untyped-call]
