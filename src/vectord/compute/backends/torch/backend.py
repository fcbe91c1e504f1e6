"""TorchBackend: a network on one device, with a Slot for each stream.

`forward` is called by the model's worker threads, one per stream. On CUDA there are two: a thread packs its batch while
the other's computes, and only launching kernels is limited to one thread at a time (slot.py). A batch with a flat
form (ops/torch/flat.py) runs in it, small ones as a CUDA graph (graphs.py); any other by length groups.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import torch
from msgspec.structs import replace

from vectord.compute.backends.base import Answers, Backend, BackendFacts, TokenBatch
from vectord.compute.backends.torch.device import memory_of
from vectord.compute.backends.torch.graphs import Graphs, without_padding
from vectord.compute.backends.torch.slot import PlainSlot, Slot, Streams
from vectord.compute.networks.network import Network
from vectord.compute.ops.torch.flat import fill, shape_of, tokens_of
from vectord.compute.ops.torch.grouped import pack
from vectord.schema import DeviceMemory


class TorchBackend(Backend):
    """A network on one device."""

    def __init__(
        self,
        facts: BackendFacts,
        network: Network[torch.Tensor],
        make_exact: Callable[[], Network[torch.Tensor]] | None,
        device: torch.device,
        *,
        make_slot: Callable[[], Slot] | None = None,
        streams: Streams | None = None,
        flat: bool = False,
    ) -> None:
        """make_exact: the model in float32, None where `network` is that. flat: whether the network has a flat form.
        streams: the CUDA streams of the slots' kernels and copies."""
        self.facts = facts
        self._network = network
        self._make_exact = make_exact
        self._device = device
        self._make_slot = make_slot or self._plain_slot
        self._streams = streams
        self._slots = [self._make_slot() for _ in range(facts.streams)]
        self._flat = flat
        self.graphs = Graphs()  # of batches that fit; set before the first real forward
        self._launching = threading.Lock()  # held while launching kernels, or writing a graph's inputs
        self._exact: Network[torch.Tensor] | None = network if make_exact is None else None
        self._exact_lock = threading.Lock()

    def limit(self, max_batch_tokens: int) -> None:
        """Set the maximum tokens of a forward, before the first real one."""
        self.facts = replace(self.facts, max_batch_tokens=max_batch_tokens)

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        assert 0 <= stream < self.facts.streams, "no such stream"
        with self._on_device(), contextlib.suppress(torch.OutOfMemoryError):
            return self._run(batch, self._slots[stream])
        # Raised out here because the caught error's traceback holds the tensors that filled the device.
        raise MemoryError("the device has no room for this batch")

    def forward_exact(self, batch: TokenBatch) -> Answers:
        """The second set of weights, unless the first is float32, stays loaded."""
        oom = contextlib.suppress(torch.OutOfMemoryError)
        with self._exact_lock, self._on_device(), torch.inference_mode(), oom:
            assert len(batch.texts.cu_seqlens) > 1, "an empty batch"
            if self._exact is None:
                assert self._make_exact is not None, "there is one from the start otherwise"
                self._exact = self._make_exact()
            return self._plain_slot().fetch(self._exact(pack(batch.texts, self._device), batch.outputs))
        raise MemoryError("the device has no room for this batch in float32")

    def renew(self, stream: int) -> None:
        """The hung thread keeps the lock, its slot, its streams and the graphs that it may write to: all are new."""
        self.graphs = Graphs()
        self._launching = threading.Lock()
        if self._streams is not None:
            self._streams.forget()
        with self._on_device():
            self._slots[stream] = self._make_slot()
        self._exact_lock = threading.Lock()

    def device_memory(self) -> DeviceMemory | None:
        return memory_of(self._device) if self._device.type == "cuda" else None

    def close(self) -> None:
        if self._streams is not None:
            self._streams.give_back()
        del self._network, self._exact, self._make_exact, self.graphs
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _on_device(self) -> contextlib.AbstractContextManager[object]:
        """A new thread uses the first GPU, where pinned memory and every op without a device would go."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()

    @torch.inference_mode()
    def _run(self, batch: TokenBatch, slot: Slot) -> Answers:
        assert len(batch.texts.cu_seqlens) > 1, "an empty batch"
        shape = shape_of(batch.texts) if self._flat else None
        if shape is None:
            with self._launching, slot.computing():
                answers = self._network(pack(batch.texts, self._device), batch.outputs)
            return slot.fetch(answers)
        graph = self.graphs.find(shape)
        filled = shape.rounded() if graph is None else graph.shape
        numbers = slot.buffer(filled.size)
        fill(batch.texts, filled, numbers.numpy())
        sent = slot.send(numbers) if graph is None else numbers
        with self._launching, slot.computing():
            if graph is None:
                answers = without_padding(self._network(tokens_of(sent, filled), batch.outputs), shape)
            else:
                answers = graph.run(sent, batch.outputs, shape)
        return slot.fetch(answers)

    def _plain_slot(self) -> Slot:
        return PlainSlot(self._device)
