"""`python -m bench int8`: the speed in int8 and from start to first answer, next to the model's usual number format."""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.child import Child
from bench.large import best_rate, corpus_lengths, measure_first_answers
from bench.report import Row, at_least, at_most
from vectord.checkpoints.hub import resolve
from vectord.checkpoints.reader import read_spec

DTYPES = ("auto", "int8")

Found = Mapping[str, Mapping[str, Any]]  # model, then the name of a measurement


def measure(command: Path, backend: str, folders: Sequence[Path], rounds: int, texts: int, logs: Path) -> Found:
    """Rounds of the two formats alternate, so that noise affects both. Tokens are random, with the corpus's lengths."""
    found = {}
    for folder in map(Path.absolute, folders):
        found[f"{folder.parent.name}/{folder.name}"] = _measure(command, backend, folder, rounds, texts, logs)
    return found


def _measure(command: Path, backend: str, folder: Path, rounds: int, texts: int, logs: Path) -> dict[str, Any]:
    print(folder.name, file=sys.stderr)
    question = {"lengths": corpus_lengths(texts), "words": int(read_spec(resolve(str(folder))).config["vocab_size"])}
    found: dict[str, Any] = defaultdict(list)
    for dtype in DTYPES:
        found[f"start {dtype}"] = measure_first_answers(command, folder, logs, "--dtype", dtype)
    with ExitStack() as stack:
        children = {
            dtype: stack.enter_context(Child(sys.executable, "bench.large_child", backend, str(folder), dtype))
            for dtype in DTYPES
        }
        for dtype, child in children.items():
            found[f"dtype {dtype}"] = child.ask(measure="facts")["dtype"]
            child.ask(measure="throughput", outputs=["dense"], **question)  # arranges weights and compiles kernels
        for _ in range(rounds):
            for dtype, child in children.items():
                found[dtype].append(child.ask(measure="throughput", outputs=["dense"], **question))
    return dict(found)


def rows(found: Found) -> list[Row]:
    table = []
    for model, measured in found.items():
        usual, used = measured["dtype auto"], measured["dtype int8"]
        rates = {dtype: best_rate(measured[dtype]) for dtype in DTYPES}
        starts_s = {dtype: statistics.median(measured[f"start {dtype}"]) for dtype in DTYPES}
        added_s = starts_s["int8"] - starts_s["auto"]
        table.append(Row(what=f"{model}, {usual}", value=f"start {starts_s['auto']:.2f} s", tokens_per_s=rates["auto"]))
        if used == usual:
            table.append(Row(what=f"{model}, int8", value="not used: it gains too little"))
            continue
        ratio = rates["int8"] / rates["auto"]
        start = f"{starts_s['int8']:.2f} s, {added_s:+.2f} s"
        table += [
            Row(what=f"{model}, {used}", value=f"{ratio:.2f} x", tokens_per_s=rates["int8"],
                **at_least(ratio, 1.4, " x")),
            Row(what=f"{model}, start in {used}", value=start, **at_most(added_s, 1, " s more")),
        ]  # fmt: skip
    return table
