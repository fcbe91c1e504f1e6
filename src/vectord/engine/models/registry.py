"""The served models by name: what is known of each, whether it is loaded, and who answers for it.

Owned by the event loop. compose.py makes the ModelSources and Composites, lifecycle.py brings them to life, engine.py
resolves names.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import Backend
from vectord.engine.queue.batch import Kind
from vectord.engine.queue.execution import output_of
from vectord.engine.queue.runner import ModelRunner
from vectord.errors import ModelCannot, ModelNotFound, Unavailable
from vectord.schema import ModelInfo, VectorKind
from vectord.text.sequence import Encoder

State: TypeAlias = Literal["unloaded", "loading", "ready", "failed"]

VECTORS: frozenset[VectorKind] = frozenset({"dense", "sparse", "colbert", "tokens"})


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model to serve. `load` blocks: a thread calls it; it raises ModelUnavailable with the reason."""

    name: str  # the served name
    aliases: tuple[str, ...]  # further names clients may use
    spec: ModelSpec
    load: Callable[[], tuple[Encoder, Sequence[Backend]]]  # a backend a device
    pinned: bool = False  # loaded at start and never unloaded to make room
    memory_bytes: int = 0  # an estimate of what it holds while loaded


@dataclass(frozen=True, slots=True)
class CompositeSource:
    """One name over several models, each for some of the vectors."""

    name: str
    members: Mapping[VectorKind, str]  # served names


class ServedModel:
    """One model and its state. `runner` is there from the self-test on, `ready` only after it."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.state: State = "unloaded"
        self.failure = ""  # the kind of what went wrong; the log has the rest
        self.runner: ModelRunner | None = None
        self.users = 0  # requests that have it in their hands
        self.used_s = 0.0  # when the last of them let go, on the clock of lifecycle.py
        self.created_unix_s = int(time.time())
        self.kinds: frozenset[Kind] = frozenset(output_of(source.spec))

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def spec(self) -> ModelSpec:
        return self.source.spec

    @property
    def fingerprint(self) -> str:
        return self.spec.fingerprint

    @property
    def lead(self) -> ServedModel:
        """Itself: see Composite."""
        return self

    def ready_runner(self) -> ModelRunner:
        """Raises Unavailable while the model loads, and if it failed to."""
        if self.state == "ready" and self.runner is not None:
            return self.runner
        if self.state == "failed":
            raise Unavailable(f"The model {self.name} could not be loaded ({self.failure}).")
        raise Unavailable(f"The model {self.name} is still loading.")

    def parts(self, kinds: frozenset[VectorKind]) -> list[tuple[ServedModel, frozenset[VectorKind]]]:
        """Which model makes which of the vectors: itself, all. Raises ModelCannot for one it does not make."""
        require(self, kinds)
        return [(self, kinds)]

    def info(self) -> ModelInfo:
        spec = self.spec
        facts = self.runner.facts if self.runner else None
        return ModelInfo(
            name=self.name,
            model_id=spec.model_id,
            revision=spec.revision,
            fingerprint=spec.fingerprint,
            architecture=spec.model_type,
            outputs=frozenset(kind for kind in VECTORS if kind in self.kinds),
            reranks="scores" in self.kinds and spec.reranks,
            labels=spec.labels,
            pooling=spec.pooling or "",
            dimensions=spec.dimensions,
            matryoshka=spec.matryoshka,
            max_input_tokens=spec.max_tokens,
            dtype=facts.dtype if facts else "unknown",
            device=facts.device if facts else "unknown",
            devices=dict(self.runner.devices) if self.runner else {},
            backend=facts.name if facts else "unknown",
            state=_health(self),
            pinned=self.source.pinned,
            created_unix_s=self.created_unix_s,
            prompts=spec.prompts,
        )


class Composite:
    """A composite whose members are known."""

    def __init__(self, name: str, members: Mapping[VectorKind, ServedModel]) -> None:
        self.name = name
        self.members = members

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset(self.members)

    @property
    def lead(self) -> ServedModel:
        """Who answers what is asked of one model: the one that makes its dense vectors, else its first."""
        return self.members.get("dense") or next(iter(self.members.values()))

    @property
    def fingerprint(self) -> str:
        spaces = sorted(f"{kind}={member.fingerprint}" for kind, member in self.members.items())
        return hashlib.sha256("+".join(spaces).encode()).hexdigest()[:16]

    def parts(self, kinds: frozenset[VectorKind]) -> list[tuple[ServedModel, frozenset[VectorKind]]]:
        """Which model makes which of the vectors, each model once. Raises ModelCannot for one that none makes."""
        require(self, kinds)
        asked: dict[ServedModel, set[VectorKind]] = {}
        for kind in sorted(kinds):
            asked.setdefault(self.members[kind], set()).add(kind)
        return [(served, frozenset(own)) for served, own in asked.items()]

    def info(self) -> ModelInfo:
        """That of its lead under its own name, with the vectors of all members; ready once all of them are."""
        states = [_health(member) for member in self.members.values()]
        return replace(
            self.lead.info(),
            name=self.name,
            fingerprint=self.fingerprint,
            outputs=frozenset(self.members),
            sources={kind: member.name for kind, member in self.members.items()},
            state=next((state for state in states if state != "ready"), "ready"),
        )


ModelOrComposite: TypeAlias = ServedModel | Composite
Allowed: TypeAlias = frozenset[str] | None  # names a caller may use; None: all


def require(target: ModelOrComposite, kinds: frozenset[VectorKind]) -> None:
    """Raises ModelCannot if the model does not make all of these vectors."""
    if kinds <= target.kinds:
        return
    missing = min(kind for kind in kinds if kind not in target.kinds)
    made = sorted(kind for kind in VECTORS if kind in target.kinds)
    makes = f"it makes {' and '.join(made)} vectors" if made else "it makes none: it scores texts"
    raise ModelCannot(f"The model {target.name} makes no {missing} vectors; {makes}.", field="model")


class Registry:
    def __init__(self, sources: Sequence[ModelSource], composites: Sequence[CompositeSource] = ()) -> None:
        """Earlier models are preferred where a request names none. Raises ValueError if a name is taken twice or a
        composite names a model that is not here: compose sees to that."""
        self.models = [ServedModel(source) for source in sources]
        self._by_name: dict[str, ModelOrComposite] = {}
        for served in self.models:
            for name in (served.name, *served.source.aliases):
                self._enter(name, served)
        self.targets: list[ModelOrComposite] = [*self.models]  # every model and composite, once, in order
        for composite in composites:
            target = Composite(composite.name, self._members(composite))
            self._enter(target.name, target)
            self.targets.append(target)

    def resolve(
        self, name: str | None, can: Callable[[ModelOrComposite], bool], what: str, allowed: Allowed = None
    ) -> ModelOrComposite:
        """The model of that name or alias; without one, the first that `can`.

        Raises ModelNotFound, which lists what is served; ModelCannot if no served model does `what`.
        """
        if name is not None:
            return self.named(name, allowed)
        for target in self.seen_by(allowed):
            if can(target):
                return target
        raise ModelCannot(f"No model served here can {what}.")

    def seen_by(self, allowed: Allowed) -> Sequence[ModelOrComposite]:
        """Every model and composite that has one of these names, in order. To who may use no others, none are there."""
        if allowed is None:
            return self.targets
        wanted = {id(self._by_name[name]) for name in allowed if name in self._by_name}
        return [target for target in self.targets if id(target) in wanted]

    def named(self, name: str, allowed: Allowed = None) -> ModelOrComposite:
        """Raises ModelNotFound, which lists what is served."""
        target = self._by_name.get(name)
        seen = self.seen_by(allowed)
        if target is None or (allowed is not None and target not in seen):
            names = ", ".join(target.name for target in seen) or "none"
            raise ModelNotFound(f"No such model is served here. Served: {names}.", field="model")
        return target

    def names(self) -> dict[str, str]:
        """Names and aliases -> the served name."""
        return {name: target.name for name, target in self._by_name.items()}

    def readiness(self) -> dict[str, str]:
        """Served name -> unloaded, loading, ready, failed, or stalled: loaded, but a worker thread has just died."""
        return {served.name: _health(served) for served in self.models}

    def _enter(self, name: str, target: ModelOrComposite) -> None:
        if self._by_name.setdefault(name, target) is not target:
            raise ValueError(f"two models are served as {name}")

    def _members(self, composite: CompositeSource) -> dict[VectorKind, ServedModel]:
        members: dict[VectorKind, ServedModel] = {}
        for kind, name in composite.members.items():
            member = self._by_name.get(name)
            if not isinstance(member, ServedModel) or kind not in member.kinds:
                raise ValueError(f"composite {composite.name}: no served model {name} makes {kind} vectors")
            members[kind] = member
        return members


def _health(served: ServedModel) -> State | Literal["stalled"]:
    if served.state == "ready" and served.runner is not None and served.runner.stalled:
        return "stalled"
    return served.state
