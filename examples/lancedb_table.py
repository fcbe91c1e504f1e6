"""LanceDB: a table that embeds rows when they are added, and queries.

    pip install lancedb ollama
    vectord serve
    python lancedb_table.py "when did it rain?"

VECTORD_URL and VECTORD_API_KEY name another server, and its key. Here the table is in this process's memory: a path for
"memory://" keeps it in files.
"""

# ruff: noqa: T201
from __future__ import annotations

import os
import sys

import lancedb
from lancedb.embeddings import get_registry
from lancedb.pydantic import LanceModel, Vector

URL = os.environ.get("VECTORD_URL", "http://127.0.0.1:8000")
os.environ.setdefault("OLLAMA_API_KEY", os.environ.get("VECTORD_API_KEY", "none is needed"))
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PASSAGES = [
    "The library opens at nine in the morning.",
    "A ticket for the night bus costs three euros.",
    "The bakery on the corner sells rye bread.",
    "Dogs must be on a lead in the park.",
    "The swimming pool is closed for repairs until May.",
    "Bicycles are lent at the station, for a day at most.",
    "The museum shows paintings of the seventeenth century.",
    "Rain is expected in the north on Sunday.",
]
QUESTION = "How much is public transport after midnight?"

# With Ollama's API, from which LanceDB learns the width of vectors; for OpenAI's API it only knows OpenAI's models.
embedding = get_registry().get("ollama").create(name=MODEL, host=URL)


class Passage(LanceModel):
    text: str = embedding.SourceField()
    vector: Vector(embedding.ndims()) = embedding.VectorField()


def main(question: str) -> None:
    table = lancedb.connect("memory://").create_table("passages", schema=Passage)
    table.add([{"text": passage} for passage in PASSAGES])
    for row in table.search(question).distance_type("cosine").limit(3).to_list():
        print(f"{1 - row['_distance']:.3f}  {row['text']}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else QUESTION)
