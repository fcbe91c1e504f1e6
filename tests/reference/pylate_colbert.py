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
    """For NAME in queries, documents, ragged: NAME (R, D); NAME_ids, NAME_attended and NAME_kept, one for each token.

    _ids are the model's input ids, expansion tokens included; _attended is its attention mask; rows of NAME belong to
    the _kept tokens, in order. scores (queries, documents): each pair alone.
    """
    model = ColBERT(folder, device="cpu", local_files_only=True)
    query_rows = model.encode(queries, is_query=True)
    document_rows = model.encode(documents, is_query=False)
    scores = [[colbert_scores(query[None], document[None]) for document in document_rows] for query in query_rows]
    return {
        **pack("queries", query_rows),
        **pack("documents", document_rows),
        **tokens(model, "queries", queries, is_query=True),
        **tokens(model, "documents", documents, is_query=False),
        "scores": np.array(scores, np.float32).reshape(len(queries), len(documents)),
    }


def tokens(model: ColBERT, name: str, texts: list[str], *, is_query: bool) -> dict[str, np.ndarray]:
    """Return the tokens of the rows of `name`. One text at a time, because a batch would pad shorter ones."""
    seen = model.encode(texts, is_query=is_query, batch_size=1, output_value=None)
    return {
        **pack(f"{name}_ids", seen["input_ids"]),
        **pack(f"{name}_attended", [mask.astype(bool) for mask in seen["attention_mask"]]),
        **pack(f"{name}_kept", seen["masks"]),
    }


def main(folder: str, inputs: str, answers: str) -> None:
    np.savez(answers, **encode(folder, **json.loads(Path(inputs).read_text())))


if __name__ == "__main__":
    main(*sys.argv[1:])
