"""What the CPU backend chooses, how its two plans take turns, and the true vectors. More: test_conformance.py."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tests.models import batch_of, random_texts, read_minilm_spec, read_tiny_spec, write_bert

from vectord.artifacts.spec import ModelSpec
from vectord.backends import openvino as backend_module
from vectord.backends.base import BackendFacts, BackendOptions, TokenBatch
from vectord.backends.openvino import (
    MAX_BATCH_TOKENS,
    NARROW_GROUPS,
    Compiler,
    OpenvinoBackend,
    Output,
    Plan,
    choose_precision,
    choose_streams,
    load,
)
from vectord.errors import ConfigError, ModelUnavailable
from vectord.ops.openvino import OpenvinoOps, ov
from vectord.schema import Float32

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
    *(" ".join(["a sentence of some length, not the same as the others,"] * n) for n in range(1, 20)),
]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return read_tiny_spec(write_bert(tmp_path_factory.mktemp("bert")))


# --- what is chosen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "streams"), [(1, 1), (2, 2), (3, 3), (4, 4), (6, 4), (8, 4), (16, 4), (32, 8), (64, 16)]
)
def test_streams_follow_the_threads(threads: int, streams: int) -> None:
    """A stream for each thread up to four; then more threads a stream; from 16 threads on more streams of four."""
    assert choose_streams(threads) == streams


@pytest.mark.parametrize(
    ("has_bfloat16", "dtype", "precision"),
    [
        (True, "auto", "bf16"),
        (True, "bfloat16", "bf16"),
        (True, "float32", "f32"),
        (False, "auto", "f32"),
        (False, "float32", "f32"),
    ],
)
def test_bfloat16_is_for_processors_that_have_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_bfloat16: bool, dtype: str, precision: str
) -> None:
    """Nobody is warned about what they asked for or left to us. The runtime, which would emulate it, is not asked."""
    monkeypatch.setattr(backend_module, "multiplies_bfloat16", lambda: has_bfloat16)
    assert choose_precision(dtype, core=None) == precision
    assert not caplog.messages


@pytest.mark.parametrize(("capabilities", "precision"), [(["FP32", "BF16"], "bf16"), (["FP32"], "f32")])
def test_runtime_is_asked_where_the_system_does_not_say(
    monkeypatch: pytest.MonkeyPatch, capabilities: list[str], precision: str
) -> None:
    """Windows and macOS have no /proc/cpuinfo."""
    monkeypatch.setattr(backend_module, "multiplies_bfloat16", lambda: None)
    assert choose_precision("auto", SimpleNamespace(get_property=lambda *_: capabilities)) == precision


@pytest.mark.parametrize(
    ("has_bfloat16", "dtype", "instead"),
    [(False, "bfloat16", "float32"), (True, "float16", "bfloat16"), (False, "float16", "float32")],
)
def test_dtype_the_processor_lacks_becomes_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_bfloat16: bool, dtype: str, instead: str
) -> None:
    """It serves, in a type that it can compute in at full speed, and says so in the log."""
    monkeypatch.setattr(backend_module, "multiplies_bfloat16", lambda: has_bfloat16)
    with caplog.at_level(logging.WARNING, "vectord.backends.openvino"):
        assert choose_precision(dtype, core=None) == {"bfloat16": "bf16", "float32": "f32"}[instead]
    assert caplog.messages == [f"this processor does not compute in {dtype}; using {instead}"]


@pytest.mark.parametrize(
    "options", [BackendOptions(dtype="int7"), BackendOptions(device="tpu")], ids=["dtype", "device"]
)
def test_unknown_names_stop_the_start(spec: ModelSpec, options: BackendOptions) -> None:
    """A typing error is not turned into a default."""
    with pytest.raises(ConfigError, match="must be auto"):
        load(spec, options)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_gpu_becomes_the_cpu(spec: ModelSpec, caplog: pytest.LogCaptureFixture, device: str) -> None:
    """As with the torch backend on a machine without that GPU: it serves, and says so in the log."""
    with caplog.at_level(logging.WARNING, "vectord.backends.openvino"):
        backend = load(spec, BackendOptions(device=device, threads=1))
    assert backend.facts.device == "cpu"
    assert caplog.messages == [f"the openvino backend runs on the cpu, not on {device}"]
    backend.close()


def test_broken_model_stops_the_load(spec: ModelSpec) -> None:
    """What is wrong with the files is said by load, not by a later forward."""
    with pytest.raises(ModelUnavailable):
        load(read_tiny_spec(spec.folder, model_type="no_such_network"), BackendOptions(threads=2))


# --- two plans ------------------------------------------------------------------------------------------------


class SlowCompiler(Compiler):
    """Holds the narrow plan back until `go` is set; `failure` is then raised instead."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, ov.Core(), "f32", threads=2)
        self.go = threading.Event()
        self.failure: Exception | None = None
        self.compiled: list[tuple[str, int, int]] = []

    def compile(self, output: Output, streams: int, groups: int) -> Plan:
        if (output, groups) == ("dense", NARROW_GROUPS):
            assert self.go.wait(60)
            if self.failure:
                raise self.failure
        plan = super().compile(output, streams, groups)
        self.compiled.append((output, streams, groups))
        return plan


@pytest.fixture
def compiler(spec: ModelSpec) -> Iterator[SlowCompiler]:
    slow = SlowCompiler(spec)
    yield slow
    slow.go.set()


def test_answers_before_the_narrow_plan_is_ready(compiler: SlowCompiler) -> None:
    """A model answers every batch as soon as it is loaded, and the same once it is fast."""
    backend = OpenvinoBackend(FACTS, compiler, LONE)
    early = [backend.forward(batch, 1) for batch in (BATCH, LONE)]
    assert compiler.compiled == [("dense", 1, 1)]
    compiler.go.set()
    backend.wait()
    assert compiler.compiled == [("dense", 1, 1), ("dense", 2, NARROW_GROUPS)]
    for batch, want in zip((BATCH, LONE), early, strict=True):
        np.testing.assert_allclose(backend.forward(batch, 1), want, atol=1e-5)
    backend.close()


LONE_PLAN, MANY = "dense, 1 groups", f"dense, {NARROW_GROUPS} groups"


class CountingPlan:
    """A plan that says who called."""

    def __init__(self, plan: Plan, calls: list[str], name: str) -> None:
        self._plan, self._calls, self._name = plan, calls, name

    def run(self, batch: TokenBatch, stream: int) -> Float32:
        self._calls.append(self._name)
        return self._plan.run(batch, stream)

    def warm_up(self, batch: TokenBatch) -> None:
        self._plan.warm_up(batch)


class CountingCompiler(Compiler):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, ov.Core(), "f32", threads=2)
        self.calls: list[str] = []

    def compile(self, output: Output, streams: int, groups: int) -> Any:
        name = f"{output}, {groups} groups"
        return CountingPlan(super().compile(output, streams, groups), self.calls, name)


@pytest.mark.parametrize(
    ("streams", "batch", "plan"),
    [
        (2, LONE, LONE_PLAN),
        (2, BATCH, MANY),
        (2, batch_of(*random_texts((9,))), MANY),
        (1, LONE, MANY),
        (2, batch_of(*random_texts((9,)), alone=True, output="tokens"), f"tokens, {NARROW_GROUPS} groups"),
    ],
    ids=["a lone text", "many texts", "one text among others", "a lone text and one stream", "tokens"],
)
def test_plan_fits_the_batch(spec: ModelSpec, streams: int, batch: TokenBatch, plan: str) -> None:
    """All threads for a text that is alone, one stream for everything else; a single stream has them anyway."""
    compiler = CountingCompiler(spec)
    backend = OpenvinoBackend(replace(FACTS, streams=streams), compiler, LONE)
    backend.wait()
    backend.forward(batch, 0)
    assert compiler.calls == [plan]
    backend.close()


def test_without_a_narrow_plan_wide_serves_on(compiler: SlowCompiler, caplog: pytest.LogCaptureFixture) -> None:
    """When the narrow plan cannot be compiled, every batch is still answered, and the log says why it is slow."""
    compiler.failure = RuntimeError("no such instruction")
    backend = OpenvinoBackend(FACTS, compiler, LONE)
    backend.forward(BATCH, 0)
    compiler.go.set()
    backend.wait()
    for batch in (BATCH, LONE):
        backend.forward(batch, 1)
    assert "one batch at a time" in caplog.text
    backend.close()


def test_failure_with_one_stream_stops_the_load(compiler: SlowCompiler) -> None:
    """There is no wide plan to begin with, so load itself fails."""
    compiler.failure = RuntimeError("no such instruction")
    compiler.go.set()
    with pytest.raises(RuntimeError, match="no such instruction"):
        OpenvinoBackend(replace(FACTS, streams=1), compiler, LONE)


def test_close_waits_for_the_compiler(compiler: SlowCompiler) -> None:
    """Closing gives the checkpoint's memory back only when nobody reads it any more."""
    backend = OpenvinoBackend(FACTS, compiler, LONE)
    order: list[str] = []
    compiler.close = lambda: order.append(f"closed after {len(compiler.compiled)} plans")  # type: ignore[method-assign]
    closing = threading.Thread(target=backend.close)
    closing.start()
    compiler.go.set()
    closing.join(60)
    assert order == ["closed after 2 plans"]


def test_tokens_plan_is_compiled_once_and_late(spec: ModelSpec) -> None:
    """Two streams that ask for tokens at the same time share one plan."""
    compiler = SlowCompiler(spec)
    compiler.go.set()
    backend = OpenvinoBackend(FACTS, compiler, LONE)
    backend.wait()
    assert "tokens" not in {output for output, _, _ in compiler.compiled}
    batch = batch_of(*random_texts((5, 20)), output="tokens")
    threads = [threading.Thread(target=backend.forward, args=(batch, stream)) for stream in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [output for output, _, _ in compiler.compiled].count("tokens") == 1
    backend.close()


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
def test_lack_of_memory_is_told_from_other_failures(message: str, error: type[Exception]) -> None:
    """OpenVINO raises RuntimeError for everything; the engine halves a batch only for lack of memory."""
    compiled = SimpleNamespace(inputs=[], create_infer_request=lambda: FailingRequest(message))
    with pytest.raises(error):
        Plan(compiled, OpenvinoOps(), groups=1, streams=1).run(BATCH, 0)


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


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.99999), ("auto", 0.9999)])
def test_the_true_vectors(
    minilm: ModelSpec, reference: SentenceTransformer, texts: list[list[int]], dtype: str, least: float
) -> None:
    """Real weights give sentence-transformers' vectors, on both plans, alone and beside longer texts."""
    backend = load(minilm, BackendOptions(dtype=dtype, threads=2))
    want = reference.encode(TEXTS)
    early = backend.forward(batch_of(*texts), 0)
    backend.wait()
    together = backend.forward(batch_of(*texts), 1)
    alone = np.concatenate([backend.forward(batch_of(text, alone=True), 0) for text in texts])
    single = np.concatenate([backend.forward(batch_of(text), 0) for text in texts])
    for vectors in (early, together, alone, single):
        assert cosines(vectors, want).min() > least
        assert cosines(vectors, together).min() > least
    backend.close()


def test_dtype_of_the_facts_is_that_of_the_products(minilm: ModelSpec) -> None:
    """/info says bfloat16 exactly when the vectors show its rounding."""
    batch = batch_of(*random_texts((30,), vocab_size=1000))
    exact, chosen = (load(minilm, BackendOptions(dtype=dtype, threads=1)) for dtype in ("float32", "auto"))
    assert exact.facts.dtype == "float32"
    distance = np.abs(exact.forward(batch, 0) - chosen.forward(batch, 0)).max()
    assert (distance > 1e-4) == (chosen.facts.dtype == "bfloat16")
    exact.close()
    chosen.close()
