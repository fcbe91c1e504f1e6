"""PostgreSQL with pgvector: vectors in a column, and an index for nearest neighbours.

    pip install 'psycopg[binary]' pgvector openai numpy
    vectord serve
    python postgres_pgvector.py "when did it rain?"

VECTORD_URL and VECTORD_API_KEY name another server, and its key, DATABASE_URL the database, in which the extension
`vector` must be there to create. The table lasts as long as the connection.
"""

# ruff: noqa: T201
from __future__ import annotations

import os
import sys

import numpy as np
import psycopg
from openai import OpenAI
from pgvector.psycopg import register_vector

URL = os.environ.get("VECTORD_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("VECTORD_API_KEY", "none is needed")
DATABASE = os.environ.get("DATABASE_URL", "postgresql://127.0.0.1/postgres")
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


def embed(texts: list[str]) -> list[np.ndarray]:
    with OpenAI(base_url=f"{URL}/v1", api_key=KEY) as client:
        answer = client.embeddings.create(model=MODEL, input=texts)
    return [np.array(item.embedding, np.float32) for item in answer.data]


def store(connection: psycopg.Connection, passages: list[str]) -> None:
    vectors = embed(passages)
    connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    register_vector(connection)
    connection.execute(f"CREATE TEMPORARY TABLE passages (text text, vector vector({len(vectors[0])}))")
    with connection.cursor().copy("COPY passages (text, vector) FROM STDIN WITH (FORMAT BINARY)") as copy:
        copy.set_types(["text", "vector"])
        for row in zip(passages, vectors, strict=True):
            copy.write_row(row)
    connection.execute("CREATE INDEX ON passages USING hnsw (vector vector_cosine_ops)")


def search(connection: psycopg.Connection, question: str, limit: int) -> list[tuple[float, str]]:
    (vector,) = embed([question])
    nearest = "SELECT 1 - (vector <=> %(it)s), text FROM passages ORDER BY vector <=> %(it)s LIMIT %(limit)s"
    return connection.execute(nearest, {"it": vector, "limit": limit}).fetchall()


def main(question: str) -> None:
    with psycopg.connect(DATABASE) as connection:
        store(connection, PASSAGES)
        for score, passage in search(connection, question, limit=3):
            print(f"{score:.3f}  {passage}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else QUESTION)
