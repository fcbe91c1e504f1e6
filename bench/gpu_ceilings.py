"""The device's rates of matrix products and copies, by its own clock, on random numbers. A section of gpu.py."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import torch

from bench.gpu_options import Options, read_options
from bench.gpu_section import Say, attempt, speaker
from bench.gpu_shapes import SHAPES, shape_named

SIDE = 8192
ROWS = 16_384  # tokens in a model's own products
COPY_BYTES = 4 * 2**30
HOST_BYTES = 2**28
SETS = 3  # sets of operands in rotation, so that no cache holds the last ones
WARM_RUNS = 5
RUNS = 30


def measure(options: Options, found: Say) -> None:
    device = torch.device(options.device)
    with attempt(found, "device"):
        found("device", **about(device))
    side, rows, size_bytes = (256, 256, 2**20) if options.quick else (SIDE, ROWS, COPY_BYTES)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    with attempt(found, "matrix ceiling"):
        seconds = product_s(side, side, side, device, dtype)
        found("matrix", flop_per_s=2 * side**3 / seconds, side=side, dtype=str(dtype).removeprefix("torch."))
    with attempt(found, "copy ceiling"):
        found("copy", bytes_per_s=2 * size_bytes / copy_s(size_bytes, device))
    if device.type == "cuda":
        with attempt(found, "copies between host and device"):
            to_s, from_s = host_copies_s(HOST_BYTES, device)
            found("host copy", to_device_bytes_per_s=HOST_BYTES / to_s, from_device_bytes_per_s=HOST_BYTES / from_s)
    for name in SHAPES:
        with attempt(found, f"{name}'s products"):
            products = shape_named(name, quick=options.quick).products
            rates = {
                (width, out): 2 * rows * width * out / product_s(rows, width, out, device, dtype)
                for width, out in products.shapes
            }
            tokens_per_s = products.tokens_per_s(rates)
            found("products", model=name, flop_per_s=tokens_per_s * products.flop_per_token, tokens_per_s=tokens_per_s)


def about(device: torch.device) -> dict[str, str]:
    versions = {"torch": torch.__version__, "CUDA": str(torch.version.cuda)}
    if device.type != "cuda":
        return {"name": "this processor", **versions}
    facts = torch.cuda.get_device_properties(device)
    return {
        "name": f"{facts.name}, {facts.multi_processor_count} multiprocessors, {facts.total_memory / 2**30:.0f} GiB",
        "capability": f"{facts.major}.{facts.minor}",
        **versions,
    }


def product_s(rows: int, width: int, out: int, device: torch.device, dtype: torch.dtype) -> float:
    """The median of RUNS products of (rows, width) and (width, out)."""
    sets = [
        (torch.randn(rows, width, device=device).to(dtype), torch.randn(out, width, device=device).to(dtype))
        for _ in range(SETS)
    ]
    turns = itertools.cycle(sets)
    return median_s(lambda: torch.nn.functional.linear(*next(turns)), device)


def copy_s(size_bytes: int, device: torch.device) -> float:
    source = torch.randint(0, 255, (size_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return median_s(lambda: target.copy_(source), device)


def host_copies_s(size_bytes: int, device: torch.device) -> tuple[float, float]:
    """To the device and back, from pinned memory."""
    host = torch.randint(0, 255, (size_bytes,), dtype=torch.uint8).pin_memory()
    there = host.to(device)
    to_s = median_s(lambda: there.copy_(host, non_blocking=True), device)
    return to_s, median_s(lambda: host.copy_(there, non_blocking=True), device)


@torch.inference_mode()
def median_s(run: Callable[[], object], device: torch.device) -> float:
    for _ in range(WARM_RUNS):
        run()
    return statistics.median(_events_s(run, device) if device.type == "cuda" else _clock_s(run))


def _events_s(run: Callable[[], object], device: torch.device) -> list[float]:
    with torch.cuda.device(device):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(RUNS + 1)]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]


def _clock_s(run: Callable[[], object]) -> list[float]:
    seconds = []
    for _ in range(RUNS):
        began_s = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began_s)
    return seconds


if __name__ == "__main__":
    measure(read_options(), speaker())
