"""Short texts over HTTP, which the host limits: by texts a request and by front-ends, with the cores that each process
uses. A section of gpu.py. With py-spy on PATH, also the stacks of the two busiest processes."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from bench.gpu_http import DIFFERENT, MANY, QUICK_REQUESTS, requests_of, serving
from bench.gpu_options import Options, read_options
from bench.gpu_section import Say, attempt, speaker
from bench.gpu_shapes import Shape, model_folder, shape_named
from bench.http_load import Request, Round, run_load
from bench.server_process import Server
from vectord import Embedder

LENGTH = 50
FRONT_ENDS = (0, 1, 6)  # 0: the server's choice
LOADS = ((16, 32), (1, 128), (64, 32))  # texts a request, connections
WARM_S, MEASURED_S, RECORDED_S = 0.5, 1.5, 2
BUSIEST = 6  # processes in a finding
STACKS = 60
PATIENCE_S = 10.0  # with py-spy
LIBRARY_TEXTS = 20_000


def measure(options: Options, found: Say) -> None:
    (name,) = options.models
    shape = shape_named(name, quick=options.quick)
    for front_ends in (2,) if options.quick else FRONT_ENDS:
        with (
            attempt(found, f"{front_ends} front-ends"),
            serving(shape, options, *(["--front-ends", str(front_ends)] if front_ends else [])) as server,
        ):
            found("served", model=name, front_ends=front_ends, seconds=server.wait_until_answering(options.seconds))
            for texts, connections in LOADS[:1] if options.quick else LOADS:
                with attempt(found, f"{front_ends} front-ends, {texts} texts a request"):
                    busiest = _load(server, shape, texts, connections, front_ends, options, found)
                    if (front_ends, texts) == (FRONT_ENDS[0], LOADS[0][0]) and shutil.which("py-spy"):
                        _stacks(server, shape, busiest[:2], found)
    with attempt(found, "the library"):
        _library(shape, options, found)


def _load(
    server: Server, shape: Shape, texts: int, connections: int, front_ends: int, options: Options, found: Say
) -> list[int]:
    """Returns the processes by the cores that they used."""
    requests = requests_of(shape, LENGTH, texts)

    def run(seconds: float) -> Round:
        if options.quick:
            return run_load(server.port, requests[:QUICK_REQUESTS], 2)
        return run_load(server.port, requests * (MANY // DIFFERENT), connections, seconds)

    run(WARM_S)
    before, began_s = _cpu_s(server), time.perf_counter()
    measured = run(MEASURED_S)
    elapsed_s, after = time.perf_counter() - began_s, _cpu_s(server)
    used = {pid: (after[pid] - before[pid]) / elapsed_s for pid in after if pid in before}
    busiest = sorted(used, key=lambda pid: -used[pid])
    found(
        "short texts",
        model=shape.name,
        front_ends=front_ends,
        length=LENGTH,
        texts=texts,
        connections=connections,
        tokens_per_s=measured.tokens_per_s,
        requests_per_s=measured.requests_per_s,
        p50_ms=measured.percentile_ms(50),
        p99_ms=measured.percentile_ms(99),
        client_us=measured.client_us,
        cores=[round(used[pid], 2) for pid in busiest[:BUSIEST]],
    )
    return busiest


def _cpu_s(server: Server) -> dict[int, float]:
    """The CPU time of the server's processes."""
    main = psutil.Process(server.process.pid)
    times = {process.pid: process.cpu_times() for process in (main, *main.children(recursive=True))}
    return {pid: each.user + each.system for pid, each in times.items()}


def _stacks(server: Server, shape: Shape, pids: Sequence[int], found: Say) -> None:
    """The most frequent stacks of each process: of all threads, and of those that hold the interpreter's lock."""
    texts, connections = LOADS[0]
    requests: list[Request] = requests_of(shape, LENGTH, texts) * (MANY // DIFFERENT)
    with tempfile.TemporaryDirectory() as folder:
        for pid in pids:
            for options in ([], ["--gil"]):
                out = Path(folder) / "stacks"
                record = f"py-spy record -d {RECORDED_S} -r 250 -f raw -t -o {out} -p {pid}".split()
                with subprocess.Popen([*record, *options], stdout=subprocess.DEVNULL) as spying:
                    run_load(server.port, requests, connections, RECORDED_S + 1)
                    spying.wait(PATIENCE_S)
                lines = sorted(out.read_text().splitlines(), key=lambda line: -int(line.rpartition(" ")[2]))
                found("stacks", pid=pid, options=options, stacks=lines[:STACKS])


def _library(shape: Shape, options: Options, found: Say) -> None:
    """Embedder.embed, which tokenizes in this process: the rate without HTTP."""
    embedder = Embedder(
        str(model_folder(shape, options.models_folder, quick=options.quick)), backend="torch", device=options.device
    )
    texts = [shape.text(LENGTH, seed) for seed in range(64 if options.quick else LIBRARY_TEXTS)]
    embed: Callable[[Sequence[str]], object] = embedder.embed
    embed(texts[: len(texts) // 8])
    began_s = time.perf_counter()
    embed(texts)
    found("library", model=shape.name, length=LENGTH, texts=len(texts),
          tokens_per_s=LENGTH * len(texts) / (time.perf_counter() - began_s))  # fmt: skip
    embedder.close()


if __name__ == "__main__":
    measure(read_options(), speaker())
