"""What a job needs of whoever has the model. The engine in this process is one (in_process.py), a server another
(remote.py). Called on the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vectord.bulk.job import Job
from vectord.bulk.rows import Answer
from vectord.schema import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of the model, as far as they are known; written into a table's metadata."""

    model: str
    fingerprint: str
    model_id: str = ""
    revision: str | None = None
    pooling: str = ""
    dimensions: int = 0
    dtype: str = ""  # that it computes in
    backend: str = ""
    max_inputs: int = 2048  # of one request


class Embedder(Protocol):
    async def facts(self) -> Facts:
        """Of the model that will answer. Raises BulkFailed where there is none, Later where it is not ready yet."""
        ...

    async def embed(self, texts: Sequence[str]) -> Answer:
        """In order; a text that cannot be embedded fails alone. Raises Later, or BulkFailed for all of them."""
        ...


def precision_of(job: Job) -> Precision:
    """What the model's side is asked for: halves are made of float32 here."""
    return "float" if job.numbers in {"float32", "float16"} else job.numbers  # type: ignore[return-value]


def facts_of(found: Mapping[str, Any], max_inputs: int) -> Facts:
    """found: what /vectord/models says of one model, or the engine in the same words."""
    known = {name: found[name] for name in Facts.__dataclass_fields__ if name in found}
    return Facts(**{**known, "model": found["name"], "max_inputs": max_inputs})


def find_model(job: Job, models: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The one that the job names, else the first that gives what it wants. models: as in `facts_of`."""
    for one in models:
        if one["name"] == job.model or (job.model is None and job.outputs <= set(one["outputs"])):
            return one
    return None


def wanted(job: Job) -> str:
    """What `find_model` looked for, for messages."""
    return job.model or f"a model that makes {' and '.join(job.kinds)} vectors"


def without_place(message: str, index: int) -> str:
    """An error's message without the place that the text had in its request."""
    return message.replace(f"`inputs[{index}]`", "the text")
