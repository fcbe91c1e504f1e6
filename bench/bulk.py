"""`vectord bulk` of the corpus, compared with the backend's forward of the same texts; and its memory at two sizes.

Each has its own process, and they alternate, so that noise affects both. The forward starts with tokens; the job reads,
tokenizes, computes and writes. The two sizes run on the fake backend, since the model's memory does not grow with the
input.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.child import Child
from bench.report import Row, at_least, at_most
from bench.run import best_rate
from bench.subject import Subject

SIZES = (20_000, 200_000)  # rows
TIMES = 10  # more rows than the forward has: compilation continues during the first second of a job


def measure(subject: Subject, rounds: int, texts: int) -> Mapping[str, Sequence[Any]]:
    found: dict[str, list[Any]] = {"in process": [], "bulk": [], "sizes": []}
    source = _write(subject, TIMES * texts)
    options = ("--backend", subject.backend, "--dtype", subject.dtype)
    with Child(sys.executable, "bench.in_process", *subject.in_process_arguments) as in_process:
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            found["in process"].append(in_process.ask(measure="throughput", texts=texts))
            found["bulk"].append(_run(subject, source, options))
    for rows in SIZES:
        found["sizes"].append(_run(subject, _write(subject, rows), ("--backend", "fake")))
    return found


def rows(found: Mapping[str, Sequence[Any]]) -> list[Row]:
    """The best round of each, since other load can only slow a round."""
    bare = best_rate(found["in process"])
    bulk = max(summary["tokens_per_s"] for summary in found["bulk"])
    small, large = (summary["most_bytes"] / 1e6 for summary in found["sizes"])
    return [
        Row(what="in process", tokens_per_s=bare),
        Row(what="bulk", value=f"{bulk / bare:.2f} of it", tokens_per_s=bulk, **at_least(bulk / bare, 0.95, "")),
        Row(what=f"resident at the most, {SIZES[0]:,} rows, fake backend", value=f"{small:.0f} MB"),
        Row(
            what=f"resident at the most, {SIZES[1]:,} rows, fake backend",
            value=f"{large:.0f} MB",
            **at_most(large / small, 1.2, " x"),
        ),
    ]


def _write(subject: Subject, rows: int) -> Path:
    path = subject.folder / f"bulk-{rows}.jsonl"
    with path.open("w") as file:
        for number, text in enumerate(itertools.islice(itertools.cycle(subject.corpus.texts), rows)):
            file.write(json.dumps({"id": number, "text": text}) + "\n")
    return path


def _run(subject: Subject, source: Path, options: Sequence[str]) -> dict[str, Any]:
    """The job's summary and its peak memory."""
    out = source.with_suffix(".npy")
    command = [str(subject.command), "bulk", str(source), str(out), "--restart", "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    out.unlink(missing_ok=True)
    if process.returncode:
        raise RuntimeError(f"vectord bulk ended with exit code {process.returncode}")
    return {**json.loads(printed), "most_bytes": usage.ru_maxrss * 1024}
