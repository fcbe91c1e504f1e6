"""OpenAI's SDK: the passages closest to a question, by cosine.

    pip install openai numpy
    vectord serve
    python openai_sdk.py "when did it rain?"

VECTORD_URL and VECTORD_API_KEY name another server, and its key.
"""

# ruff: noqa: T201
from __future__ import annotations

import os
import sys

import numpy as np
from openai import OpenAI

URL = os.environ.get("VECTORD_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("VECTORD_API_KEY", "none is needed")
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


def embed(client: OpenAI, texts: list[str]) -> np.ndarray:
    """(N, D), with unit length."""
    answer = client.embeddings.create(model=MODEL, input=texts)
    return np.array([item.embedding for item in answer.data])


def main(question: str) -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)
    scores = embed(client, PASSAGES) @ embed(client, [question])[0]
    for place in np.argsort(-scores)[:3]:
        print(f"{scores[place]:.3f}  {PASSAGES[place]}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else QUESTION)
