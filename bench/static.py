"""A static table in process by vectord, model2vec and sentence-transformers: the same calls, in alternating rounds.

A library that cannot read the folder has no rows. Texts are short, so that no library truncates them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from bench.corpus import Corpus
from bench.report import Row, at_least
from vectord import Embedder

WORDS = 14
CALLS = {1: 200, 32: 40, 1024: 4}  # texts a call -> calls a round


def measure(corpus: Corpus, folder: Path, rounds: int) -> Mapping[str, Sequence[float]]:
    """By texts a call and library, the microseconds a text in each round: of the round's middle call."""
    texts = cycle([" ".join(text.split()[:WORDS]) for text in corpus.texts])
    found: dict[str, list[float]] = {}
    with Embedder(str(folder), offline=True) as embedder:
        libraries = {"vectord": embedder.embed, **_peers(folder)}
        for encode in libraries.values():  # warm
            for size in (1024, 1024, 1):
                encode([*islice(texts, size)])
        for _ in range(rounds):
            for size, calls in CALLS.items():
                for name, encode in libraries.items():
                    seconds = [_seconds(encode, [*islice(texts, size)]) for _ in range(calls)]
                    found.setdefault(f"{name}, {size} a call", []).append(statistics.median(seconds) / size * 1e6)
    return found


def _peers(folder: Path) -> dict[str, Callable[[list[str]], Any]]:
    from model2vec import StaticModel  # noqa: PLC0415 - peers are imported where they run
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    peers: dict[str, Callable[[list[str]], Any]] = {}
    if (folder / "config.json").exists():
        peers["model2vec"] = StaticModel.from_pretrained(folder).encode
    if (folder / "modules.json").exists():
        peers["sentence-transformers"] = SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode
    return peers


def _seconds(encode: Callable[[list[str]], Any], texts: list[str]) -> float:
    began_s = time.perf_counter()
    encode(texts)
    return time.perf_counter() - began_s


def rows(found: Mapping[str, Sequence[float]]) -> list[Row]:
    """Best rounds."""
    best = {name: min(us) for name, us in found.items()}
    shown = [Row(what=name, value=f"{us:.1f} us a text") for name, us in best.items()]
    for name, us in best.items():
        library, calls = name.split(", ")
        if library != "vectord":
            ratio = us / best[f"vectord, {calls}"]
            shown.append(
                Row(what=f"{calls}, faster than {library}", value=f"{ratio:.2f} x", **at_least(ratio, 1, " x"))
            )
    return shown
