"""pylate's results for a ColBERT folder: token vectors of queries and documents, and their MaxSim scores.

    python pylate_colbert.py MODEL_FOLDER INPUTS.json ANSWERS.npz

Run by tests/reference/references.py in the reference environment. INPUTS.json has the arguments of `encode`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from pylate.models import ColBERT
from pylate.scores import colbert_scores
from ragged import pack


def encode(folder: str, queries: list[str], documents: list[str]) -> dict[str, np.ndarray]:
    """Return queries and documents, ragged, (R, D), and scores (queries, documents): each pair alone."""
    model = ColBERT(folder, device="cpu", local_files_only=True)
    query_rows = model.encode(queries, is_query=True)
    document_rows = model.encode(documents, is_query=False)
    scores = [[colbert_scores(query[None], document[None]) for document in document_rows] for query in query_rows]
    return {
        **pack("queries", query_rows),
        **pack("documents", document_rows),
        "scores": np.array(scores, np.float32).reshape(len(queries), len(documents)),
    }


def main(folder: str, inputs: str, answers: str) -> None:
    np.savez(answers, **encode(folder, **json.loads(Path(inputs).read_text())))


if __name__ == "__main__":
    main(*sys.argv[1:])
