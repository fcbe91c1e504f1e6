"""The CPU backend: one model, compiled by OpenVINO into two plans, for throughput and for single texts.

engine/models calls `load` in the loading thread; the engine's worker threads call `forward`. The **wide** plan runs one
text on all threads, the **narrow** plan gives each stream a few threads of its own (measured on 2 cores: a single text
of 61 tokens takes 2.1 ms wide and 3.6 narrow; many texts run at 22 k tokens/s wide and 32 k narrow). Wide is compiled
first, in the thread that calls `load`, so that the model answers early; narrow follows in a thread of its own. A plan
holds a copy of all weights in its own layout, so a large model has one plan only, with few streams (with BGE-M3's
shape: 0.75 GB, and 0.7 GB more for a second plan).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

from vectord.checkpoints.spec import FLOAT32_BY_DEFAULT, ModelSpec
from vectord.compute.backends.base import Answers, Backend, BackendFacts, BackendOptions, TokenBatch, max_batch_texts
from vectord.compute.backends.openvino_int8 import gains_from_int8
from vectord.compute.backends.openvino_plans import Compiler, InferencePrecision, Plan
from vectord.compute.ops.base import PackedTexts
from vectord.compute.ops.openvino import ov
from vectord.compute.ops.packed_weights import PACKINGS
from vectord.compute.processor import multiplies_bfloat16, thread_budget
from vectord.errors import ConfigError

logger = logging.getLogger(__name__)

MAX_BATCH_TOKENS = 1024  # 512 to 2,048 are equally fast; memory and the duration of a batch grow with it
ONE_PLAN_BYTES = 400_000_000  # a model with a larger plan has no second one
ONE_PLAN_GROUPS = 2  # its length groups: a 3rd gains 5 % and costs BGE-M3 50 MB, or 80 with 8,192 tokens
# Length groups of the narrow plan: 3 are 3 to 4 % slower; a 5th gains 1 % and costs 15 MB. 2 are 13 % slower in float32
# on an idle machine (MiniLM on AVX2, two streams), although they take 53 MB and a tenth of processor time less.
NARROW_GROUPS = 4

DTYPES: Mapping[InferencePrecision, str] = {"bf16": "bfloat16", "f32": "float32"}


def load(spec: ModelSpec, options: BackendOptions) -> OpenvinoBackend | AdaptedBackend:
    """Return the model, ready to run; its narrow plan may still be compiling.

    Raises ConfigError for a device or dtype with an unknown name, ModelUnavailable if the model's files do not fit.
    """
    _check_device(options.device)
    core = ov.Core()
    precision = choose_precision(options.dtype, core, spec.architecture)
    threads = options.threads or thread_budget()
    compiler = Compiler(spec, core, precision, threads)
    dtype = DTYPES[precision]
    if options.dtype in PACKINGS and (options.dtype != "int8" or gains_from_int8(compiler, dtype)):
        compiler.packing = PACKINGS[options.dtype]
        dtype = options.dtype
    one_plan = compiler.plan_bytes > ONE_PLAN_BYTES
    streams = options.streams or (choose_wide_streams(threads) if one_plan else choose_streams(threads))
    facts = BackendFacts(
        name="openvino",
        device="cpu",
        dtype=dtype,
        streams=streams,
        cost="packed",
        max_batch_tokens=options.max_batch_tokens or MAX_BATCH_TOKENS,
        max_batch_texts=max_batch_texts(spec),
    )
    backend = OpenvinoBackend(facts, compiler, _largest_batch(spec, facts), one_plan=one_plan)
    if not spec.adapters or one_plan:
        return backend

    def make_plain() -> OpenvinoBackend:
        plain = Compiler(spec, core, precision, threads, adapted=False)
        plain.packing = compiler.packing
        return OpenvinoBackend(facts, plain, _largest_batch(spec, facts))

    return AdaptedBackend(backend, make_plain)


def choose_streams(threads: int) -> int:
    """Return how many batches run at once on this many threads.

    The threads of one stream wait for each other several times a layer, and for any thread that the system preempts for
    other work, such as the server itself (measured with MiniLM: 2 streams of 1 thread and 1 stream of 2 are equal on
    idle cores, 30.8 and 26.3 k tokens/s on busy ones). So each of the first four threads has its own stream. Beyond,
    streams get up to four threads, because batches would take long and every stream needs memory.
    """
    return min(threads, max(4, threads // 4))


def choose_wide_streams(threads: int) -> int:
    """Return the same for a model with one plan, which must be fast for single texts too.

    Measured with BGE-M3's shape on 2 cores: 1 stream of 2 threads computes 60 tokens in 55 ms, 2 of 1 in 93; for many
    texts 2 streams are up to 7 % faster on busy cores, and cost 130 MB more.
    """
    return max(1, threads // 4)


def choose_precision(dtype: str, core: ov.Core, architecture: str = "") -> InferencePrecision:
    """Return the precision of products. bfloat16 only if the processor supports it: emulation is very slow.

    auto: float32 for FLOAT32_BY_DEFAULT, else bfloat16. With packed matrices (PACKINGS), all ops but the products of
    int8 compute as for auto. float16 computes as auto, too, because no processor supports it. Raises ConfigError for an
    unknown name.
    """
    names = ["auto", "float32", "bfloat16", "float16", *PACKINGS]
    if dtype not in names:
        raise ConfigError(f"dtype must be {', '.join(names[:-1])} or {names[-1]}")
    if dtype == "float32":
        return "f32"
    has_bfloat16 = multiplies_bfloat16()
    if has_bfloat16 is None:
        has_bfloat16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    wants_bfloat16 = dtype == "bfloat16" or architecture not in FLOAT32_BY_DEFAULT
    chosen: InferencePrecision = "bf16" if has_bfloat16 and wants_bfloat16 else "f32"
    if dtype == "float16" or (dtype == "bfloat16" and not has_bfloat16):
        # float16 is the default for GPUs of several servers, and the CPU's result is no worse.
        level = logging.INFO if dtype == "float16" else logging.WARNING
        logger.log(level, "this processor does not compute in %s; using %s", dtype, DTYPES[chosen])
    return chosen


def _check_device(device: str) -> None:
    if device in {"auto", "cpu"}:
        return
    if device.partition(":")[0] not in {"cuda", "mps"}:
        raise ConfigError("device must be auto, cpu, cuda, cuda:N or mps")
    logger.warning("the openvino backend runs on the cpu, not on %s", device)


def _largest_batch(spec: ModelSpec, facts: BackendFacts) -> TokenBatch:
    """A batch of the maximum number of tokens, in texts of the model's maximum length."""
    length = min(spec.max_tokens, facts.max_batch_tokens)
    texts = PackedTexts.of([np.zeros(length, np.int32)] * (facts.max_batch_tokens // length))
    return TokenBatch(texts=texts, outputs=spec.outputs)


class OpenvinoBackend(Backend):
    """One model on the processor. `facts.streams` workers may call `forward` at once."""

    def __init__(
        self, facts: BackendFacts, compiler: Compiler, largest_batch: TokenBatch, *, one_plan: bool = False
    ) -> None:
        """Returns as soon as one plan can run. A single stream has all threads, so it needs no wide plan."""
        self._groups = ONE_PLAN_GROUPS if one_plan else NARROW_GROUPS
        self.facts = facts
        self._compiler = compiler
        self._largest_batch = largest_batch
        self._wide_lock = threading.Lock()
        self._exact_lock = threading.Lock()
        self._exact: Plan | None = None
        self._wide = None if one_plan or facts.streams == 1 else compiler.compile(streams=1, groups=1)
        self._background = ThreadPoolExecutor(1, thread_name_prefix="openvino-compile")
        self._narrow: Future[Plan | None] = self._background.submit(self._compile_narrow)
        if self._wide is None:
            self._narrow.result()

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        assert 0 <= stream < self.facts.streams, "no such stream"
        assert batch.texts.cu_seqlens.size > 1, "an empty batch"
        narrow = self._narrow.result() if self._narrow.done() else None
        wide, lock = self._wide, self._wide_lock
        if wide is not None and (batch.alone or narrow is None):
            with lock:
                return wide.run(batch, stream=0)
        assert narrow is not None, "load waits for the only plan"
        return narrow.run(batch, stream)

    def forward_exact(self, batch: TokenBatch) -> Answers:
        """See Backend.forward_exact. Its plan is compiled on first use, which is rare."""
        assert batch.texts.cu_seqlens.size > 1, "an empty batch"
        with self._exact_lock:
            self._exact = self._exact or self._make_exact()
            return self._exact.run(batch, stream=0)

    def free_memory(self) -> None:
        """See Backend.free_memory."""
        for plan in (self._wide, self._narrow.result() if self._narrow.done() else None, self._exact):
            if plan is not None:
                plan.free_memory()

    def renew(self, stream: int) -> None:
        """See Backend.renew. Makes new plans and locks: the hung forward keeps threads and may hold a lock.
        Costs the time and memory of compiling; the old plans go with their last forward."""
        wide = None if self._wide is None else self._compiler.compile(streams=1, groups=1)
        narrow = self._compiler.compile(self.facts.streams, self._groups)
        self._wide, self._wide_lock = wide, threading.Lock()
        self._exact, self._exact_lock = None, threading.Lock()
        self._narrow = Future()
        self._narrow.set_result(narrow)

    def wait(self) -> None:
        """Block until no plan is compiling, whether it succeeded or not."""
        wait([self._narrow])

    def close(self) -> None:
        """Wait for the compiler, then free everything. No forward may be running or follow."""
        self._background.shutdown()
        del self._wide, self._narrow, self._exact
        self._compiler.close()

    def _make_exact(self) -> Plan:
        plan = self._wide or self._narrow.result()
        if plan is not None and self._compiler.is_exact:
            return plan.with_own_request()
        return self._compiler.compile(streams=1, groups=1, precision="f32")

    def _compile_narrow(self) -> Plan | None:
        """The plan; None if it cannot be made or does not work: the model then serves on the wide plan and logs it."""
        try:
            plan = self._compiler.compile(self.facts.streams, self._groups)
            with self._compiler.releasing():
                plan.warm_up(self._largest_batch)
        except Exception as problem:
            if self._wide is None:
                raise
            reason = str(problem).strip().rpartition("\n")[2]  # OpenVINO's own lines of C++ come before it
            logger.error(
                "the plan for many texts could not be made: batches run one at a time (%s: %s)",
                type(problem).__name__,
                reason,
                exc_info=logger.isEnabledFor(logging.DEBUG),
            )
            return None
        self._compiler.release()
        return plan


class AdaptedBackend(Backend):
    """A model with adapters in two forms: batches without any adapter run on plans that have none.

    Those are compiled in a thread of their own; until then, and if they cannot be made, one form runs all batches.
    Measured with XLM-RoBERTa large's shape and five adapters of rank 4: with adapters in the plan, a batch takes 18 %
    more processor time, whether its texts have any or not.
    """

    def __init__(self, adapted: OpenvinoBackend, make_plain: Callable[[], OpenvinoBackend]) -> None:
        self.facts = adapted.facts
        self._adapted = adapted
        self._background = ThreadPoolExecutor(1, thread_name_prefix="openvino-compile")
        self._plain = self._background.submit(self._make_plain, make_plain)

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        return self._of(batch).forward(batch, stream)

    def forward_exact(self, batch: TokenBatch) -> Answers:
        return self._adapted.forward_exact(batch)

    def free_memory(self) -> None:
        for backend in self._made():
            backend.free_memory()

    def renew(self, stream: int) -> None:
        for backend in self._made():
            backend.renew(stream)

    def wait(self) -> None:
        """Block until no plan is compiling, whether it succeeded or not."""
        self._adapted.wait()
        wait([self._plain])
        for backend in self._made():
            backend.wait()

    def close(self) -> None:
        """Wait for the compiler, then free everything. No forward may be running or follow."""
        self._background.shutdown()
        for backend in self._made():
            backend.close()

    def _of(self, batch: TokenBatch) -> OpenvinoBackend:
        plain = self._plain.result() if batch.texts.adapters is None and self._plain.done() else None
        return plain or self._adapted

    def _made(self) -> list[OpenvinoBackend]:
        plain = self._plain.result() if self._plain.done() else None
        return [self._adapted] if plain is None else [self._adapted, plain]

    def _make_plain(self, make_plain: Callable[[], OpenvinoBackend]) -> OpenvinoBackend | None:
        self._adapted.wait()  # its plans come first
        try:
            return make_plain()
        except Exception:
            logger.exception("the plans without adapters could not be made: all batches run on those with adapters")
            return None
