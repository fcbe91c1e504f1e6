"""The served models by name: the facts and the state of each.

On the event loop. opening.py creates a ModelSource for each model, lifecycle.py loads models, and engine.py resolves
names.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import Backend
from vectord.errors import (
    ModelCannot,
    ModelFailed,
    ModelNotFound,
    ModelUnavailable,
    Unavailable,
    VectordError,
    similar_name,
)
from vectord.schema import VECTOR_KINDS, AnswerKind, ModelInfo, TextOptions, VectorKind
from vectord.text.sequence import Encoder

if TYPE_CHECKING:  # asyncio and the queue: imported while the first model loads
    from vectord.engine.queue.runner import ModelRunner

State: TypeAlias = Literal["unloaded", "loading", "ready", "failed"]
REASON_CHARACTERS = 500  # of a failure; device libraries write pages
NOT_SERVED = (
    "No such model is served here.{hint} Served: {served}. The option --model-aliases NAME=MODEL serves a model under "
    "a further name."
)


class ModelSource(msgspec.Struct, frozen=True):
    """A model to serve. `load` and `reopen` block and raise ModelUnavailable; a thread calls them."""

    name: str  # the served name
    aliases: tuple[str, ...]  # further names clients may use
    spec: ModelSpec
    load: Callable[[], tuple[Encoder, Sequence[Backend]]]  # one backend per device
    pinned: bool = False  # loaded at start and never unloaded to make room
    memory_bytes: int = 0  # an estimate, while loaded
    queries: ModelSource | None = None  # of a model with a network of its own for queries
    images: ModelSource | None = None  # of a model with a network for images, if Pillow is installed
    failure: ModelUnavailable | None = None  # why its files could not be read; `spec` then has no facts
    reopen: Callable[[], ModelSource] | None = None  # reads those files again


class CompositeSource(msgspec.Struct, frozen=True):
    """The configuration of a Composite."""

    name: str
    members: Mapping[VectorKind, str]  # served names


class ServedModel:
    """One model and its state. `runner` exists from the self-test on; the state is `ready` only after it."""

    def __init__(self, source: ModelSource) -> None:
        self.runner: ModelRunner | None = None
        self.users = 0  # requests that use it now
        self.used_s = 0.0  # when the last of them ended, by the clock of lifecycle.py
        self.created_unix_s = int(time.time())
        self.open(source)

    def open(self, source: ModelSource) -> None:
        """Take the facts of its files, as read at the start, or again after they could not be read."""
        self.source = source
        self.is_open = source.failure is None  # whether its files could be read, so that its facts are known
        self.name, self.spec, self.fingerprint = source.name, source.spec, source.spec.fingerprint
        self.usual_space = f"{source.spec.fingerprint}{source.spec.width_of_space(None)}"
        self.state: State = "unloaded" if source.failure is None else "failed"
        self.failure: Exception | None = source.failure  # of the last attempt to open or load it; None: it succeeded
        self.queries = None if source.queries is None else ServedModel(source.queries)
        self.images = None if source.images is None else ServedModel(source.images)
        self.kinds: frozenset[AnswerKind] = frozenset(source.spec.kinds)

    @property
    def able(self) -> frozenset[AnswerKind]:
        """The kinds of answers that it can give now: none once it has failed, until a load succeeds."""
        return self.kinds if self.failure is None else frozenset()

    @property
    def lead(self) -> ServedModel:
        """Itself: see Composite."""
        return self

    @property
    def further(self) -> list[ServedModel]:
        """Its networks for other inputs than texts of documents, which load and unload on their own."""
        return [each for each in (self.queries, self.images) if each is not None]

    def reader_of(self, options: TextOptions) -> ServedModel:
        """The model that reads such texts: `queries`, or itself."""
        return self.queries if self.queries is not None and self.spec.is_query(options) else self

    def ready_runner(self) -> ModelRunner:
        """Raises Unavailable while the model loads, and ModelFailed if it could not be loaded."""
        if self.state == "ready" and self.runner is not None:
            return self.runner
        if self.state == "failed":
            raise ModelFailed(
                "The model {model} could not be loaded: {reason}", model=self.name, reason=reason_of(self.failure)
            )
        raise Unavailable("The model {model} is still loading.", model=self.name)

    def parts(self, kinds: frozenset[VectorKind]) -> list[tuple[ServedModel, frozenset[VectorKind]]]:
        """Which model computes which vectors: here, this one all. Raises ModelCannot for unsupported ones."""
        require(self, kinds)
        return [(self, kinds)]

    def info(self) -> ModelInfo:
        spec = self.spec
        facts = self.runner.facts if self.runner else None
        return ModelInfo(
            name=self.name,
            model_id=spec.model_id,
            revision=spec.revision,
            fingerprint=self.usual_space,
            architecture=spec.model_type,
            outputs=frozenset(kind for kind in VECTOR_KINDS if kind in self.kinds),
            reranks="scores" in self.kinds and spec.reranks,
            labels=spec.labels,
            pooling=spec.pooling_name,
            dimensions=spec.usual_dimensions,
            full_dimensions=spec.dimensions,
            matryoshka=spec.matryoshka,
            max_input_tokens=spec.max_tokens,
            modalities=("text", "image") if spec.reads_images else ("text",),
            dtype=facts.dtype if facts else "unknown",
            device=facts.device if facts else "unknown",
            devices=dict(self.runner.worker.states) if self.runner else {},
            backend=facts.name if facts else "unknown",
            state=_health(self),
            pinned=self.source.pinned,
            created_unix_s=self.created_unix_s,
            prompts=spec.prompts,
            gpu=facts.gpu if facts else None,
            adapters=[adapter.name for adapter in spec.adapters],
            token_labels=spec.token_labels,
            aliases=self.source.aliases,
            failure=reason_of(self.failure),
        )


class Use(msgspec.Struct):
    """A model in use. A class, because a generator's context manager takes 4 us of a request's 90."""

    served: ServedModel
    find_runner: Callable[[ServedModel], Awaitable[ModelRunner]]
    now_s: Callable[[], float]

    async def __aenter__(self) -> ModelRunner:
        served = self.served
        served.users += 1  # before its state is read, so that it is not unloaded in between
        if served.state == "ready" and served.runner is not None:
            return served.runner
        try:
            return await self.find_runner(served)
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *error: object) -> None:
        self.served.users -= 1
        self.served.used_s = self.now_s()


UseModel: TypeAlias = Callable[[ServedModel], Use]


class Composite:
    """One name for several models, each of which computes some of the vectors."""

    def __init__(self, name: str, members: Mapping[VectorKind, ServedModel]) -> None:
        self.name = name
        self.members = members

    @property
    def kinds(self) -> frozenset[AnswerKind]:
        return frozenset(kind for kind, member in self.members.items() if kind in member.kinds or not member.is_open)

    @property
    def is_open(self) -> bool:
        """Whether the files of all members could be read."""
        return all(member.is_open for member in self.members.values())

    @property
    def able(self) -> frozenset[AnswerKind]:
        """The kinds whose models have not failed."""
        return frozenset(kind for kind, member in self.members.items() if kind in member.able)

    @property
    def lead(self) -> ServedModel:
        """The member for requests to a single model: that of the dense vectors, else the first."""
        return self.members.get("dense") or next(iter(self.members.values()))

    @property
    def fingerprint(self) -> str:
        spaces = sorted(f"{kind}={member.fingerprint}" for kind, member in self.members.items())
        return hashlib.sha256("+".join(spaces).encode()).hexdigest()[:16]

    def parts(self, kinds: frozenset[VectorKind]) -> list[tuple[ServedModel, frozenset[VectorKind]]]:
        """Which member computes which vectors. Raises ModelCannot for unsupported ones."""
        require(self, kinds)
        kinds_of: dict[ServedModel, set[VectorKind]] = {}
        for kind in sorted(kinds):
            kinds_of.setdefault(self.members[kind], set()).add(kind)
        return [(served, frozenset(own)) for served, own in kinds_of.items()]

    def info(self) -> ModelInfo:
        """The lead's facts with this name and the vectors of all members. Ready when all members are."""
        states = [_health(member) for member in self.members.values()]
        return replace(
            self.lead.info(),
            name=self.name,
            fingerprint=f"{self.fingerprint}{self.lead.spec.width_of_space(None)}",
            outputs=frozenset(self.members),
            sources={kind: member.name for kind, member in self.members.items()},
            aliases=(),
            failure="; ".join(
                dict.fromkeys(
                    f"{member.name}: {reason_of(member.failure)}" for member in self.members.values() if member.failure
                )
            ),
            state=next((state for state in states if state != "ready"), "ready"),
        )


ModelOrComposite: TypeAlias = ServedModel | Composite
Requirement: TypeAlias = Callable[[ModelOrComposite, frozenset[AnswerKind]], bool]  # with these kinds of answers
Allowed: TypeAlias = frozenset[str] | None  # names a caller may use; None: all


def require(target: ModelOrComposite, kinds: frozenset[VectorKind]) -> None:
    """Raises ModelCannot if the model does not compute all of these vectors."""
    if kinds <= target.kinds:
        return
    missing = min(kind for kind in kinds if kind not in target.kinds)
    made = sorted(kind for kind in VECTOR_KINDS if kind in target.kinds)
    makes = f"it makes {' and '.join(made)} vectors" if made else "it makes none: it scores texts"
    raise ModelCannot(
        "The model {model} makes no {kind} vectors; {makes}.",
        field="model",
        model=target.name,
        kind=missing,
        makes=makes,
    )


class Registry:
    def __init__(self, sources: Sequence[ModelSource], composites: Sequence[CompositeSource] = ()) -> None:
        """Requests without a model name go to earlier models first. Raises ValueError for a name used twice, which
        `open_models` and `open_composites` prevent."""
        served_models = [ServedModel(source) for source in sources]
        # With those that read the queries or the images of another, under which they are found.
        self.models = [*served_models, *(each for served in served_models for each in served.further)]
        self._by_name: dict[str, ModelOrComposite] = {}
        for served in served_models:
            for name in (served.name, *served.source.aliases):
                self._enter(name, served)
        # MODEL:ADAPTER -> (MODEL, ADAPTER) of every name of the models at start; a pulled one has none.
        self._adapters = {
            f"{name}:{adapter.name}": (name, adapter.name)
            for name, served in sorted(self._by_name.items(), key=lambda item: len(item[0]), reverse=True)
            for adapter in served.lead.spec.adapters
        }
        self.targets: list[ModelOrComposite] = [*served_models]  # every model and composite, once, in order
        by_name = {served.name: served for served in served_models}
        for composite in composites:
            target = Composite(composite.name, {kind: by_name[name] for kind, name in composite.members.items()})
            self._enter(target.name, target)
            self.targets.append(target)

    def add(self, source: ModelSource) -> ServedModel:
        """Serve one more model, after the others. Its aliases that are taken stay with their models.

        Raises ValueError for a name that is taken.
        """
        free = tuple(alias for alias in source.aliases if alias not in self._by_name)
        served = ServedModel(replace(source, aliases=free))
        for name in (served.name, *free):
            self._enter(name, served)
        self.models += [served, *served.further]
        self.targets.append(served)
        return served

    def remove(self, served: ServedModel) -> None:
        """Serve the model no longer, under any of its names. It is no member of a composite."""
        self._by_name = {name: target for name, target in self._by_name.items() if target is not served}
        self.targets.remove(served)
        for each in (served, *served.further):
            self.models.remove(each)

    def served_as(self, name: str, allowed: Allowed) -> ModelOrComposite | None:
        """The model of that name or alias, if there is one that a caller with these names may see."""
        target = self._by_name.get(name)
        return target if target is not None and target in self.seen_by(allowed) else None

    def resolve(self, what: str, requirements: Sequence[Requirement], allowed: Allowed = None) -> ModelOrComposite:
        """The model of a request without a name: the first that meets the first requirement that any meets.

        A model that has failed is chosen only if no other model meets any requirement. Raises ModelCannot if no served
        model can `what`.
        """
        seen = self.targets if allowed is None else self.seen_by(allowed)
        for chosen in (
            (target for is_met in requirements for target in seen if is_met(target, target.able)),
            (target for is_met in requirements for target in seen if is_met(target, target.kinds)),
            (target for target in seen if not target.lead.is_open),
        ):
            for target in chosen:
                return target
        raise ModelCannot("No model served here can {operation}.", operation=what)

    def seen_by(self, allowed: Allowed) -> Sequence[ModelOrComposite]:
        """The models and composites that a caller with these names may see, in order."""
        if allowed is None:
            return self.targets
        visible = {id(self._by_name[name]) for name in allowed if name in self._by_name}
        return [target for target in self.targets if id(target) in visible]

    def named(self, name: str, allowed: Allowed = None) -> ModelOrComposite:
        """Raises ModelNotFound, which lists the served names."""
        target = self.served_as(name, allowed)
        if target is None:
            seen = self.seen_by(allowed)
            similar = similar_name(name, [known for known, target in self._by_name.items() if target in seen])
            hint = f" Did you mean {similar}?" if similar else ""
            names = ", ".join(target.name for target in seen) or "none"
            raise ModelNotFound(NOT_SERVED, field="model", served=names, hint=hint)
        return target

    def adapter_in(self, name: str | None) -> tuple[str, str] | None:
        """The model and the adapter in a name of the form MODEL:ADAPTER; None for any other name."""
        return None if name is None or name in self._by_name else self._adapters.get(name)

    def names(self) -> dict[str, str]:
        """Name or alias -> served name."""
        return {name: target.name for name, target in self._by_name.items()}

    def readiness(self) -> dict[str, str]:
        """Served name -> unloaded, loading, ready, failed, or stalled: loaded, but no device is ready."""
        return {served.name: _health(served) for served in self.models}

    def _enter(self, name: str, target: ModelOrComposite) -> None:
        if self._by_name.setdefault(name, target) is not target:
            raise ValueError(f"two models are served as {name}")


def reason_of(failure: Exception | None) -> str:
    """Why a model could not be loaded, on one line; "" without a failure."""
    if failure is None:
        return ""
    text = failure.message if isinstance(failure, VectordError) else f"{type(failure).__name__}: {failure}"
    return " ".join(text.split())[:REASON_CHARACTERS]


def _health(served: ServedModel) -> State | Literal["stalled"]:
    if served.failure is not None:  # also while it is tried again
        return "failed"
    if served.state == "ready" and served.runner is not None and served.runner.worker.stalled:
        return "stalled"
    return served.state
