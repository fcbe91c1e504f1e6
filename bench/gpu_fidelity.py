"""Vectors under mixed load against those of the same texts alone, the longest texts at once, and SIGTERM under load. A
section of gpu.py."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Sequence

import numpy as np

from bench import soak
from bench.exchange import Connection
from bench.gpu_http import serving
from bench.gpu_options import Options, read_options
from bench.gpu_section import Say, attempt, speaker
from bench.gpu_shapes import Shape, shape_named
from bench.server_process import Server
from bench.soak_texts import Pool

TEXTS, LONG_TEXTS, QUICK_TEXTS = 160, 8, 12
LOADED_S, QUICK_S = 8.0, 1.0
UNDER_SIGTERM, TEXTS_OF_EACH, SENT_S = 20, 20, 0.15  # requests, and the time that they have before the signal


def measure(options: Options, found: Say) -> None:
    (name,) = options.models
    shape = shape_named(name, quick=options.quick)
    with serving(shape, options) as server:
        found("served", model=name, seconds=server.wait_until_answering(options.seconds))
        chance = random.Random(3)
        usual = _pool(server, shape, [_length(chance, shape) for _ in range(QUICK_TEXTS if options.quick else TEXTS)])
        long = _pool(server, shape, [shape.longest] * (2 if options.quick else LONG_TEXTS))
        with attempt(found, "the longest texts at once"):
            statuses = asyncio.run(_at_once(server, [[text] for text in long.texts]))
            found("at once", model=name, texts=len(long.texts), length=shape.longest, statuses=statuses)
        with attempt(found, "mixed load"):
            loaded = soak.load(server, usual, long, QUICK_S if options.quick else LOADED_S)
            found("fidelity", model=name, texts=loaded.texts, wrong=loaded.wrong, least_cosine=loaded.least_cosine,
                  statuses=dict(loaded.statuses), unanswered=loaded.unanswered,
                  tokens_per_s=loaded.tokens / loaded.elapsed_s,
                  p50_ms=float(np.percentile(loaded.latencies_ms, 50)),
                  p99_ms=float(np.percentile(loaded.latencies_ms, 99)))  # fmt: skip
        with attempt(found, "SIGTERM under load"):
            some = [chance.choices(usual.texts, k=TEXTS_OF_EACH) for _ in range(UNDER_SIGTERM)]
            statuses = asyncio.run(_at_once(server, some, ended=True))
            found(
                "SIGTERM", model=name, requests=len(some), statuses=statuses, exit=server.process.wait(options.seconds)
            )


def _length(chance: random.Random, shape: Shape) -> int:
    """Half are queries, a tenth is long."""
    most = shape.longest
    ranges = [(3, 20), (20, min(300, most)), (min(300, most), most)]
    return chance.randint(*chance.choices(ranges, [5, 4, 1])[0])


def _pool(server: Server, shape: Shape, lengths: Sequence[int]) -> Pool:
    """Texts of these lengths and their vectors, each alone."""
    texts = [shape.text(length, seed) for seed, length in enumerate(lengths)]
    vectors = np.array([server.embed([text])[0][0] for text in texts], np.float32)
    return Pool(texts, lengths, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


async def _at_once(server: Server, requests: Sequence[Sequence[str]], *, ended: bool = False) -> dict[int, int]:
    """The statuses of requests sent together, 0 for none. ended: the server receives SIGTERM meanwhile."""
    connections = [Connection(server.port, soak.PATIENCE_S) for _ in requests]
    asked = asyncio.gather(*(each.ask(soak.request(texts)) for each, texts in zip(connections, requests, strict=True)))
    if ended:
        await asyncio.sleep(SENT_S)
        server.process.send_signal(signal.SIGTERM)
    answers = await asked
    for connection in connections:
        connection.close()
    return dict(Counter(answer.status for answer in answers))


if __name__ == "__main__":
    measure(read_options(), speaker())
