"""Compare a model's vectors with references: stored vectors, and the library sentence-transformers, if installed.

A reference that is not available is "not offered", with the reason.
"""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from vectord.checkpoints import catalogue
from vectord.tools.doctor.against import TEXTS
from vectord.tools.probe import FloatArray, row_cosines

GOLDEN_TEXTS = ("hello world", *TEXTS)
# Hub id -> (texts, D), of GOLDEN_TEXTS by sentence-transformers 6.2.0 in float32: `python -m tests.real.golden`.
GOLDEN = Path(__file__).with_name("golden.npz")
# By dtype of the served model. Measured: make test-real, and python -m bench precision.
LEAST_COSINES = {
    "float32": 0.99999,
    "float16": 0.9999,
    "bfloat16": 0.999,
    "int8-weights": 0.99,
    "int8": 0.97,
    "fp8": 0.97,
    "int4-weights": 0.9,
}
Verdict: TypeAlias = Literal["passed", "failed", "not offered"]


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    verdict: Verdict
    why: str = ""


def compare_with_stored(model_id: str, dtype: str, vectors: FloatArray) -> Finding:
    """vectors (texts, D): of GOLDEN_TEXTS, by a model of this dtype. A folder with a model's name counts as it."""
    entry = catalogue.find(model_id)
    with np.load(GOLDEN, allow_pickle=False) as stored:
        expected = stored.get(model_id if entry is None else entry.hub_id)
    name = "the stored vectors of sentence-transformers"
    return (
        Finding(name, "not offered", "none of this model")
        if expected is None
        else _compare(name, dtype, vectors, expected)
    )


def compare_with_library(folder: Path | None, dtype: str, vectors: FloatArray) -> Finding:
    """folder: of the model's files; None if this machine has none. Loads the model in float32, which takes seconds."""
    name = "sentence-transformers"
    if folder is None:
        return Finding(name, "not offered", "the model's files are not on this machine")
    if importlib.util.find_spec("sentence_transformers") is None:
        return Finding(name, "not offered", "not installed")
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"})
        expected = model.encode(list(GOLDEN_TEXTS), normalize_embeddings=True, show_progress_bar=False)
    except Exception as cause:  # the library may raise anything for a model that it does not know
        return Finding(name, "not offered", f"it cannot load the model: {str(cause)[:200]}")
    return _compare(name, dtype, vectors, np.asarray(expected, np.float64))


def _compare(name: str, dtype: str, vectors: FloatArray, expected: FloatArray) -> Finding:
    least = LEAST_COSINES.get(dtype, LEAST_COSINES["bfloat16"])
    if vectors.shape != expected.shape:
        return Finding(name, "failed", f"{vectors.shape[1]} instead of {expected.shape[1]} numbers")
    found = row_cosines(vectors, expected)
    why = f"least cosine {found.min():.6f} of {len(found)} texts, required {least} in {dtype}"
    return Finding(name, "passed" if found.min() >= least else "failed", why)
