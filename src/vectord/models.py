"""Config -> the models to serve: their files, their facts, their names, and how each will be loaded.

compose.py calls `open_models` before anything listens, so that what is wrong with a model's name stops the start. The
engine calls each `load` later, in a thread behind the open port. (Loading before the rest of the server is imported
was measured: the first answer came after 0.46 s instead of 0.51, and the port opened after 0.33 s instead of 0.19.)
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from vectord import backends
from vectord.artifacts.catalogue import other_names
from vectord.artifacts.hub import resolve
from vectord.artifacts.spec import ModelSpec, read_spec
from vectord.backends.base import Backend, BackendOptions
from vectord.config import Config, DeviceConfig, ModelConfig
from vectord.errors import ConfigError

if TYPE_CHECKING:
    from vectord.text.tokenizer import TextEncoder

Loaded: TypeAlias = "tuple[TextEncoder, Backend]"


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model whose files are there and whose facts are known."""

    name: str  # the served name
    aliases: tuple[str, ...]  # further names clients may use
    spec: ModelSpec
    load: Callable[[], Loaded]  # blocks for as long as compiling takes


def open_models(config: Config) -> list[OpenModel]:
    """The configured models, in order; nothing is loaded yet.

    Blocks for as long as a download takes. Raises StartError: a model that is nowhere or not understood, an unknown
    backend, a name given twice.
    """
    # One budget of threads: a request's texts are spread over tokenization_workers, so no text needs more than one.
    # tokenizers reads this with its first batch; whoever has set it means it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    backend = _backend_name(config.device)
    specs = [_spec(name, config.model) for name in dict.fromkeys(config.model.models)]
    names = _served_names(specs, config.model.served_model_name)
    aliases = _aliases(specs, names)
    options = _options(config.device)
    return [
        OpenModel(name, aliases[name], spec, partial(_load, spec, backend, options))
        for name, spec in zip(names, specs, strict=True)
    ]


def _spec(name: str, models: ModelConfig) -> ModelSpec:
    located = resolve(
        name, revision=models.revision, offline=models.offline, hf_home=models.hf_home, token=models.hf_token
    )
    return read_spec(located, pooling=models.pooling, default_prompt_name=models.default_prompt_name)


# --- names ----------------------------------------------------------------------------------------------------


def _served_names(specs: Sequence[ModelSpec], wanted: Sequence[str]) -> list[str]:
    """The wanted names, then the models' own. Raises ConfigError for too many names, and for one name twice."""
    if len(wanted) > len(specs):
        raise ConfigError(f"served_model_name: {len(wanted)} names for {len(specs)} models")
    names = [*wanted, *(spec.model_id for spec in specs[len(wanted) :])]
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

    load = import_module(f"{backends.__name__}.{backend}").load
    return TextEncoder(spec), load(spec, options)


# --- backends -------------------------------------------------------------------------------------------------

NO_BACKENDS = frozenset({"base"})  # what lies in the folder beside them


def backend_names() -> list[str]:
    """The folder is the registry. Imports none of them."""
    return sorted({module.name for module in pkgutil.iter_modules(backends.__path__)} - NO_BACKENDS)


def _backend_name(device: DeviceConfig) -> str:
    """The backend asked for, or for auto the one of the device. Raises ConfigError listing those there are."""
    name = device.backend if device.backend != "auto" else _usual_backend(device.device)
    if name not in backend_names():
        raise ConfigError(f"unknown backend {name!r}; there are: auto, {', '.join(backend_names())}")
    if name == "torch" and find_spec("torch") is None:
        raise ConfigError("backend torch: torch is not installed; pip install 'vectord[torch]'")
    return name


def _usual_backend(device: str) -> str:
    if device == "cpu" or (device == "auto" and not _has_cuda()):
        return "openvino"
    return "torch"


def _has_cuda() -> bool:
    """Whether torch would find a CUDA device. torch takes seconds to import: not without a driver's device file."""
    if find_spec("torch") is None or not any(Path(name).exists() for name in ("/dev/nvidia0", "/dev/dxg")):
        return False
    return bool(import_module("torch").cuda.is_available())
