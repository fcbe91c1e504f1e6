"""Search the lines of a file by meaning: find the best by their vectors, then rerank them.

    python examples/client.py notes.txt "when did it rain?"

Needs a running server (make serve) and, in the repository, pip install '.[client]'.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import vectord

CANDIDATES = 50


def search(client: vectord.Client, lines: list[str], question: str, top_n: int) -> list[tuple[float, str]]:
    """The best lines with their scores. Vectors have unit length, so their product is the cosine."""
    vectors = client.embed(lines, kind="document", truncate=True)
    query = client.embed(question, kind="query", truncate=True)
    nearest = np.argsort(-(vectors @ query))[:CANDIDATES]
    ranking = client.rerank(question, [lines[place] for place in nearest], top_n=top_n, truncate=True)
    return [(ranked.score, ranked.passage) for ranked in ranking]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path)
    options.add_argument("question")
    options.add_argument("--url", default="http://127.0.0.1:8000")
    options.add_argument("--key", help="the server's, if it has one")
    options.add_argument("--top", type=int, default=5)
    asked = options.parse_args()
    lines = [line for line in asked.file.read_text("utf-8").splitlines() if line.strip()]
    with vectord.Client(asked.url, api_key=asked.key) as client:
        for score, line in search(client, lines, asked.question, asked.top):
            print(f"{score:8.4f}  {line}")


if __name__ == "__main__":
    main()
