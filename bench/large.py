"""`python -m bench large`: BGE-M3, its reranker and Qwen3-0.6B by shape, with random weights, against the ceiling."""

from __future__ import annotations

import itertools
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench import random_models
from bench.child import Child
from bench.corpus import SPREAD
from bench.report import Row, at_least, at_most
from bench.server_process import Server, free_port
from vectord.compute.processor import multiplies_bfloat16, thread_budget
from vectord.config import DEFAULT_MODEL

TEXTS = 96
LONGEST = 8192
PASSAGES = 64  # of a reranking, with a query of QUERY tokens before each
QUERY = 12
STARTS = 3
THREE = ("dense", "lexical", "colbert")


def measure(command: Path, backend: str, folder: Path, rounds: int) -> dict[str, list[Any]]:
    """Every round of every measurement, by name. folder: for the models, 5.6 GB."""
    m3 = random_models.bge_m3(folder / "bge-m3")
    reranker = random_models.bge_reranker(folder / "bge-reranker-v2-m3")
    qwen3 = random_models.qwen3(folder / "qwen3-embedding-0.6b")
    found: dict[str, list[Any]] = defaultdict(list)
    found["start"] = measure_first_answers(command, m3, folder)
    lengths = corpus_lengths(TEXTS)
    pairs = [QUERY + length for length in lengths[:PASSAGES]]
    _ask(found, rounds, backend, m3, "bge-m3", lambda child: {
        "dense": partial(child.ask, measure="throughput", lengths=lengths, outputs=["dense"]),
        "three": partial(child.ask, measure="throughput", lengths=lengths, outputs=list(THREE)),
        "pairs as texts": partial(child.ask, measure="throughput", lengths=pairs, outputs=["dense"]),
        "longest": partial(child.ask, measure="longest", tokens=LONGEST),
    })  # fmt: skip
    _ask(found, rounds, backend, reranker, "bge-m3", lambda child: {
        "rerank": partial(child.ask, measure="throughput", lengths=pairs, outputs=["scores"]),
    })  # fmt: skip
    _ask(found, rounds, backend, qwen3, "qwen3", lambda child: {
        "qwen3": partial(child.ask, measure="throughput", lengths=lengths, outputs=["dense"]),
    })  # fmt: skip
    return dict(found)


def _ask(
    found: dict[str, list[Any]],
    rounds: int,
    backend: str,
    folder: Path,
    shapes: str,
    steps: Callable[[Child], Mapping[str, Callable[[], Any]]],
) -> None:
    """One model's measurements, its ceiling before each round of them."""
    print(folder.name, file=sys.stderr)
    dtype = "bfloat16" if multiplies_bfloat16() else "float32"
    with ExitStack() as stack:
        ceiling = stack.enter_context(Child(sys.executable, "bench.ceiling"))
        child = stack.enter_context(Child(sys.executable, "bench.large_child", backend, str(folder)))
        for step in steps(child).values():  # the first forwards arrange weights and compile kernels
            step()
        for _ in range(rounds):
            round_ = ceiling.ask(threads=thread_budget(), dtype=dtype, model=shapes)
            found[f"ceiling {folder.name}"].append(round_)
            for name, step in steps(child).items():
                found[name].append(step())
        found[f"facts {folder.name}"].append(child.ask(measure="facts"))
        found[f"memory {folder.name}"].append(child.ask(measure="most_anonymous"))


def measure_first_answers(command: Path, folder: Path, logs: Path, *options: str) -> list[float]:
    """Seconds from exec to the first answer, with the files in the page cache. folder: the model's."""
    took = []
    for _ in range(STARTS + 1):
        port = free_port()
        named = ["--model", str(folder), "--served-model-name", DEFAULT_MODEL]  # the name in the question
        argv = [str(command.absolute()), "serve", "--port", str(port), *named, "--cache-bytes", "0", *options]
        with Server(argv, port, logs / "server.log") as server:
            took.append(server.wait_until_answering())
    return took[1:]


def corpus_lengths(count: int) -> list[int]:
    """Lengths distributed as in the corpus, in pseudo-random order."""
    lengths = [_at((i + 0.5) / count) for i in range(count)]
    random.Random(0).shuffle(lengths)
    return lengths


def _at(quantile: float) -> int:
    for (below, least), (above, most) in itertools.pairwise(SPREAD):
        if quantile <= above:
            return round(least + (most - least) * (quantile - below) / (above - below))
    raise AssertionError("quantiles end at 1")


# --- findings as rows -----------------------------------------------------------------------------------------


def rows(found: Mapping[str, Sequence[Any]]) -> list[Row]:
    dense, three, pairs, rerank = (best_rate(found[name]) for name in ("dense", "three", "pairs as texts", "rerank"))
    anonymous_gb = found["memory bge-m3"][0] / 1e9
    start_s = sorted(found["start"])[len(found["start"]) // 2]
    longest_s = min(measured["elapsed_s"] for measured in found["longest"])
    return [
        *_against_ceiling(found, "bge-m3", dense, 0.70),
        Row(what="dense, lexical and ColBERT", value=f"{three / dense:.2f} of dense", tokens_per_s=three,
            **at_least(three / dense, 0.95, "")),
        Row(what=f"rerank {PASSAGES} passages", value=f"{rerank / pairs:.2f} of embedding", tokens_per_s=rerank,
            **at_least(rerank / pairs, 1.0, "")),
        Row(what=f"one text of {LONGEST} tokens", value=f"{longest_s:.1f} s", tokens_per_s=LONGEST / longest_s),
        Row(what="bge-m3, anonymous memory, most", value=f"{anonymous_gb:.2f} GB", **at_most(anonymous_gb, 1.0, " GB")),
        Row(what="bge-m3, exec to first answer", value=f"{start_s:.2f} s", **at_most(start_s, 5.0, " s")),
        *_against_ceiling(found, "qwen3-embedding-0.6b", best_rate(found["qwen3"]), 0.60),
    ]  # fmt: skip


def _against_ceiling(found: Mapping[str, Sequence[Any]], name: str, rate: float, target: float) -> list[Row]:
    ceiling = max(found[f"ceiling {name}"], key=lambda measured: float(measured["tokens_per_s"]))
    facts = found[f"facts {name}"][0]
    share = rate / ceiling["tokens_per_s"]
    return [
        Row(
            what=f"matrix ceiling, {name}",
            value=f"{ceiling['gflop_per_s']:,.0f} GFLOP/s",
            tokens_per_s=ceiling["tokens_per_s"],
        ),
        Row(
            what=f"{name}, dense, {facts['dtype']}, {facts['streams']} streams",
            value=f"{share:.2f} of ceiling",
            tokens_per_s=rate,
            **at_least(share, target, ""),
        ),
    ]


def best_rate(rounds: Sequence[Mapping[str, Any]]) -> float:
    return max(float(measured["tokens"] / measured["elapsed_s"]) for measured in rounds)
