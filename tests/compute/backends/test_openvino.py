"""The CPU backend's choices, its two plans, and the real model's vectors. More: test_conformance.py."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench.child import REPOSITORY
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from tests.models import batch_of, random_texts, read_minilm_spec, read_tiny_spec, write_bert
from tokenizers import Tokenizer

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends import openvino as backend_module
from vectord.compute.backends import openvino_plans
from vectord.compute.backends.base import Answers, BackendFacts, BackendOptions, TokenBatch
from vectord.compute.backends.openvino import (
    MAX_BATCH_TOKENS,
    NARROW_GROUPS,
    OpenvinoBackend,
    choose_precision,
    choose_streams,
    choose_wide_streams,
    load,
)
from vectord.compute.backends.openvino_plans import LONG_TOKENS, Compiler, GraphMemory, InferencePrecision, Plan
from vectord.compute.ops.openvino import OpenvinoOps, ov
from vectord.compute.processor import multiplies_bfloat16
from vectord.errors import ConfigError, ModelUnavailable

BATCH = batch_of(*random_texts((9, 1, 30)))
LONE = batch_of(*random_texts((9,)), alone=True)
FACTS = BackendFacts(
    name="openvino", device="cpu", dtype="float32", streams=2, cost="packed", max_batch_tokens=MAX_BATCH_TOKENS
)
TEXTS = [
    "That is a happy person",
    "x",
    "",
    "Größe, 東京, naïve café: 3.14 % of €1,000; " * 12,
    *(" ".join(["a sentence of some length, not the same as the others,"] * n) for n in range(1, 20, 3)),
]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return read_tiny_spec(write_bert(tmp_path_factory.mktemp("bert")))


# --- what is chosen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "streams", "wide"),
    [(1, 1, 1), (2, 2, 1), (4, 4, 1), (6, 4, 1), (8, 4, 2), (16, 4, 4), (32, 8, 8), (64, 16, 16)],
)
def test_streams_follow_the_threads(threads: int, streams: int, wide: int) -> None:
    """One stream a thread up to four, then more threads a stream. A large model's single text runs on up to four."""
    assert (choose_streams(threads), choose_wide_streams(threads)) == (streams, wide)


@pytest.mark.parametrize(
    ("has_bfloat16", "dtype", "architecture", "precision", "logged"),
    [
        (True, "auto", "", "bf16", None),
        (True, "bfloat16", "", "bf16", None),
        (True, "float32", "", "f32", None),
        (False, "auto", "", "f32", None),
        (False, "float32", "", "f32", None),
        (True, "auto", "embedding_gemma2", "f32", None),  # its attention scores are large
        (True, "int8", "embedding_gemma2", "f32", None),
        (True, "int8-weights", "embedding_gemma2", "f32", None),
        (True, "bfloat16", "embedding_gemma2", "bf16", None),
        (True, "auto", "gemma3_text", "bf16", None),
        (False, "bfloat16", "", "f32", ("WARNING", "float32")),
        (True, "float16", "", "bf16", ("INFO", "bfloat16")),  # the default of several servers for GPUs
        (False, "float16", "", "f32", ("INFO", "float32")),
    ],
)
def test_bfloat16_is_for_processors_and_models_that_compute_in_it(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_bfloat16: bool,
    dtype: str,
    architecture: str,
    precision: str,
    logged: tuple[str, str] | None,
) -> None:
    """The runtime, which would emulate it, is not asked. A dtype that is replaced is logged."""
    monkeypatch.setattr(backend_module, "multiplies_bfloat16", lambda: has_bfloat16)
    with caplog.at_level(logging.INFO, "vectord.compute.backends.openvino"):
        assert choose_precision(dtype, None, architecture) == precision
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    expected = [
        (level, f"this processor does not compute in {dtype}; using {used}") for level, used in filter(None, [logged])
    ]
    assert found == expected


@pytest.mark.parametrize(("capabilities", "precision"), [(["FP32", "BF16"], "bf16"), (["FP32"], "f32")])
def test_the_runtime_is_asked_if_the_system_does_not_know(
    monkeypatch: pytest.MonkeyPatch, capabilities: list[str], precision: str
) -> None:
    """Windows and macOS have no /proc/cpuinfo."""
    monkeypatch.setattr(backend_module, "multiplies_bfloat16", lambda: None)
    assert choose_precision("auto", SimpleNamespace(get_property=lambda *_: capabilities)) == precision


@pytest.mark.parametrize(
    "options", [BackendOptions(dtype="int7"), BackendOptions(device="tpu")], ids=["dtype", "device"]
)
def test_unknown_names_stop_the_start(spec: ModelSpec, options: BackendOptions) -> None:
    """A typing error does not become a default."""
    with pytest.raises(ConfigError, match="must be auto"):
        load(spec, options)


def test_gpu_becomes_the_cpu(spec: ModelSpec, caplog: pytest.LogCaptureFixture) -> None:
    """As in the torch backend: it serves, and logs a warning."""
    with caplog.at_level(logging.WARNING, "vectord.compute.backends.openvino"):
        backend = load(spec, BackendOptions(device="cuda:1", threads=1))
    assert backend.facts.device == "cpu"
    assert caplog.messages == ["the openvino backend runs on the cpu, not on cuda:1"]
    backend.close()


# --- two plans ------------------------------------------------------------------------------------------------


class SlowCompiler(Compiler):
    """Delays the narrow plan until `go` is set; `failure` is then raised instead."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, ov.Core(), "f32", threads=2)
        self.go = threading.Event()
        self.failure: Exception | None = None
        self.compiled: list[tuple[int, int, InferencePrecision | None]] = []

    def compile(self, streams: int, groups: int, precision: InferencePrecision | None = None) -> Plan:
        if groups > 1:
            assert self.go.wait(60)
            if self.failure:
                raise self.failure
        plan = super().compile(streams, groups, precision)
        self.compiled.append((streams, groups, precision))
        return plan


@pytest.fixture
def compiler(spec: ModelSpec) -> Iterator[SlowCompiler]:
    slow = SlowCompiler(spec)
    yield slow
    slow.go.set()


def dense(backend: OpenvinoBackend, batch: TokenBatch, stream: int = 0) -> np.ndarray:
    return backend.forward(batch, stream)["dense"]


def test_batches_run_before_the_narrow_plan_is_ready(compiler: SlowCompiler) -> None:
    """A model serves as soon as it is loaded, with the same results as later."""
    backend = OpenvinoBackend(FACTS, compiler, LONE)
    early = [dense(backend, batch, 1) for batch in (BATCH, LONE)]
    assert compiler.compiled == [(1, 1, None)]
    compiler.go.set()
    backend.compile_narrow().result()
    assert compiler.compiled == [(1, 1, None), (2, NARROW_GROUPS["f32"], None)]
    for batch, want in zip((BATCH, LONE), early, strict=True):
        np.testing.assert_allclose(dense(backend, batch, 1), want, atol=1e-5)
    backend.close()


@pytest.mark.parametrize(
    ("batches", "plans"), [([BATCH, *[LONE] * 100], 1), ([BATCH, BATCH], 2)], ids=["texts one by one", "batches"]
)
def test_the_narrow_plan_is_compiled_for_batches(
    compiler: SlowCompiler, monkeypatch: pytest.MonkeyPatch, batches: list[TokenBatch], plans: int
) -> None:
    """Not for texts that come one by one, nor for the few in the self-test: it takes more memory than the model."""
    monkeypatch.setattr(backend_module, "NARROW_AFTER_TOKENS", 2 * BATCH.texts.ids.size)
    compiler.go.set()
    backend = OpenvinoBackend(FACTS, compiler, LONE)
    for batch in batches:
        backend.forward(batch, 0)
    backend.close()
    assert len(compiler.compiled) == plans


WIDE, NARROW = "wide", "narrow"


class CountingPlan:
    """A plan that records its callers."""

    def __init__(self, plan: Plan, calls: list[str], name: str) -> None:
        self._plan, self._calls, self._name = plan, calls, name
        self.lock, self.memory = plan.lock, plan.memory

    def run(self, batch: TokenBatch, stream: int) -> Answers:
        self._calls.append(self._name)
        return self._plan.run(batch, stream)

    def warm_up(self, batch: TokenBatch) -> None:
        self._plan.warm_up(batch)


class CountingCompiler(Compiler):
    def __init__(
        self, spec: ModelSpec, core: Any = None, precision: InferencePrecision = "f32", threads: int = 2
    ) -> None:
        super().__init__(spec, core or ov.Core(), precision, threads)
        self.calls: list[str] = []
        self.plans: dict[str, Any] = {}

    def compile(self, streams: int, groups: int, precision: InferencePrecision | None = None) -> Any:
        name = NARROW if groups > 1 else WIDE
        self.plans[name] = CountingPlan(super().compile(streams, groups, precision), self.calls, name)
        return self.plans[name]


@pytest.mark.parametrize(
    ("streams", "batch", "plan"),
    [
        (2, LONE, WIDE),
        (2, BATCH, NARROW),
        (2, batch_of(*random_texts((9,))), NARROW),
        (1, LONE, NARROW),
        (2, batch_of(*random_texts((9,)), alone=True, outputs=("tokens",)), WIDE),
    ],
    ids=["a lone text", "many texts", "one text among others", "a lone text and one stream", "a lone text's tokens"],
)
def test_the_plan_fits_the_batch(spec: ModelSpec, streams: int, batch: TokenBatch, plan: str) -> None:
    """All threads for a single text, one stream for all else; a single stream has all threads anyway."""
    compiler = CountingCompiler(spec)
    backend = OpenvinoBackend(replace(FACTS, streams=streams), compiler, LONE)
    backend.compile_narrow().result()
    assert backend.forward(batch, 0).keys() == batch.outputs
    assert compiler.calls == [plan]
    backend.close()


@pytest.mark.parametrize("batch", [BATCH, LONE], ids=["many texts", "a lone text"])
def test_a_hung_forward_on_the_wide_plan_does_not_block_another_stream(
    spec: ModelSpec, monkeypatch: pytest.MonkeyPatch, batch: TokenBatch
) -> None:
    """The narrow plan is compiled for it."""
    monkeypatch.setattr(backend_module, "BUSY_S", 0.01)
    compiler = CountingCompiler(spec)
    backend = OpenvinoBackend(FACTS, compiler, LONE)
    with compiler.plans[WIDE].lock:  # of the hung forward
        backend.forward(batch, 1)
    assert compiler.calls == [NARROW]
    backend.close()


def test_without_a_narrow_plan_the_wide_one_serves(compiler: SlowCompiler, caplog: pytest.LogCaptureFixture) -> None:
    """If the narrow plan cannot be compiled, every batch still runs, and the log explains the speed."""
    compiler.failure = RuntimeError("Exception from core.cpp:117:\nno such instruction\n")
    backend = OpenvinoBackend(FACTS, compiler, LONE)
    backend.forward(BATCH, 0)
    compiler.go.set()
    backend.compile_narrow().result()
    for batch in (BATCH, LONE):
        backend.forward(batch, 1)
    assert "batches run one at a time (RuntimeError: no such instruction)" in caplog.text
    assert "Traceback" not in caplog.text
    backend.close()


def test_a_failure_of_the_only_plan_stops_the_load(compiler: SlowCompiler) -> None:
    """There is no wide plan, so load fails."""
    compiler.failure = RuntimeError("no such instruction")
    compiler.go.set()
    with pytest.raises(RuntimeError, match="no such instruction"):
        OpenvinoBackend(FACTS, compiler, LONE, one_plan=True)


def test_the_exact_plan_is_compiled_once_on_first_use(compiler: SlowCompiler) -> None:
    """Two concurrent callers share it, and it computes in float32."""
    compiler.go.set()
    exact = OpenvinoBackend(FACTS, compiler, LONE)
    want = dense(exact, BATCH)
    exact.compile_narrow().result()
    compiler.precision = "bf16"
    backend = OpenvinoBackend(FACTS, compiler, LONE)
    backend.compile_narrow().result()
    assert (1, 1, "f32") not in compiler.compiled
    with ThreadPoolExecutor(2) as pool:
        for answers in pool.map(backend.forward_exact, [BATCH] * 2):
            np.testing.assert_allclose(answers["dense"], want, atol=1e-5)
    assert compiler.compiled.count((1, 1, "f32")) == 1
    backend.close()


# --- one plan for a large model -------------------------------------------------------------------------------


@pytest.mark.parametrize(("most_bytes", "plans"), [(2**30, {WIDE, NARROW}), (0, {NARROW})], ids=["small", "large"])
def test_large_models_have_one_plan(
    spec: ModelSpec, monkeypatch: pytest.MonkeyPatch, most_bytes: int, plans: set[str]
) -> None:
    """A second plan would copy the weights again: the only one serves single texts too, with wider streams."""
    made: list[CountingCompiler] = []

    def make(*arguments: Any) -> CountingCompiler:
        made.append(CountingCompiler(*arguments))
        return made[0]

    monkeypatch.setattr(backend_module, "Compiler", make)
    monkeypatch.setattr(backend_module, "ONE_PLAN_BYTES", most_bytes)
    backend = load(spec, BackendOptions(dtype="float32", threads=2))
    backend.compile_narrow().result()
    assert made[0].plans.keys() == plans
    assert backend.facts.streams == (1 if plans == {NARROW} else 2)
    for batch in (LONE, BATCH):
        assert np.isfinite(dense(backend, batch)).all()
    assert set(made[0].calls) == plans
    backend.close()


# --- long batches ---------------------------------------------------------------------------------------------


def test_long_batches_on_all_streams_at_once_are_answered(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO refuses to free memory while another stream computes: a stream that ends frees none then."""
    monkeypatch.setattr(openvino_plans, "LONG_TOKENS", 0)
    backend = load(spec, BackendOptions(dtype="float32", threads=2, streams=2))
    backend.compile_narrow().result()
    want = backend.forward(BATCH, 0)["dense"]

    def run(stream: int) -> list[Answers]:
        answers = []
        for _ in range(100):
            answers.append(backend.forward(BATCH, stream))
            backend.free_memory()
        return answers

    with ThreadPoolExecutor(2) as threads:
        for answers in threads.map(run, range(2)):
            for answer in answers:
                np.testing.assert_allclose(answer["dense"], want, atol=1e-5)
    backend.close()


class CompiledModel:
    """Counts how often its memory is freed."""

    def __init__(self) -> None:
        self.freed = 0

    def release_memory(self) -> None:
        self.freed += 1


def test_the_last_of_several_streams_frees_the_memory() -> None:
    """After a long batch: while another stream runs, nothing is freed, and without a long batch, nothing ever."""
    compiled = CompiledModel()
    memory = GraphMemory(compiled)  # type: ignore[arg-type]
    with memory.in_use(LONG_TOKENS):
        pass
    memory.free()
    with memory.in_use(LONG_TOKENS):
        with memory.in_use(LONG_TOKENS + 1):
            pass
        memory.free()
    assert compiled.freed == 0
    memory.free()
    memory.free()
    assert compiled.freed == 1


def test_the_wide_plan_frees_the_memory_of_its_batches(spec: ModelSpec) -> None:
    """Once, when the narrow plan runs batches: a single text needs little."""
    compiler, compiled = CountingCompiler(spec), CompiledModel()
    backend = OpenvinoBackend(FACTS, compiler, LONE)
    compiler.plans[WIDE].memory = GraphMemory(compiled)  # type: ignore[arg-type]
    backend.free_memory()
    assert compiled.freed == 0
    backend.compile_narrow().result()
    backend.free_memory()
    backend.free_memory()
    assert compiled.freed == 1
    backend.close()


def test_an_idle_model_frees_the_memory_of_its_batches(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, a while after the last batch, and only then."""
    monkeypatch.setattr(backend_module, "IDLE_S", 0.0)
    compiler, compiled = CountingCompiler(spec), CompiledModel()
    backend = OpenvinoBackend(FACTS, compiler, LONE)
    backend.compile_narrow().result()
    compiler.plans[NARROW].memory = GraphMemory(compiled)  # type: ignore[arg-type]
    backend.forward(BATCH, 0)
    backend.free_memory()
    backend.close()  # waits for the thread
    assert compiled.freed == 1


# --- what goes wrong ------------------------------------------------------------------------------------------


class FailingRequest:
    def __init__(self, message: str) -> None:
        self._message = message

    def set_input_tensors(self, _: object) -> None:
        pass

    def infer(self, **_: object) -> None:
        raise RuntimeError(self._message)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("Exception from src/inference/...: std::bad_alloc", MemoryError),
        ("could not execute a primitive: out_of_memory", MemoryError),
        ("Shape inference failed", RuntimeError),
    ],
)
def test_lack_of_memory_is_a_memory_error(message: str, error: type[Exception]) -> None:
    """OpenVINO raises RuntimeError for everything; the engine halves a batch only for lack of memory."""
    compiled = SimpleNamespace(create_infer_request=lambda: FailingRequest(message))
    graph = SimpleNamespace(pack=lambda texts, outputs: [], outputs=("dense",))
    with pytest.raises(error):
        Plan(compiled, graph, OpenvinoOps(), streams=1).run(BATCH, 0)


def test_a_plan_with_invalid_numbers_stops_the_load(spec: ModelSpec, tmp_path: Path) -> None:
    """Broken weights, or a faulty processor, are detected before the first request."""
    state = {name: tensor * np.float32("nan") for name, tensor in load_file(spec.weights[0]).items()}
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ModelUnavailable, match="first answer is not finite"):  # one line in the log
        load(replace(spec, weights=(tmp_path / "model.safetensors",)), BackendOptions(threads=1))


# --- the real model -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm() -> ModelSpec:
    return read_minilm_spec()


@pytest.fixture(scope="module")
def reference(minilm: ModelSpec) -> SentenceTransformer:
    return SentenceTransformer(str(minilm.folder), device="cpu")


@pytest.fixture(scope="module")
def texts(reference: SentenceTransformer) -> list[list[int]]:
    ids: list[list[int]] = reference.tokenizer(TEXTS, truncation=True, max_length=256)["input_ids"]
    return ids


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    cosine: np.ndarray = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return cosine


@pytest.mark.parametrize(
    ("dtype", "least"), [("float32", 0.99999), ("auto", 0.9999), ("int8-weights", 0.999), ("int4-weights", 0.9)]
)
def test_the_real_vectors(
    minilm: ModelSpec, reference: SentenceTransformer, texts: list[list[int]], dtype: str, least: float
) -> None:
    """Real weights give sentence-transformers' vectors, on both plans, alone and next to longer texts."""
    backend = load(minilm, BackendOptions(dtype=dtype, threads=2))
    want = reference.encode(TEXTS)
    early = dense(backend, batch_of(*texts))
    backend.compile_narrow().result()
    together = dense(backend, batch_of(*texts), 1)
    alone = np.concatenate([dense(backend, batch_of(text, alone=True)) for text in texts])
    single = np.concatenate([dense(backend, batch_of(text)) for text in texts])
    assert dtype in ("auto", backend.facts.dtype)
    for vectors in (early, together, alone, single):
        assert cosines(vectors, want).min() > least
        assert cosines(vectors, together).min() > least
    backend.close()


@pytest.mark.skipif(not multiplies_bfloat16(), reason="bfloat16 is emulated on this processor")
def test_vectors_in_bfloat16_differ_by_at_most_a_thousandth_between_batches() -> None:
    """In each number: alone on either plan, and next to any other texts. docs/tuning.md promises this bound."""
    spec = read_minilm_spec()
    tokenizer = Tokenizer.from_file(str(spec.tokenizer))
    tokenizer.no_padding()
    passages = (REPOSITORY / "bench/calibration_texts.txt").read_text().splitlines()
    texts = [tokenizer.encode(text).ids for text in passages]
    backend = load(spec, BackendOptions(device="cpu", dtype="bfloat16", threads=2))
    backend.compile_narrow().result()

    def vectors(some: list[list[int]], **options: Any) -> np.ndarray:
        dense = backend.forward(batch_of(*some, outputs=("dense",), **options), 0)["dense"]
        return dense / np.linalg.norm(dense, axis=1, keepdims=True)

    wide = np.concatenate([vectors([text], alone=True) for text in texts])
    narrow = np.concatenate([vectors([text]) for text in texts])
    order = np.random.default_rng(0).permutation(len(texts))
    batched = np.empty_like(wide)
    for places in np.split(order, range(9, len(texts), 9)):
        batched[places] = vectors([texts[i] for i in places])
    backend.close()
    np.testing.assert_allclose(narrow, wide, atol=1e-3)
    np.testing.assert_allclose(batched, wide, atol=1e-3)
