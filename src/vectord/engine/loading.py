"""Bring the models to life behind an open port: load in a thread, prove the real path, then say ready.

engine.py starts this as a task on the event loop. A model that fails is logged and leaves the others serving.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import numpy as np

from vectord.backends.base import Backend
from vectord.engine.encoding import Encoder
from vectord.engine.observer import Observer
from vectord.engine.registry import Served
from vectord.engine.runner import CLOSE_TIMEOUT_S, ModelRunner
from vectord.errors import InferenceFailed, VectordError
from vectord.schema import Caller, Float32, TextOptions

logger = logging.getLogger("vectord.engine")

T = TypeVar("T")
MakeRunner: TypeAlias = Callable[[Served, Encoder, Backend], ModelRunner]
SELF_TEST_TEXT = "The quick brown fox jumps over the lazy dog."
LEAST_COSINE = 0.99  # of one text alone with itself in a batch; bfloat16 stays above 0.9999


async def load(served: Served, make_runner: MakeRunner, observer: Observer) -> None:
    """Load and test one model; `served.state` is ready or failed when this returns."""
    observer.model_changed(served.name, "loading", None)
    started_s = time.monotonic()
    try:
        encoder, backend = await _in_daemon_thread(served.source.load, f"vectord-load-{served.name}")
        served.runner = make_runner(served, encoder, backend)
        await self_test(served.runner, backend.facts.streams)
    except Exception as cause:  # whatever a model's files or a device's library do, the others keep serving
        await _failed(served, cause)
        observer.model_changed(served.name, "failed", time.monotonic() - started_s)
        return
    load_s = time.monotonic() - started_s
    served.state = "ready"
    facts = served.runner.backend.facts
    logger.info("%s is ready on %s (%s, %s) after %.2f s", served.name, facts.device, facts.name, facts.dtype, load_s)
    observer.model_changed(served.name, "ready", load_s)


async def self_test(runner: ModelRunner, streams: int) -> None:
    """One known text by the real path, alone and then in batches on every stream. Raises InferenceFailed.

    The rows must be finite (the worker sees to that), not all zero, and the same text must be the same vector.
    """
    alone = await _embed(runner, 1)
    together = await _embed(runner, 2 * streams)
    norms = np.linalg.norm(together, axis=1) * np.linalg.norm(alone[0])  # (2 * streams,)
    if not norms.all():
        raise InferenceFailed("the self-test gave a vector of zeros")
    least = float((together @ alone[0] / norms).min())
    if not least >= LEAST_COSINE:
        raise InferenceFailed(f"the self-test gave one text two vectors (cosine {least:.4f})")


async def _embed(runner: ModelRunner, copies: int) -> Float32:
    encoded = await runner.encode([SELF_TEST_TEXT], TextOptions(truncate=True), "input")
    ran = await runner.rows(encoded * copies, "dense", Caller(), "input", fresh=True)
    return np.asarray(ran.rows, np.float64)


async def _failed(served: Served, cause: Exception) -> None:
    served.state = "failed"
    served.failure = type(cause).__name__
    runner, served.runner = served.runner, None
    if runner is not None:
        runner.stop()
        await asyncio.to_thread(runner.close, CLOSE_TIMEOUT_S)
    # A VectordError says what is wrong in one line; anything else is our bug and needs its trace.
    logger.error(
        "%s failed to load: %s", served.name, cause, exc_info=None if isinstance(cause, VectordError) else cause
    )


async def _in_daemon_thread(call: Callable[[], T], name: str) -> T:
    """Like asyncio.to_thread, but a call that hangs does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            outcome: tuple[T | None, Exception | None] = (call(), None)
        except Exception as error:
            outcome = (None, error)
        except BaseException as error:  # asyncio would let a SystemExit end the whole server
            outcome = (None, RuntimeError(f"loading ended with {type(error).__name__}"))
        try:
            loop.call_soon_threadsafe(settle, *outcome)
        except RuntimeError:
            logger.debug("%s found its event loop closed", name)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
