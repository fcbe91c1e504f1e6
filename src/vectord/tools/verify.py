"""Compare a served embedding model with references: stored vectors, published numbers, and libraries, if installed.

Requests go over HTTP (probe.py), so that the whole path of a request is verified. Each reference is one
finding; one that is not available is skipped, with the reason.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from vectord.checkpoints import catalogue
from vectord.errors import ConfigError, plain_reason
from vectord.tools.doctor.against import TEXTS
from vectord.tools.probe import FloatArray, ProbedRoute, ProbedServer, find_embed_route, row_cosines

GOLDEN_TEXTS = ("hello world", *TEXTS)
# Hub id -> (texts, D), of GOLDEN_TEXTS by sentence-transformers 6.2.0 in float32: `python -m tests.real.golden`.
GOLDEN = Path(__file__).with_name("golden.npz")
# The first numbers of the vector of "hello world" that FastEmbed's tests expect (tests/test_text_onnx_embeddings.py at
# commit 00e932f). Compared for models whose vectors have length 1 there.
FIRST_NUMBERS: Mapping[str, Sequence[float]] = {
    "BAAI/bge-small-en-v1.5": (0.01522374, -0.02271799, 0.00860278, -0.07424029, 0.00386434),
    "BAAI/bge-base-en-v1.5": (0.01129394, 0.05493144, 0.02615099, 0.00328772, 0.02996045),
    "BAAI/bge-large-en-v1.5": (0.03434538, 0.03316108, 0.02191251, -0.03713358, -0.01577825),
    "sentence-transformers/all-MiniLM-L6-v2": (-0.034478, 0.03102, 0.00673, 0.02611, -0.039362),
    "thenlper/gte-large": (-0.00986551, -0.00018734, 0.00605892, -0.03289612, -0.0387564),
    "mixedbread-ai/mxbai-embed-large-v1": (0.02295546, 0.03196154, 0.016512, -0.04031524, -0.0219634),
    "Qwen/Qwen3-Embedding-0.6B": (-0.02225659, 0.01872586, -0.01449341, -0.08536665, 0.01223033),
}
# Main scores in the repository embeddings-benchmark/results; STS12 of mpnet from another model's card, to 3 digits.
TASK_SCORES: Mapping[tuple[str, str], float] = {
    ("sentence-transformers/all-MiniLM-L6-v2", "STS12"): 0.72369,
    ("sentence-transformers/all-mpnet-base-v2", "STS12"): 0.726,
    ("sentence-transformers/all-mpnet-base-v2", "NFCorpus"): 0.33289,
}
TASK_TOLERANCE = 0.005
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
NUMBER_TOLERANCES = {
    "float32": 1e-3,
    "float16": 1e-3,
    "bfloat16": 5e-3,
    "int8-weights": 1e-2,
    "int8": 2e-2,
    "fp8": 2e-2,
    "int4-weights": 5e-2,
}
Verdict: TypeAlias = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class ReferenceResult:
    """The comparison with one reference."""

    name: str
    measured: str
    required: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class VerifiedModel:
    """The served model. hub_id: of the published model with its name; dtype: "unknown" for another product."""

    route: ProbedRoute
    hub_id: str
    dtype: str


def open_model(server: ProbedServer) -> VerifiedModel:
    """The first model of the server. Raises ConfigError if it returns no dense vectors."""
    name = server.find_model()
    route = find_embed_route(server, name)
    if route is None:
        raise ConfigError(f"{name or 'the model'} returns no dense vectors, and only those can be verified")
    answer = server.get("/vectord/models").json()
    rows = answer.get("models") if isinstance(answer, dict) else None
    facts = next((row for row in rows or () if isinstance(row, dict) and row.get("name") == name), {})
    model_id = str(facts.get("model_id") or name)
    entry = catalogue.find(model_id)
    return VerifiedModel(route, model_id if entry is None else entry.hub_id, str(facts.get("dtype") or "unknown"))


def verify(subject: VerifiedModel, folder: Path | None, tasks: Sequence[str]) -> Iterator[ReferenceResult]:
    """One finding for each reference.

    folder: of the model's files, for sentence-transformers; None if this machine has none.
    Raises ConfigError if the server does not embed the golden texts.
    """
    reply, vectors = subject.route.embed(GOLDEN_TEXTS)
    if vectors is None:
        raise ConfigError(f"the golden texts got no vectors: {reply.summary()}")
    with np.load(GOLDEN, allow_pickle=False) as stored:
        golden = stored.get(subject.hub_id)
    yield _compare("stored vectors", "none for this model", subject, vectors, golden)
    yield _compare_first_numbers(subject, vectors[0])
    expected, reason = _encode(folder)
    yield _compare("sentence-transformers", reason, subject, vectors, expected)
    for task in tasks:
        yield _run_task(subject, task)


def _compare(
    name: str, reason: str, subject: VerifiedModel, vectors: FloatArray, expected: FloatArray | None
) -> ReferenceResult:
    """reason: why `expected` is None."""
    if expected is None:
        return ReferenceResult(name, reason, "", "skipped")
    least = LEAST_COSINES.get(subject.dtype, LEAST_COSINES["bfloat16"])
    required = f"at least {least}"
    if vectors.shape != expected.shape:
        return ReferenceResult(name, f"{vectors.shape[1]} instead of {expected.shape[1]} numbers", required, "failed")
    found = row_cosines(vectors, expected)
    measured = f"least cosine {found.min():.6f} of {len(found)} texts"
    return ReferenceResult(name, measured, required, "passed" if found.min() >= least else "failed")


def _compare_first_numbers(subject: VerifiedModel, vector: FloatArray) -> ReferenceResult:
    expected = FIRST_NUMBERS.get(subject.hub_id)
    if expected is None:
        return ReferenceResult("FastEmbed's published numbers", "none for this model", "", "skipped")
    most = NUMBER_TOLERANCES.get(subject.dtype, NUMBER_TOLERANCES["bfloat16"])
    difference = float(np.abs(vector[: len(expected)] - expected).max())
    measured = f"{len(expected)} numbers, at most {difference:.6f} apart"
    verdict: Verdict = "passed" if difference <= most else "failed"
    return ReferenceResult("FastEmbed's published numbers", measured, f"at most {most}", verdict)


def _encode(folder: Path | None) -> tuple[FloatArray | None, str]:
    """The golden texts by sentence-transformers, in float32, or None and the reason."""
    if folder is None:
        return None, "the model's files are not on this machine"
    if importlib.util.find_spec("sentence_transformers") is None:
        return None, "not installed"
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"})
        vectors = model.encode(list(GOLDEN_TEXTS), normalize_embeddings=True, show_progress_bar=False)
    except Exception as cause:  # the library may raise anything for a model that it does not know
        return None, f"it cannot load the model: {str(cause)[:200]}"
    return np.asarray(vectors, np.float64), ""


# --- MTEB -----------------------------------------------------------------------------------------------------


def _run_task(subject: VerifiedModel, name: str) -> ReferenceResult:
    """The main score of a task through the server, compared with the published one."""
    shown = f"MTEB {name}"
    if importlib.util.find_spec("mteb") is None:
        return ReferenceResult(shown, "the package mteb is not installed", "", "skipped")
    import mteb  # noqa: PLC0415 - seconds

    try:
        task = mteb.get_task(name)
        task.load_data()
    except Exception as cause:  # datasets and huggingface_hub have many errors for missing data
        why = f"its data is not on this machine and cannot be downloaded ({plain_reason(cause)})"
        return ReferenceResult(shown, why, "", "skipped")
    from mteb.models import ModelMeta  # noqa: PLC0415

    model = TaskModel(subject.route, ModelMeta.create_empty({"name": f"vectord/{subject.hub_id.rpartition('/')[2]}"}))
    done = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    score = float(done.task_results[0].get_score())
    expected = TASK_SCORES.get((subject.hub_id, name))
    if expected is None:
        return ReferenceResult(shown, f"score {score:.5f}", "no published score is stored", "skipped")
    verdict: Verdict = "passed" if abs(score - expected) <= TASK_TOLERANCE else "failed"
    return ReferenceResult(shown, f"score {score:.5f}", f"{expected} ± {TASK_TOLERANCE}", verdict)


@dataclass(frozen=True, slots=True)
class TaskModel:
    """The server as a model of mteb (its EncoderProtocol)."""

    route: ProbedRoute
    mteb_model_meta: Any

    def encode(self, inputs: Any, **options: Any) -> FloatArray:
        """inputs: batches, each with its texts under "text". options: prompts, which the served model has itself."""
        rows: list[FloatArray] = []
        for batch in inputs:
            reply, vectors = self.route.embed(batch["text"])
            if vectors is None:
                raise ConfigError(f"a text of the task got no vector: {reply.summary()}")
            rows.append(vectors)
        return np.concatenate(rows)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """(N, M)"""
        from mteb.similarity_functions import cos_sim  # noqa: PLC0415 - torch

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """(N,)"""
        from mteb.similarity_functions import pairwise_cos_sim  # noqa: PLC0415 - torch

        return pairwise_cos_sim(embeddings1, embeddings2)
