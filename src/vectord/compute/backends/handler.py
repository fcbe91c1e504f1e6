"""The backend that runs the operator's own class for dense vectors: `handler` of a model in the catalogue file.

engine/models calls `load` in the loading thread; one worker thread calls `forward`. Tokenization, truncation, prompts,
cache and scheduling stay vectord's; the class turns token ids into vectors (docs/own-models.md). It is imported from
Python's usual path because the operator named it, and never from a model's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import Answers, Backend, BackendFacts, BackendOptions, TokenBatch
from vectord.compute.ops.groups import spans_are_whole, texts_of_spans
from vectord.errors import ModelUnavailable
from vectord.schema import Float32, Int32

MAX_BATCH_TOKENS = 2048


class Handler(Protocol):
    """The interface of the operator's class. An optional `close()` is called at the end."""

    def __init__(self, folder: Path, device: str) -> None:
        """folder: the model's files; device: the option, unchanged: auto, cpu, cuda, cuda:N or mps."""

    def embed(self, texts: Sequence[Int32]) -> npt.NDArray[Any]:
        """Return one row per text, in order, not normalized: (N, D), finite. texts: token ids, specials included."""


def load(spec: ModelSpec, options: BackendOptions) -> HandlerBackend:
    """Raises ModelUnavailable: no such class, another signature or output, or an exception in it."""
    if spec.handler is None or "dense" not in spec.outputs:
        raise ModelUnavailable("backend handler: it serves embedding models with a handler in the catalogue file")
    facts = BackendFacts(
        name="handler",
        device=options.device,
        dtype="float32",
        streams=1,
        cost="packed",
        max_batch_tokens=options.max_batch_tokens or MAX_BATCH_TOKENS,
    )
    backend = HandlerBackend(facts, make_handler(spec.handler, spec.folder, options.device), spec.dimensions)
    try:
        backend.embed([np.zeros(1, np.int32)])
    except Exception as error:  # the operator's code may raise anything
        raise ModelUnavailable(f"handler {spec.handler}: its first text failed ({_shown(error)})") from error
    return backend


class HandlerBackend(Backend):
    """An instance of the operator's class. One thread at a time calls it."""

    faults = (Exception,)  # the operator's code may raise anything

    def __init__(self, facts: BackendFacts, handler: Handler, dimensions: int) -> None:
        self.facts = facts
        self._handler = handler
        self._dimensions = dimensions

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        assert stream == 0, "this backend has one stream"
        assert batch.texts.cu_seqlens.size > 1, "an empty batch"
        assert batch.outputs == {"dense"}, "a handler makes dense vectors alone"
        if not spans_are_whole(batch.texts):
            raise ValueError("a handler pools whole texts and does not support parts of a text")
        texts = np.split(batch.texts.ids.copy(), batch.texts.cu_seqlens[1:-1])  # copies that the class may modify
        rows = self.embed(texts)  # (N, D)
        return {"dense": rows[texts_of_spans(batch.texts)]}

    def forward_exact(self, batch: TokenBatch) -> Answers:
        """Run the batch again, unchanged: the class chooses its own precision."""
        return self.forward(batch, stream=0)

    def renew(self, stream: int) -> None:
        """Raises RuntimeError: only one thread may call the class, and its call has not returned."""
        raise RuntimeError("the class has not returned from a call, and only one thread may call it")

    def embed(self, texts: Sequence[Int32]) -> Float32:
        """Return the rows of the class. Raises ValueError unless they are (N, D) floats."""
        rows = np.asarray(self._handler.embed(texts))
        expected = (len(texts), self._dimensions)
        if rows.shape != expected or rows.dtype.kind != "f":
            raise ValueError(f"expected floats of shape {expected}, got {rows.dtype} of shape {rows.shape}")
        return rows.astype(np.float32)

    def close(self) -> None:
        close = getattr(self._handler, "close", None)
        if close is not None:
            close()
        del self._handler


def make_handler(name: str, folder: Path, device: str) -> Handler:
    """Return an instance of the class at the path `name`, package.module.Class."""
    module_name, _, class_name = name.rpartition(".")
    try:
        module = import_module(module_name)
    except Exception as error:  # the module's own code runs here
        raise ModelUnavailable(
            f"handler {name}: {module_name} cannot be imported ({_shown(error)}); it must be installed, or in a folder "
            "that PYTHONPATH names"
        ) from error
    try:
        return cast(Handler, getattr(module, class_name)(folder, device))
    except Exception as error:  # the operator's code may raise anything
        raise ModelUnavailable(
            f"handler {name}: it could not be made of a folder and a device ({_shown(error)})"
        ) from error


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
