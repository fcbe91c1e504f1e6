"""A batch's way to the device and back: one Slot for each of the backend's streams, used by one worker thread.

All kernels of a model run on one CUDA stream, in the order in which threads launch them; copies run on a stream of each
slot's own. So while one thread's batch computes, the other packs the next one into pinned memory, sends it, and queues
its kernels behind the first's: the device goes from one to the other without a pause. Nothing here waits for the whole
device. torch keeps pinned memory that was used and lends it again, once the copies that used it are done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from vectord.artifacts.spec import Output
from vectord.backends.base import Answers


class Slot(Protocol):
    def buffer(self, size: int) -> Tensor:
        """(size,) int32 on the host, from which `send` copies fastest."""
        ...

    def send(self, numbers: Tensor) -> Tensor:
        """Begin to copy them to the device; what is launched within `computing` finds them there."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """Kernels are launched within this, by one thread at a time."""
        ...

    def fetch(self, answers: Mapping[Output, Tensor]) -> Answers:
        """What was computed, in float32. Blocks until it is."""
        ...


class PlainSlot:
    """The CPU, MPS, and what has no hurry on CUDA: one thing after the other, on the thread's current stream."""

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
    """Copies beside another slot's kernels."""

    def __init__(self, kernels: torch.cuda.Stream) -> None:
        """kernels: the stream that all slots of a model share."""
        self._kernels = kernels
        self._copies = new_stream(kernels.device)
        self._sent = _new_event()
        self._computed = _new_event()
        self._fetched = _new_event(blocking=True)  # the thread sleeps: one that asks again and again takes a core

    def buffer(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, pin_memory=True)

    def send(self, numbers: Tensor) -> Tensor:
        with torch.cuda.stream(self._copies):
            sent = numbers.to(self._kernels.device, non_blocking=True)
            self._sent.record(self._copies)
        sent.record_stream(self._kernels)  # its memory is the copies' stream's, and in use until the kernels are done
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
            fetched = {output: self._copy(answer) for output, answer in answers.items()}
            self._fetched.record(self._copies)
        self._fetched.synchronize()
        return {output: answer.float().numpy() for output, answer in fetched.items()}

    def _copy(self, answer: Tensor) -> Tensor:
        """In its own 16 bits: they become float32 on this side."""
        answer.record_stream(self._copies)
        return torch.empty(answer.shape, dtype=answer.dtype, pin_memory=True).copy_(answer, non_blocking=True)


def new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _new_event(*, blocking: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(blocking=blocking)  # type: ignore[no-untyped-call]
