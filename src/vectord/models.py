"""Config -> the models to serve: their files, their facts, their names, and how each will be loaded.

compose.py calls `open_models` before anything listens, so that what is wrong with a model's name stops the start. The
engine calls each `load` later, in a thread behind the open port. (Loading before the rest of the server is imported
was measured: the first answer came after 0.46 s instead of 0.51, and the port opened after 0.33 s instead of 0.19.)
"""

from __future__ import annotations

import hashlib
import os
import pkgutil
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast, get_args

from vectord import backends
from vectord.artifacts.catalogue import other_names
from vectord.artifacts.hub import resolve
from vectord.artifacts.reader import read_spec
from vectord.artifacts.spec import ModelSpec, Pooling
from vectord.backends.base import Backend, BackendOptions
from vectord.config import Config, DeviceConfig, ModelConfig
from vectord.engine.execution import output_of
from vectord.engine.registry import Composite, ModelSource
from vectord.errors import ConfigError, ModelUnavailable
from vectord.networks.network import architectures
from vectord.schema import VectorKind

if TYPE_CHECKING:
    from vectord.text.tokenizer import TextEncoder

Loaded: TypeAlias = "tuple[TextEncoder, Backend]"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model the operator asks for."""

    model: str  # a folder, a package, a hub id
    name: str | None = None  # what the catalogue file calls it
    handler: str | None = None  # the operator's own class
    pooling: Pooling | None = None  # instead of the model's own


def open_models(config: Config) -> list[ModelSource]:
    """The configured models, in order; nothing is loaded yet.

    Blocks for as long as a download takes. Raises StartError: a model that is nowhere or not understood, an unknown
    backend, a name given twice.
    """
    # One budget of threads: a request's texts are spread over tokenization_workers, so no text needs more than one.
    # tokenizers reads this with its first batch; whoever has set it means it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if config.device.backend != "auto":
        _check_backend(config.device.backend)  # before a download that would be for nothing
    wanted = _wanted(config.model)
    specs = [_spec(one, config.model) for one in wanted]
    names = _served_names(wanted, specs, config.model.served_model_name)
    aliases = _aliases(specs, names)
    pinned = _pinned(config.model.pinned_models, names)
    options = _options(config.device)
    backends_of = [_check_backend(_backend_name(config.device, spec)) for spec in specs]
    specs = [_without_hearsay(spec, backend) for spec, backend in zip(specs, backends_of, strict=True)]
    return [
        ModelSource(
            name=name,
            aliases=aliases[name],
            spec=spec,
            load=partial(_load, spec, backend, options),
            pinned=name in pinned,
            memory_bytes=_memory_bytes(spec, config.device.dtype),
        )
        for name, spec, backend in zip(names, specs, backends_of, strict=True)
    ]


def _wanted(config: ModelConfig) -> list[Wanted]:
    """What `models` names, each once: entries of the operator's catalogue file first, anything else as it is."""
    entries: Mapping[str, Wanted] = {}
    if config.model_catalogue is not None:
        from vectord.artifacts.catalogue_file import read_catalogue_file  # noqa: PLC0415 - yaml takes 15 ms

        read = read_catalogue_file(Path(config.model_catalogue))
        entries = {entry.name: Wanted(entry.model, entry.name, entry.handler, entry.pooling) for entry in read}
    return [entries.get(name, Wanted(name)) for name in dict.fromkeys(config.models)]


def _spec(wanted: Wanted, config: ModelConfig) -> ModelSpec:
    located = resolve(
        wanted.model,
        revision=config.revision,
        offline=config.offline,
        hf_home=config.hf_home,
        token=config.hf_token,
    )
    pooling = wanted.pooling or config.pooling
    spec = read_spec(located, pooling=pooling, default_prompt_name=config.default_prompt_name, task=config.task)
    return spec if wanted.handler is None else _handled(spec, wanted.handler)


def _handled(spec: ModelSpec, handler: str) -> ModelSpec:
    """The model as the operator's own class computes it: one vector a text, of another space than the model's own."""
    own = hashlib.sha256(f"{spec.fingerprint} by {handler}".encode()).hexdigest()[:16]
    return replace(
        spec,
        handler=handler,
        outputs=frozenset({"dense"}),
        include_prompt=True,
        lexical=None,
        colbert=None,
        known_cosines=(),
        fingerprint=own,
    )


def _without_hearsay(spec: ModelSpec, backend: str) -> ModelSpec:
    """What is known of the published model's numbers does not hold for numbers that are made up."""
    return replace(spec, known_cosines=()) if backend == "fake" else spec


def _memory_bytes(spec: ModelSpec, dtype: str) -> int:
    """An estimate of what it holds while loaded: its weights in the numbers it computes in, 16 bits unless told."""
    saved = spec.config.get("dtype", spec.config.get("torch_dtype"))  # as its files say; newer ones by the first name
    saved_bytes = 2 if saved in ("bfloat16", "float16") else 4
    held_bytes = 4 if dtype == "float32" else 2
    return sum(path.stat().st_size for path in spec.weights) * held_bytes // saved_bytes


# --- names ----------------------------------------------------------------------------------------------------


def _served_names(wanted: Sequence[Wanted], specs: Sequence[ModelSpec], given: Sequence[str]) -> list[str]:
    """The names given, then the models' own. Raises ConfigError for too many names, and for one name twice."""
    if len(given) > len(specs):
        raise ConfigError(f"served_model_name: {len(given)} names for {len(specs)} models")
    own = [one.name or spec.model_id for one, spec in zip(wanted, specs, strict=True)]
    names = [*given, *own[len(given) :]]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two models would be served as {name}; give each its own served_model_name")
    return names


def _aliases(specs: Sequence[ModelSpec], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """For each served name, what else its model may be called. A name that two models could claim is nobody's."""
    claims = {name: dict.fromkeys(_claims(spec)) for name, spec in zip(names, specs, strict=True)}
    claimed = [alias for aliases in claims.values() for alias in aliases]
    return {
        name: tuple(alias for alias in aliases if alias not in names and claimed.count(alias) == 1)
        for name, aliases in claims.items()
    }


def _claims(spec: ModelSpec) -> Iterable[str]:
    """The id, the catalogue's names, the id's last part."""
    return (spec.model_id, *other_names(spec.model_id), spec.model_id.rpartition("/")[2])


def _pinned(pinned: Sequence[str], names: Sequence[str]) -> frozenset[str]:
    for name in pinned:
        if name not in names:
            raise ConfigError(f"pinned_models: no model is served as {name!r}; there are: {', '.join(names)}")
    return frozenset(pinned)


_COMPOSITE = re.compile(r"(?P<name>[^\s=]{1,200})=(?P<members>[a-z]+:[^\s+]+(\+[a-z]+:[^\s+]+)*)")


def read_composites(values: Sequence[str], models: Sequence[ModelSource]) -> list[Composite]:
    """NAME=dense:MODEL+sparse:MODEL+colbert:MODEL, of models by any of their names. Raises ConfigError."""
    by_name = {name: model for model in models for name in (model.name, *model.aliases)}
    return [_composite(value, by_name) for value in values]


def _composite(value: str, by_name: Mapping[str, ModelSource]) -> Composite:
    match = _COMPOSITE.fullmatch(value)
    if match is None:
        raise ConfigError(f"composites: expected NAME=dense:MODEL+sparse:MODEL+colbert:MODEL; got {value[:200]!r}")
    members: dict[VectorKind, str] = {}
    for part in match["members"].split("+"):
        kind, _, model = part.partition(":")
        if kind not in get_args(VectorKind) or kind in members:
            raise ConfigError(f"composites: {match['name']}: dense, sparse, colbert or tokens, each once; got {kind!r}")
        if model not in by_name:
            raise ConfigError(f"composites: {match['name']}: no model is served as {model!r}")
        if kind not in output_of(by_name[model].spec):
            raise ConfigError(f"composites: {match['name']}: {model} makes no {kind} vectors")
        members[cast(VectorKind, kind)] = by_name[model].name
    if match["name"] in by_name:
        raise ConfigError(f"composites: {match['name']} is the name of a model")
    return Composite(match["name"], members)


# --- loading --------------------------------------------------------------------------------------------------


def _options(device: DeviceConfig) -> BackendOptions:
    return BackendOptions(
        device=device.device,
        dtype=device.dtype,
        threads=device.num_threads,
        max_batch_tokens=device.max_batch_tokens,
    )


def _load(spec: ModelSpec, backend: str, options: BackendOptions) -> Loaded:
    from vectord.text.tokenizer import TextEncoder  # noqa: PLC0415 - in this thread it costs the start no time

    encoder = TextEncoder(spec)
    if spec.reranks and spec.yes_no is None and not encoder.reads_pairs:
        raise ModelUnavailable(f"{spec.tokenizer}: a reranker whose tokenizer does not say how to join two texts")
    load = import_module(f"{backends.__name__}.{backend}").load
    return encoder, load(spec, options)


# --- backends -------------------------------------------------------------------------------------------------

NO_BACKENDS = frozenset({"base"})  # what lies in the folder beside them


def backend_names() -> list[str]:
    """The folder is the registry. Imports none of them."""
    return sorted({module.name for module in pkgutil.iter_modules(backends.__path__)} - NO_BACKENDS)


def _check_backend(name: str) -> str:
    """`name`. Raises ConfigError, listing those there are, if it is none, or one whose library is not here."""
    if name not in backend_names():
        raise ConfigError(f"unknown backend {name!r}; there are: auto, {', '.join(backend_names())}")
    if name in {"torch", "transformers"} and find_spec(name) is None:
        raise ConfigError(f"backend {name}: {name} is not installed; pip install 'vectord[{name}]'")
    return name


def _backend_name(device: DeviceConfig, spec: ModelSpec) -> str:
    """The backend asked for, or for auto the one for the model: its own class, its graph, its network."""
    if device.backend != "auto":
        return device.backend
    if spec.handler is not None:
        return "handler"
    if spec.weights[0].suffix == ".onnx":
        return "onnx"
    if spec.architecture.replace("-", "_") not in architectures() and find_spec("transformers") is not None:
        return "transformers"
    return _usual_backend(device.device)


def _usual_backend(device: str) -> str:
    if device == "cpu" or (device == "auto" and not _has_cuda()):
        return "openvino"
    return "torch"


def _has_cuda() -> bool:
    """Whether torch would find a CUDA device. torch takes seconds to import: not without a driver's device file."""
    if find_spec("torch") is None or not any(Path(name).exists() for name in ("/dev/nvidia0", "/dev/dxg")):
        return False
    return bool(import_module("torch").cuda.is_available())
