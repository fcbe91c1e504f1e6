"""The CPU backend: one model, compiled by OpenVINO into two plans, for throughput and for single texts.

engine/models calls `load` in the loading thread; the engine's worker threads call `forward`. The **wide** plan runs one
text on all threads, the **narrow** plan gives each stream a few threads of its own. Wide is compiled by `load`. Narrow
is compiled in a thread of its own when texts have come in batches; wide runs them until then. A plan holds a copy of
all weights in its own layout, so a large model has one plan only, with few streams. docs/tuning.md has measurements.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from vectord.checkpoints.spec import FLOAT32_BY_DEFAULT, ModelSpec
from vectord.compute.backends.base import Answers, Backend, BackendFacts, BackendOptions, TokenBatch, max_batch_texts
from vectord.compute.backends.openvino_plans import Compiler, InferencePrecision, Plan
from vectord.compute.ops.base import PackedTexts
from vectord.compute.ops.openvino import ov
from vectord.compute.ops.packed_weights import PACKINGS
from vectord.compute.processor import multiplies_bfloat16, multiplies_int8, thread_budget
from vectord.errors import ConfigError
from vectord.housekeeping import GuardedLogger

logger = GuardedLogger(logging.getLogger(__name__))

MAX_BATCH_TOKENS = 1024  # memory and the duration of a batch grow with it
ONE_PLAN_BYTES = 400_000_000  # a model with a larger plan has no second one
# In batches, after which the narrow plan is compiled: several times the self-test, and less than a second of work.
NARROW_AFTER_TOKENS = 4 * MAX_BATCH_TOKENS
BUSY_S = 2.0  # a stream that waits so long for the wide plan takes the narrow one
IDLE_S = 2.0  # after the last batch, until the memory that batches needed is freed
# Length groups of an only plan, and of the narrow one. Each takes 1.5 MB a layer and stream. In float32 a fourth saves
# 0.6 % of a batch; in bfloat16 attention takes more of it.
ONE_PLAN_GROUPS = 2
NARROW_GROUPS: Mapping[InferencePrecision, int] = {"bf16": 4, "f32": 3}

DTYPES: Mapping[InferencePrecision, str] = {"bf16": "bfloat16", "f32": "float32"}


def load(spec: ModelSpec, options: BackendOptions) -> OpenvinoBackend:
    """Return the model, ready to run, with one plan."""
    if options.device.partition(":")[0] in {"cuda", "mps"}:
        logger.warning("the openvino backend runs on the cpu, not on %s", options.device)
    elif options.device not in {"auto", "cpu"}:
        raise ConfigError("device must be auto, cpu, cuda, cuda:N or mps")
    core = ov.Core()
    precision = choose_precision(options.dtype, core, spec.architecture)
    threads = options.threads or thread_budget()
    compiler = Compiler(spec, core, precision, threads)
    dtype = DTYPES[precision]
    if options.dtype == "int8" and (reason := _why_not_int8(compiler)) is not None:
        logger.warning("int8: %s, so %s is used", reason, dtype)
    elif options.dtype in PACKINGS:
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
    length = min(spec.max_tokens, facts.max_batch_tokens)
    texts = PackedTexts.of([np.zeros(length, np.int32)] * (facts.max_batch_tokens // length))
    largest_batch = TokenBatch(texts=texts, outputs=spec.outputs)
    return OpenvinoBackend(facts, compiler, largest_batch, one_plan=one_plan)


def choose_streams(threads: int) -> int:
    """Return how many batches run at once on this many threads.

    The threads of one stream wait for each other several times a layer, and for any thread that the system preempts for
    other work, such as the server itself. So each of the first four threads has its own stream. Beyond, streams get up
    to four threads, because batches would take long and every stream needs memory.
    """
    return min(threads, max(4, threads // 4))


def choose_wide_streams(threads: int) -> int:
    return max(1, threads // 4)


def choose_precision(dtype: str, core: ov.Core, architecture: str = "") -> InferencePrecision:
    """Return the precision of products. bfloat16 only if the processor supports it: emulation is very slow.

    auto: float32 for FLOAT32_BY_DEFAULT, else bfloat16. With packed matrices (PACKINGS), all ops but the products of
    int8 compute as for auto; so does float16, because no processor supports it.
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


def _why_not_int8(compiler: Compiler) -> str | None:
    if multiplies_int8() is False:
        return "this processor has no instructions for it"
    if compiler.spec.architecture in FLOAT32_BY_DEFAULT:
        return "this architecture needs more exact numbers"
    group = PACKINGS["int8"].group
    if not any(len(weight.shape) == 2 and weight.shape[1] % group == 0 for weight in compiler.weights):
        return f"no matrix has a width that is a multiple of {group}"
    return None


class OpenvinoBackend(Backend):
    def __init__(
        self, facts: BackendFacts, compiler: Compiler, largest_batch: TokenBatch, *, one_plan: bool = False
    ) -> None:
        """Compiles one plan. A single stream has all threads, so it needs no wide plan."""
        self._groups = ONE_PLAN_GROUPS if one_plan else NARROW_GROUPS[compiler.precision]
        self.facts = facts
        self._compiler = compiler
        self._largest_batch = largest_batch
        self._exact_lock = threading.Lock()
        self._exact: Plan | None = None
        self._wide = None if one_plan or facts.streams == 1 else compiler.compile(streams=1, groups=1)
        self._background = ThreadPoolExecutor(2, thread_name_prefix="openvino")  # compiles, and waits for idle time
        self._ended_s = 0.0  # when the last batch ended
        self._has_batched = False  # on the narrow plan, since its memory was last freed
        self._idle: Future[None] | None = None
        self._closing = threading.Event()
        self._background_lock = threading.Lock()
        self._narrow: Future[Plan | None] | None = None
        self._batched_tokens = 0  # on the wide plan
        if self._wide is None:
            self.compile_narrow().result()

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        assert 0 <= stream < self.facts.streams, "no such stream"
        assert batch.texts.cu_seqlens.size > 1, "an empty batch"
        if not batch.alone and self._narrow is None:
            self._batched_tokens += batch.texts.ids.size
            if self._batched_tokens >= NARROW_AFTER_TOKENS:
                self.compile_narrow()
        prefers_wide = batch.alone
        while True:
            wide, narrow = self._wide, self._ready_narrow()
            if narrow is not None and (wide is None or not prefers_wide):
                self._has_batched = True
                return narrow.run(batch, stream)
            assert wide is not None, "load waits for the only plan"
            if wide.lock.acquire(timeout=BUSY_S):
                try:
                    return wide.run(batch, stream=0)
                finally:
                    wide.lock.release()
            self.compile_narrow()  # the wide plan may hang; `renew` replaces it after forward_timeout_s
            prefers_wide = False

    def forward_exact(self, batch: TokenBatch) -> Answers:
        """See Backend.forward_exact. Its plan is compiled on first use, which is rare."""
        assert batch.texts.cu_seqlens.size > 1, "an empty batch"
        with self._exact_lock:
            if self._exact is None:
                plan = self._wide or self._ready_narrow()
                if plan is not None and self._compiler.is_exact:
                    self._exact = plan.with_own_request()
                else:
                    self._exact = self._compiler.compile(streams=1, groups=1, precision="f32")
            return self._exact.run(batch, stream=0)

    def free_memory(self) -> None:
        """See Backend.free_memory. IDLE_S after the last batch of several texts, it frees what those need."""
        self._ended_s = time.monotonic()
        if self._has_batched:
            with self._background_lock:
                if self._idle is None or self._idle.done():
                    self._idle = self._background.submit(self._free_when_idle)
        self._free_large()

    def _free_when_idle(self) -> None:
        while (left_s := self._ended_s + IDLE_S - time.monotonic()) > 0:
            if self._closing.wait(left_s):
                return
        narrow = self._ready_narrow()
        if narrow is None or narrow.memory.is_in_use:  # the end of that batch begins another wait
            return
        self._has_batched = False
        narrow.memory.mark_large()
        self._free_large()
        self._compiler.release()

    def _free_large(self) -> None:
        for plan in (self._wide, self._ready_narrow(), self._exact):
            if plan is not None:
                plan.memory.free()

    def renew(self, stream: int) -> None:
        """Make new plans and locks: the hung forward keeps threads and may hold a lock. As slow as a load."""
        wide = None if self._wide is None else self._compiler.compile(streams=1, groups=1)
        needs_narrow = wide is None or self._ready_narrow() is not None
        narrow = self._compiler.compile(self.facts.streams, self._groups) if needs_narrow else None
        self._wide = wide
        self._exact, self._exact_lock = None, threading.Lock()
        if narrow is not None:
            self._narrow = Future()
            self._narrow.set_result(narrow)

    def compile_narrow(self) -> Future[Plan | None]:
        """Begin to compile the narrow plan, unless that has begun. The result is None if it cannot be made."""
        with self._background_lock:
            if self._narrow is None:
                self._narrow = self._background.submit(self._compile_narrow)
            return self._narrow

    def close(self) -> None:
        self._closing.set()
        self._background.shutdown()
        del self._wide, self._narrow, self._exact
        self._compiler.close()

    def _ready_narrow(self) -> Plan | None:
        return self._narrow.result() if self._narrow is not None and self._narrow.done() else None

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
        if self._wide is not None:  # it has run batches until now, and will run single texts
            self._wide.memory.mark_large()
        return plan
