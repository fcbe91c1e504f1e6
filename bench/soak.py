"""Minutes of full load with texts of random length, and what the server keeps in memory meanwhile.

New lengths are what grows a runtime that keeps a plan a shape, so every stretch of load brings lengths of its own.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from bench.corpus import MAX_TOKENS, Corpus
from bench.http_load import Request, Round, embedding_request, run_load
from bench.report import Row, at_most
from bench.server_process import Server

CONNECTIONS = 32
STRETCH_S = 30.0
STRETCH_REQUESTS = 1024  # distinct ones; a stretch goes round them
MOST_TEXTS = 8  # a request
WARM_S = 120.0  # growth counts from here on


def soak(server: Server, corpus: Corpus, tokenizer_file: Path, minutes: float) -> tuple[list[Row], list[Round]]:
    """Load `server` for `minutes`, with one line on stderr for each stretch."""
    randomness = random.Random(0)
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.enable_truncation(MAX_TOKENS)
    start = time.perf_counter()
    sizes: list[tuple[float, int]] = []  # (seconds since the start, resident bytes)
    rounds: list[Round] = []
    while time.perf_counter() - start < minutes * 60:
        requests = random_requests(corpus.texts, tokenizer, randomness, STRETCH_REQUESTS)
        rounds.append(run_load(server.port, requests * 100, CONNECTIONS, STRETCH_S))
        sizes.append((time.perf_counter() - start, server.resident_bytes()))
        speed = f"{rounds[-1].tokens_per_s:,.0f} tokens/s"
        print(f"{sizes[-1][0]:6.0f} s  {sizes[-1][1] / 1e6:6.0f} MB  {speed}", file=sys.stderr)
    return _rows(sizes, rounds), rounds


def random_requests(texts: Sequence[str], tokenizer: Tokenizer, randomness: random.Random, count: int) -> list[Request]:
    """1 to MOST_TEXTS texts each, every text 1 to MAX_TOKENS words: the longest third has to be truncated."""
    words = " ".join(texts).split()
    requests = []
    for _ in range(count):
        some = []
        for _ in range(randomness.randint(1, MOST_TEXTS)):
            start = randomness.randrange(len(words))
            some.append(" ".join(words[start : start + randomness.randint(1, MAX_TOKENS)]))
        tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(some))
        requests.append(Request(embedding_request(some), len(some), tokens))
    return requests


def growth(sizes: Sequence[tuple[float, int]]) -> float | None:
    """How far memory rose above what it was at the end of the warm-up, as a share of it. None if it ended sooner."""
    later = [size for elapsed_s, size in sizes if elapsed_s >= WARM_S]
    return max(later) / later[0] - 1 if later else None


def _rows(sizes: Sequence[tuple[float, int]], rounds: Sequence[Round]) -> list[Row]:
    most_mb = max(size for _, size in sizes) / 1e6
    tokens_per_s = sum(r.tokens for r in rounds) / sum(r.elapsed_s for r in rounds)
    rows = [
        Row(what=f"full load for {sizes[-1][0] / 60:.1f} minutes", tokens_per_s=tokens_per_s),
        Row(what="resident, most", value=f"{most_mb:.0f} MB", **at_most(most_mb, 450, " MB")),
    ]
    grown = growth(sizes)
    if grown is not None:
        percent = 100 * grown
        rows.append(Row(what="growth after minute 2", value=f"{percent:+.1f} %", **at_most(percent, 10, " %")))
    return rows
