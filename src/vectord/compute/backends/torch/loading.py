"""`load`: a ModelSpec to a TorchBackend. Runs in the thread that loads models, one model at a time.

On CUDA, after the weights: whether the network has a flat form, the tokens of a forward (capacity.py), and the
graphs of small batches (graphs.py). Other models' concurrent work is part of the measurement.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from functools import cache, partial

import numpy as np
import torch
from msgspec.structs import replace

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.backends.base import BackendFacts, BackendOptions, TokenBatch, max_batch_texts
from vectord.compute.backends.torch.backend import TorchBackend
from vectord.compute.backends.torch.capacity import (
    Point,
    choose_budget,
    launch_bound,
    measure,
    sample_texts,
    texts_by_memory,
)
from vectord.compute.backends.torch.device import (
    MIB,
    cap_memory,
    choose_device,
    choose_dtype,
    fp8_dtype,
    gpu_of,
    memory_of,
    name_of,
    room_bytes,
    set_products,
)
from vectord.compute.backends.torch.graphs import UNMEASURED_TOKENS, CudaCapture, capture_graphs, graph_shapes
from vectord.compute.backends.torch.slot import CudaSlot, Streams
from vectord.compute.networks.facts import size
from vectord.compute.networks.network import Network
from vectord.compute.ops.base import PackedTexts
from vectord.compute.ops.torch import TorchOps, find_varlen
from vectord.compute.ops.torch.flat import NotFlat, flat_of, tokens_of
from vectord.compute.ops.torch.ops import LARGEST, EightBits, agrees_with_torch
from vectord.compute.processor import thread_budget

logger = logging.getLogger(__name__)

CPU_BATCH_TOKENS = 2048
GPU_BATCH_TOKENS = 16_384  # used if the best size is not measured
CUDA_STREAMS = 2  # one batch computes, one is prepared
ROOM_SHARE = 0.8  # of the free memory at load: the rest is for fragmentation and for float32 reruns
NOISY_S, REPEATS = 0.05, 3  # a shorter batch is measured again, and the shortest time counts
CAPTURE_S = 20.0  # after this time no further graph is captured
WARMUP_LONGEST = 512  # tokens of the longest text of the warm-up


def load(spec: ModelSpec, options: BackendOptions) -> TorchBackend:
    """Blocks while weights move to the device, and on CUDA for up to `capacity_s` and CAPTURE_S more."""
    device = choose_device(options.device)
    matrices = next((form for form in LARGEST if form == options.dtype), None)
    usual = "auto" if matrices is not None else options.dtype
    dtype = fp8_dtype(device) if matrices == "fp8" else choose_dtype(usual, device, spec.architecture)
    if device.type == "cpu":  # torch's default ignores the cgroup quota
        torch.set_num_threads(options.threads or thread_budget())
    if device.type == "cuda":
        set_products(tf32=options.tf32)
        if options.device_memory_mib is not None:
            cap_memory(device, options.device_memory_mib)
    checkpoint = open_checkpoint(spec.weights, spec.others)
    varlen = find_varlen(device, dtype)

    def make_network(dtype: torch.dtype, *, matrices: EightBits | None = None) -> Network[torch.Tensor]:
        kernel = varlen if dtype != torch.float32 else None
        ops = fused_ops(device, dtype)(device, dtype, kernel, matrices=matrices, joins=device.type == "cuda")
        return Network(spec, checkpoint, ops)

    network = make_network(dtype, matrices=matrices)
    facts = BackendFacts(
        name="torch",
        device=str(device),
        dtype=matrices or name_of(dtype),
        streams=CUDA_STREAMS if device.type == "cuda" else 1,
        pipelined=device.type == "cuda",
        cost="packed",
        max_batch_tokens=options.max_batch_tokens or (CPU_BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS),
        max_batch_texts=max_batch_texts(spec),
        gpu=gpu_of(device),
    )
    make_exact = None if dtype == torch.float32 and matrices is None else partial(make_network, torch.float32)
    if device.type != "cuda":
        return TorchBackend(facts, network, make_exact, device)
    by_memory = texts_by_memory(options.text_limits, memory_of(device).total, spec.max_tokens)
    if by_memory is not None:
        facts = replace(facts, max_batch_texts=min(by_memory, facts.max_batch_texts or by_memory))
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # the weights were copied on this thread's stream and are read on another
        streams = Streams(device)
        flat = varlen is not None and runs_flat(network, device, spec.outputs)
        backend = TorchBackend(
            facts,
            network,
            make_exact,
            device,
            make_slot=lambda: CudaSlot(streams.kernels, streams.take("copies")),
            streams=streams,
            flat=flat,
        )
        points = _find_capacity(backend, spec, options, device)
        if flat and options.graph_memory_mib:
            _capture(
                backend, network, spec, options, streams.kernels, launch_bound(points, otherwise=UNMEASURED_TOKENS)
            )
    return backend


@cache
def fused_ops(device: torch.device, dtype: torch.dtype) -> type[TorchOps]:
    """Return FusedOps if its kernels compile on this GPU and agree with torch's functions, else TorchOps."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return TorchOps

    def difference() -> float:
        from vectord.compute.ops.torch.fused import largest_difference  # noqa: PLC0415 - fails without Triton

        return largest_difference(device, dtype)

    if not agrees_with_torch("fused kernels", difference, dtype):
        return TorchOps
    from vectord.compute.ops.torch.fused import FusedOps  # noqa: PLC0415 - as above

    return FusedOps


def runs_flat(network: Network[torch.Tensor], device: torch.device, outputs: Collection[Output]) -> bool:
    """Return whether every op of the network has a flat form, by running a text: not all attention has one."""
    try:
        with torch.inference_mode():
            network(flat_of(PackedTexts.of([np.zeros(3, np.int32)]), device), outputs)
    except NotFlat:
        return False
    return True


def probe(backend: TorchBackend, spec: ModelSpec, peak_of: Callable[[Callable[[], object]], int], tokens: int) -> Point:
    """Run a batch of this many tokens and measure it. peak_of: runs a call and returns its peak bytes."""
    texts = sample_texts(tokens, min(WARMUP_LONGEST, spec.max_tokens), size(spec.config, "vocab_size"))
    batch = TokenBatch(texts=texts, outputs=spec.outputs - {"tokens"} or spec.outputs)
    seconds: list[float] = []

    def run() -> None:
        begun_s = time.monotonic()
        backend.forward(batch, 0)
        seconds.append(time.monotonic() - begun_s)

    backend.forward(batch, 0)  # the first of its size chooses kernels and allocates memory
    peak_bytes = peak_of(run)
    for _ in range(REPEATS if seconds[0] < NOISY_S else 0):
        run()
    return Point(tokens, min(seconds), peak_bytes)


def _find_capacity(
    backend: TorchBackend, spec: ModelSpec, options: BackendOptions, device: torch.device
) -> list[Point]:
    if options.max_batch_tokens is not None or not options.capacity_s:
        return []

    def peak_of(call: Callable[[], object]) -> int:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before

    free_bytes = room_bytes(memory_of(device), options.device_memory_mib) // options.sharers
    room = int(ROOM_SHARE * free_bytes) - options.graph_memory_mib * MIB
    points = measure(partial(probe, backend, spec, peak_of), max(0, room), options.capacity_s)
    backend.limit(choose_budget(points, max(0, room), otherwise=GPU_BATCH_TOKENS))
    for point in points:
        logger.info(
            "%d tokens at once: %.0f a second, %d MiB", point.tokens, point.tokens_per_s, point.peak_bytes // MIB
        )
    logger.info("a forward runs %d tokens at most", backend.facts.max_batch_tokens)
    return points


def _capture(
    backend: TorchBackend,
    network: Network[torch.Tensor],
    spec: ModelSpec,
    options: BackendOptions,
    kernels: torch.cuda.Stream,
    most_tokens: int,
) -> None:
    device, begun_s = kernels.device, time.monotonic()
    with torch.inference_mode():
        graphs = capture_graphs(
            lambda numbers, shape: network(tokens_of(numbers, shape), spec.outputs),
            graph_shapes(spec.max_tokens, most_tokens, adapters=bool(spec.adapters)),
            device,
            CudaCapture(kernels),
            memory_bytes=options.graph_memory_mib * MIB,
            time_s=CAPTURE_S,
        )
    backend.graphs = graphs
    logger.info("%d CUDA graphs captured in %.1f s", len(graphs), time.monotonic() - begun_s)
