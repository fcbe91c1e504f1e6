"""The served models by name: what is known of each, whether it is loaded, and who answers for it.

Owned by the event loop. compose.py makes the ModelSources, loading.py brings them to life, engine.py resolves names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from vectord.artifacts.spec import ModelSpec
from vectord.backends.base import Backend
from vectord.engine.encoding import Encoder
from vectord.engine.runner import ModelRunner
from vectord.errors import ModelNotFound, Unavailable
from vectord.schema import ModelInfo

State: TypeAlias = Literal["loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model to serve. `load` blocks: a thread calls it, once; it raises ModelUnavailable with the reason."""

    name: str  # the served name
    aliases: tuple[str, ...]  # further names clients may use
    spec: ModelSpec
    load: Callable[[], tuple[Encoder, Backend]]


class Served:
    """One model and its state. `runner` is there from the self-test on, `ready` only after it."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.state: State = "loading"
        self.failure = ""  # the kind of what went wrong; the log has the rest
        self.runner: ModelRunner | None = None
        self.created_unix_s = int(time.time())

    @property
    def name(self) -> str:
        return self.source.name

    def ready_runner(self) -> ModelRunner:
        """Raises Unavailable while the model loads, and for good if it failed to."""
        if self.state == "ready" and self.runner is not None:
            return self.runner
        if self.state == "failed":
            raise Unavailable(f"The model {self.name} could not be loaded ({self.failure}).")
        raise Unavailable(f"The model {self.name} is still loading.")

    def info(self) -> ModelInfo:
        spec = self.source.spec
        facts = self.runner.backend.facts if self.runner else None
        return ModelInfo(
            name=self.name,
            model_id=spec.model_id,
            revision=spec.revision,
            fingerprint=spec.fingerprint,
            architecture=spec.model_type,
            pooling=spec.pooling,
            dimensions=spec.dimensions,
            max_input_tokens=spec.max_tokens,
            dtype=facts.dtype if facts else "unknown",
            device=facts.device if facts else "unknown",
            backend=facts.name if facts else "unknown",
            state=self.state,
            created_unix_s=self.created_unix_s,
            prompts=spec.prompts,
        )


class Registry:
    def __init__(self, sources: Sequence[ModelSource]) -> None:
        """The first source is the default model. Raises ValueError if a name is taken twice: compose sees to that."""
        self.models = [Served(source) for source in sources]
        self._by_name: dict[str, Served] = {}
        for served in self.models:
            for name in (served.name, *served.source.aliases):
                if self._by_name.setdefault(name, served) is not served:
                    raise ValueError(f"two models are served as {name}")

    def resolve(self, name: str | None) -> Served:
        """The model of that name or alias; None: the default. Raises ModelNotFound, which lists what is served."""
        served = self.models[0] if name is None else self._by_name.get(name)
        if served is None:
            names = ", ".join(served.name for served in self.models)
            raise ModelNotFound(f"No such model is served here. Served: {names}.", field="model")
        return served

    def readiness(self) -> dict[str, str]:
        """Served name -> loading, ready, failed, or stalled: loaded, but a worker thread has just died."""
        return {served.name: _health(served) for served in self.models}


def _health(served: Served) -> str:
    if served.state == "ready" and served.runner is not None and served.runner.stalled:
        return "stalled"
    return served.state
