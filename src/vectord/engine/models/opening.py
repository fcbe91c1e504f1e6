"""`open_models(config)`: everything known of the models to serve, and how each will be loaded; nothing is loaded yet.

(Loading before the rest of the server is imported was measured: the first answer came after 0.46 s instead of 0.51, and
the port opened after 0.33 s instead of 0.19.)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from vectord.checkpoints.spec import ModelSpec
from vectord.compute import backends
from vectord.compute.backends.base import Backend, BackendOptions, LoadBackend
from vectord.config import Config
from vectord.config.sources import export_hub
from vectord.engine.models.backend import (
    backend_of,
    backend_options,
    check_alike,
    check_backend,
    check_dtype,
    required_graphs,
    settle_device,
    with_graph,
)
from vectord.engine.models.calibration import Calibration, calibration_texts
from vectord.engine.models.facts import read_facts
from vectord.engine.models.registry import ModelSource
from vectord.engine.models.requested import further_names, pinned_names, requested_models, served_names
from vectord.errors import ModelUnavailable

if TYPE_CHECKING:
    from vectord.text.tokenizer import TextEncoder

Loaded: TypeAlias = "tuple[TextEncoder, Sequence[Backend]]"


def open_models(config: Config) -> list[ModelSource]:
    """The configured models, in order.

    Blocks for as long as a download takes. Raises StartError: a model that is nowhere or not understood, an unknown
    backend, a name given twice or to nobody.
    """
    # One budget of threads: a request's texts are spread over tokenization_workers, so no text needs more than one.
    # tokenizers reads this with its first batch; whoever has set it means it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    export_hub(config.model, os.environ)
    if config.device.backend != "auto":
        check_backend(config.device.backend)  # before a download that would be for nothing
    device = settle_device(config.device)
    wanted = requested_models(config.model)
    texts = calibration_texts(device)
    specs = [read_facts(one, config.model, required_graphs(device)) for one in wanted]
    names = served_names(wanted, specs, config.model.served_model_name)
    aliases = further_names(wanted, specs, names, config.model.model_aliases)
    pinned = pinned_names(config.model.pinned_models, names)
    backends_of = [check_dtype(check_backend(backend_of(spec, device)), device.dtype) for spec in specs]
    specs = [with_graph(spec, backend, device) for spec, backend in zip(specs, backends_of, strict=True)]
    specs = [_without_hearsay(spec, backend) for spec, backend in zip(specs, backends_of, strict=True)]
    options_of = [backend_options(device, backend) for backend in backends_of]
    return [
        ModelSource(
            name=name,
            aliases=aliases[name],
            spec=spec,
            load=partial(_load, spec, backend, options, texts),
            pinned=name in pinned,
            memory_bytes=_memory_bytes(spec, device.dtype) * len(options),
        )
        for name, spec, backend, options in zip(names, specs, backends_of, options_of, strict=True)
    ]


def _without_hearsay(spec: ModelSpec, backend: str) -> ModelSpec:
    """What is known of the published model's numbers does not hold for numbers that are made up."""
    return replace(spec, known_cosines=()) if backend == "fake" else spec


def _memory_bytes(spec: ModelSpec, dtype: str) -> int:
    """An estimate of what it holds while loaded: its weights in the numbers it computes in, 16 bits unless told."""
    saved = spec.config.get("dtype", spec.config.get("torch_dtype"))  # as its files say; newer ones by the first name
    saved_bytes = 2 if saved in ("bfloat16", "float16") else 4
    held_bytes = {"float32": 4, "int8": 1}.get(dtype, 2)
    return sum(path.stat().st_size for path in spec.weights) * held_bytes // saved_bytes


def _load(
    spec: ModelSpec,
    backend: str,
    options: Sequence[BackendOptions],
    texts: Calibration | None,
) -> Loaded:
    from vectord.text.tokenizer import TextEncoder  # noqa: PLC0415 - in this thread it costs the start no time

    encoder = TextEncoder(spec)
    if spec.reranks and spec.yes_no is None and not encoder.reads_pairs:
        raise ModelUnavailable(f"{spec.tokenizer}: a reranker whose tokenizer does not say how to join two texts")
    load = import_module(f"{backends.__name__}.{backend}").load
    sample = texts.sample(encoder) if texts is not None and backend in ("openvino", "torch") else None
    return encoder, _load_all(load, spec, [replace(one, sample=sample) for one in options])


def _load_all(load: LoadBackend, spec: ModelSpec, options: Sequence[BackendOptions]) -> list[Backend]:
    """One after the other. All of them, or none stays open: who named a device that fails is to know it."""
    loaded: list[Backend] = []
    try:
        for one in options:
            loaded.append(load(spec, one))
        check_alike([backend.facts for backend in loaded])
    except BaseException:
        for backend in loaded:
            backend.close()
        raise
    return loaded
