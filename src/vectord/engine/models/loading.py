"""Loads a model in a thread, tests it on the path of real requests, and sets its state.

lifecycle.py runs this as a task on the event loop. A failure does not affect other models.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

import numpy as np

from vectord.compute.backends.base import Backend
from vectord.engine.events import ModelStateChanged, Observer
from vectord.engine.models.registry import ServedModel
from vectord.engine.operations import postprocess
from vectord.engine.queue.runner import CLOSE_TIMEOUT_S, ModelRunner
from vectord.errors import InferenceFailed
from vectord.housekeeping import GuardedLogger
from vectord.schema import AnswerKind, Caller, Float32, Input, Sparse, TextOptions
from vectord.text.sequence import Encoder, ReadRequest, Texts

logger = GuardedLogger(logging.getLogger("vectord.engine"))
facts_log = GuardedLogger(logging.getLogger("vectord.facts"))  # for collectors; the console leaves it out
progress = GuardedLogger(logging.getLogger("vectord.progress"))  # observability/progress.py shows it on a terminal

T = TypeVar("T")
MakeRunner: TypeAlias = Callable[[ServedModel, Encoder, Sequence[Backend]], ModelRunner]
LARGE_BYTES = 512 * 2**20  # of weights, from which loading takes long enough for a progress bar
SELF_TEST_TEXT = "The quick brown fox jumps over the lazy dog."
MIN_COSINE = 0.99  # of a text's vector alone and in a batch; bfloat16 stays above 0.9999
KNOWN_TOLERANCE = 0.01  # bfloat16 stays within 0.002
MAX_SPREAD = 0.1  # between a pair's logits alone and in a batch, relative to their size


async def load(
    served: ServedModel,
    make_runner: MakeRunner,
    observer: Observer,
    warmup_batches: int = 0,
    warmup_batch_size: int = 1,
) -> None:
    """Load and test one model; `served.state` is ready or failed when this returns, and `served.failure` says why."""
    observer(ModelStateChanged(served.name, "loading"))
    started_s = time.monotonic()
    what = f"loading {served.name}, {served.source.memory_bytes / 1e9:.1f} GB"
    if served.source.memory_bytes >= LARGE_BYTES:
        progress.info(what, extra={"progress": (0, None)})
    try:
        encoder, backends = await in_own_thread(served.source.load, f"vectord-load-{served.name}", daemon=False)
        served.runner = make_runner(served, encoder, backends)
        tested_s = time.monotonic()
        await self_test(served.runner)
        await _warm_up(served.runner, served.name, warmup_batches, warmup_batch_size)
    except Exception as cause:  # files and device libraries may raise anything; the other models continue
        runner, served.runner = served.runner, None
        if runner is not None:
            runner.stop()
            await asyncio.to_thread(runner.close, CLOSE_TIMEOUT_S)
        served.state, served.failure = "failed", cause  # after the close: a request that sees it may load the model
        observer(ModelStateChanged(served.name, "failed", time.monotonic() - started_s))
        return
    finally:
        progress.info(what, extra={"progress": (None, None)})
    load_s = time.monotonic() - started_s
    served.state, served.failure = "ready", None
    facts = served.runner.facts
    seconds = round(time.monotonic() - tested_s, 3)
    facts_log.info("warmup", extra={"fields": {"model": served.name, "seconds": seconds}})
    logger.info("%s is ready on %s (%s, %s) after %.2f s", served.name, facts.device, facts.name, facts.dtype, load_s)
    observer(ModelStateChanged(served.name, "ready", load_s))


async def self_test(runner: ModelRunner) -> None:
    """Runs one known text alone and then in batches on every stream and device. Raises InferenceFailed.

    For every kind of answer: numbers must be finite (execution.py checks), vectors not all zero, and the answers of one
    text must be the same everywhere. Pairs of texts must have the cosines that the published weights are known for.
    """
    kinds = runner.kinds
    known = runner.spec.known_cosines if "dense" in kinds else ()
    text = _texts(runner, [SELF_TEST_TEXT])
    alone = await runner.run(text, kinds, Caller(), fresh=True)
    several = [text] * (2 * runner.facts.streams)
    pairs = [_texts(runner, pair) for *pair, _ in known]
    ran = await runner.run(Texts.join([*several, *pairs]), kinds, Caller(), fresh=True)  # each forward delays the start
    others = [(ran, len(several))]
    for device in range(len(runner.backends)) if len(runner.backends) > 1 else ():
        for several in ([text], [text, text]):
            on_device = await runner.run(Texts.join(several), kinds, Caller(), fresh=True, device=device)
            others.append((on_device, len(several)))
    for kind in sorted(kinds):
        expected = alone.each(kind)  # of one text: one, or one for each of its spans
        for other, copies in others:
            for one, answer in zip(expected * copies, other.each(kind), strict=False):  # not of the pairs
                _check_same(kind, one, answer)
    if not known:
        return
    rows = postprocess.finish(ran.rows("dense")[-2 * len(known) :], None, normalize=True)  # (2 * known, D)
    for i, (_, _, cosine) in enumerate(known):
        found = float(rows[2 * i] @ rows[2 * i + 1])
        if abs(found - cosine) > KNOWN_TOLERANCE:
            raise InferenceFailed(
                f"the self-test gave a pair of texts the cosine {found:.3f} that is known as {cosine}"
            )


async def _warm_up(runner: ModelRunner, name: str, batches: int, batch_size: int) -> None:
    """Runs `batches` batches on every stream. An error fails the load."""
    texts = Texts.join([_texts(runner, [SELF_TEST_TEXT])] * batch_size)
    streams = runner.facts.streams
    for step in range(1, batches + 1):
        started_s = time.monotonic()
        await asyncio.gather(*(runner.run(texts, runner.kinds, Caller(), fresh=True) for _ in range(streams)))
        milliseconds = round((time.monotonic() - started_s) * 1000, 2)
        fields = {"model": name, "step": step, "latency_ms": milliseconds, "batch_size": batch_size, "workers": streams}
        facts_log.info("warmup", extra={"fields": fields})


def _texts(runner: ModelRunner, inputs: Sequence[Input]) -> Texts:
    """The sequences of these texts; a network for images reads as many images."""
    if runner.spec.processor is not None:
        from vectord.text.images import sample  # noqa: PLC0415 - few models read images

        return Texts.join([sample(runner.encoder, runner.spec.processor)] * len(inputs))
    return runner.encoder.read(ReadRequest(inputs=inputs, options=TextOptions(), truncate=True))


def _check_same(kind: AnswerKind, one: Float32 | Sparse, other: Float32 | Sparse) -> None:
    if isinstance(one, Sparse) or isinstance(other, Sparse):
        return  # rounding decides which words are just above 0
    a, b = one.astype(np.float64), other.astype(np.float64)
    if kind == "scores":
        least, spread = 1.0, float(np.abs(a - b).max() / (1.0 + np.abs(a).max()))
    else:
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        if not norms.all():
            raise InferenceFailed(f"the self-test gave a {kind} vector of zeros")
        least, spread = float((np.einsum("nd,nd->n", a, b) / norms).min()), 0.0
    if not (least >= MIN_COSINE and spread <= MAX_SPREAD):
        raise InferenceFailed(
            f"the self-test gave one text two {kind} answers (cosine {least:.4f}, difference {spread:.4f})"
        )


async def in_own_thread(call: Callable[[], T], name: str, *, daemon: bool) -> T:
    """Like asyncio.to_thread, but a cancelled call, which continues, takes no thread of a pool.

    daemon: the program may end during the call. Not for native code, which then aborts the process.
    """
    return await asyncio.wrap_future(begin(call, name, daemon=daemon))


def begin(call: Callable[[], T], name: str, *, daemon: bool) -> Future[T]:
    """The outcome of a call in a thread of its own. daemon: see `in_own_thread`."""
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # a cancelled waiter does not cancel the call

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)
        except BaseException as error:  # asyncio would let a SystemExit end the server
            outcome.set_exception(RuntimeError(f"{name} ended with {type(error).__name__}"))

    threading.Thread(target=run, name=name, daemon=daemon).start()
    return outcome
