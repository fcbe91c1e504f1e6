"""The promises of every backend to the engine. Backends are found by listing the folder; each serves tiny models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import numpy as np
import pytest
from msgspec.structs import replace
from tests.compute.backends.models import (
    COLBERT_WIDTH,
    LABELS,
    VOCABULARY,
    write_all_kinds,
    write_classifier,
    write_decoder,
    write_plain,
    write_splade,
    write_tagger,
)
from tests.models import WIDTH, batch_of, pack_texts, random_texts

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute import backends
from vectord.compute.backends.base import ANSWER_LIMIT_BYTES, POOLED, Answers, Backend, BackendOptions, TokenBatch
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack

NOT_BACKENDS = {"base", "invariance", "onnx_graph", "openvino_plans"}
OTHER_FILES = {
    "handler",
    "onnx",
    "onnxruntime",
    "static",
}  # these need files of other formats, which their own tests write
BACKENDS = sorted({module.name for module in iter_modules(backends.__path__)} - NOT_BACKENDS - OTHER_FILES)
MODELS: dict[str, Callable[[Path], ModelSpec]] = {
    "plain": write_plain,
    "all kinds": write_all_kinds,
    "splade": write_splade,
    "classifier": write_classifier,
    "tagger": write_tagger,
    "decoder": write_decoder,
}
NOT_SERVED = {("transformers", "splade")}  # its head has the architecture's own names, so it needs our network
SERVED = [(name, model) for name in BACKENDS for model in MODELS if (name, model) not in NOT_SERVED]
WIDTHS: dict[Output, int] = {
    "dense": WIDTH,
    "tokens": WIDTH,
    "colbert": COLBERT_WIDTH,
    "lexical": 1,
    "splade": VOCABULARY,
    "scores": len(LABELS),
    "token_scores": len(LABELS),
}
LENGTHS = (9, 1, 30, 2, 17, 30)
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=SERVED, ids=", ".join)
def served(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A backend's name and a model's."""
    name, model = request.param
    return name, model


@pytest.fixture(scope="module")
def spec(served: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return MODELS[served[1]](tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def backend(served: tuple[str, str], spec: ModelSpec) -> Iterator[Backend]:
    loaded = load(served[0], spec, BackendOptions(device="cpu", dtype="float32", threads=2))
    yield loaded
    loaded.close()


def load(name: str, spec: ModelSpec, options: BackendOptions) -> Backend:
    backend: Backend = import_module(f"vectord.compute.backends.{name}").load(spec, options)
    return backend


def assert_close(got: Answers, want: Answers, atol: float = 2e-5) -> None:
    assert got.keys() == want.keys()
    for output, rows in want.items():
        np.testing.assert_allclose(got[output], rows, atol=atol, err_msg=output)


def test_facts_describe_the_backend(backend: Backend) -> None:
    """The values that the scheduler and /info read are complete and correct."""
    assert backend.facts.name in BACKENDS
    assert (backend.facts.device, backend.facts.dtype) == ("cpu", "float32")
    assert backend.facts.cost in {"packed", "padded"}
    assert backend.facts.streams >= 1
    assert backend.facts.max_batch_tokens >= 1


def test_the_configured_token_budget_is_used(spec: ModelSpec, backend: Backend) -> None:
    """The scheduler sees max_batch_tokens of the options."""
    options = BackendOptions(device="cpu", dtype="float32", threads=1, max_batch_tokens=77)
    other = load(backend.facts.name, spec, options)
    assert other.facts.max_batch_tokens == 77
    other.close()


def test_outputs_as_wide_as_the_vocabulary_are_bounded(spec: ModelSpec, backend: Backend) -> None:
    """A batch of SPLADE outputs fits into 32 MiB, however short the texts; no other model limits its texts."""
    if "splade" in spec.outputs:
        assert backend.facts.max_batch_texts == ANSWER_LIMIT_BYTES // (4 * VOCABULARY)
    else:
        assert backend.facts.max_batch_texts is None


def test_outputs_have_a_row_a_text_or_a_row_a_token(backend: Backend, spec: ModelSpec) -> None:
    """From one token to the model's maximum, finite float32, without rows of padding."""
    for alone in [False, True]:
        for lengths in [LENGTHS, (1,), (500,), (1, 500, 3)]:
            answers = backend.forward(batch_of(*random_texts(lengths), outputs=spec.outputs, alone=alone), 0)
            for output, rows in answers.items():
                assert rows.shape == (len(lengths) if output in POOLED else sum(lengths), WIDTHS[output])
                assert rows.dtype == np.float32
                assert np.isfinite(rows).all()


def test_only_requested_outputs_are_returned(backend: Backend, spec: ModelSpec) -> None:
    """Each output alone equals the one from a request for all."""
    texts = random_texts(LENGTHS)
    together = backend.forward(batch_of(*texts, outputs=spec.outputs), 0)
    assert together.keys() == spec.outputs
    for output in spec.outputs:
        assert_close(backend.forward(batch_of(*texts, outputs=[output]), 0), {output: together[output]})


def test_each_span_has_a_row(backend: Backend, spec: ModelSpec) -> None:
    """Pooled outputs belong to the spans, in order; token outputs do not change."""
    texts = random_texts(LENGTHS)
    spans = np.array([[0, 9], [12, 20], [10, 40], [20, 21]], np.int32)
    spanned = TokenBatch(texts=pack_texts(*texts, spans=spans), outputs=spec.outputs)
    got, whole = backend.forward(spanned, 0), backend.forward(batch_of(*texts, outputs=spec.outputs), 0)
    for output, rows in got.items():
        if output in POOLED:
            assert rows.shape == (len(spans), WIDTHS[output])
            np.testing.assert_allclose(rows[[0, 2]], whole[output][[0, 2]], atol=2e-5)  # these pool whole texts
            # transformers' classifiers pool by themselves: a span has the scores of its whole text
            same = (backend.facts.name, output) == ("transformers", "scores")
            assert (np.abs(rows[1] - rows[2]).max() <= TOLERANCE) == same
        else:
            np.testing.assert_allclose(rows, whole[output], atol=2e-5)


def test_more_tokens_than_the_budget_still_run(backend: Backend, spec: ModelSpec) -> None:
    """The scheduler sends a text over the budget alone."""
    texts = random_texts((500,) * (backend.facts.max_batch_tokens // 500 + 1))
    output = min(spec.outputs)
    assert np.isfinite(backend.forward(batch_of(*texts, outputs=[output]), 0)[output]).all()


def test_outputs_survive_the_next_forward(backend: Backend, spec: ModelSpec) -> None:
    """The caller owns an output: neither later batches nor writing to it changes another output."""
    batch = batch_of(*random_texts(LENGTHS), outputs=spec.outputs)
    answers = backend.forward(batch, 0)
    kept = {output: rows.copy() for output, rows in answers.items()}
    again = backend.forward(batch, 0)
    backend.forward(batch_of(*random_texts(LENGTHS, seed=1), outputs=spec.outputs), 0)
    assert_close(answers, kept, atol=0)
    for rows in again.values():
        rows[:] = np.nan
    assert_close(backend.forward(batch, 0), kept)


def test_streams_run_concurrently(backend: Backend, spec: ModelSpec) -> None:
    """Each stream has the same outputs while all others run."""
    streams = backend.facts.streams
    batches = [batch_of(*random_texts(LENGTHS, seed=seed), outputs=spec.outputs) for seed in range(8)]
    want = [backend.forward(batch, 0) for batch in batches]

    def work(stream: int) -> list[Answers]:
        return [backend.forward(batch, stream) for batch in batches]

    with ThreadPoolExecutor(streams) as pool:
        for answers in pool.map(work, range(streams)):
            for got, expected in zip(answers, want, strict=True):
                assert_close(got, expected)


def test_a_renewed_stream_returns_the_same(backend: Backend, spec: ModelSpec) -> None:
    """After a hung forward another thread uses it, in float32 too."""
    batch = batch_of(*random_texts(LENGTHS), outputs=spec.outputs)
    want = backend.forward(batch, 0)
    backend.renew(0)
    for got in (backend.forward(batch, 0), backend.forward_exact(batch)):
        assert_close(got, want)


def test_exact_equals_forward_for_a_float32_model(backend: Backend, spec: ModelSpec) -> None:
    """From any thread."""
    batch = batch_of(*random_texts(LENGTHS), outputs=spec.outputs)
    want = backend.forward(batch, 0)
    with ThreadPoolExecutor(3) as pool:
        for got in pool.map(backend.forward_exact, [batch] * 3):
            assert_close(got, want)


def test_outputs_equal_the_reference(backend: Backend, spec: ModelSpec) -> None:
    """A backend that runs the network is within 1e-4 of the float64 reference; the fake has its own numbers."""
    batch = batch_of(*random_texts(LENGTHS), outputs=spec.outputs)
    want = Network(spec, open_checkpoint(spec.weights), NumpyOps())(pack(batch.texts), batch.outputs)
    for output, rows in backend.forward(batch, 0).items():
        distance = np.abs(rows - want[output]).max()
        assert (distance > TOLERANCE) == (backend.facts.name == "fake"), output


@pytest.mark.parametrize("name", sorted({*BACKENDS} - {"fake"}))
def test_shared_beginnings_are_computed_once(name: str, tmp_path: Path) -> None:
    """In a causal model a text after its parent has the outputs of the whole text."""
    spec = write_decoder(tmp_path)
    backend = load(name, spec, BackendOptions(device="cpu", dtype="float32", threads=1))
    start, *ends = random_texts((40, 7, 90, 1))
    shared = pack_texts(start, *ends, parents=np.array([-1, 0, 0, 0], np.int32))
    got = backend.forward(TokenBatch(texts=shared, outputs=frozenset({"dense"})), 0)["dense"]
    want = backend.forward(batch_of(start, *(start + end for end in ends)), 0)["dense"]
    np.testing.assert_allclose(got, want, atol=2e-5)
    backend.close()


@pytest.mark.parametrize("name", sorted({*BACKENDS} - {"fake"}))
def test_keys_may_be_fewer_than_tokens(name: str, tmp_path: Path) -> None:
    """Expansion tokens attend to the query and are not attended to: the query's own rows do not change."""
    spec = write_all_kinds(tmp_path)
    backend = load(name, spec, BackendOptions(device="cpu", dtype="float32", threads=1))
    query, other = random_texts((9, 20))
    filled = pack_texts(query + [4] * 11, other, keys=np.array([9, 20], np.int32))
    got = backend.forward(TokenBatch(texts=filled, outputs=frozenset({"colbert"})), 0)["colbert"]
    want = backend.forward(batch_of(query, other, outputs=["colbert"]), 0)["colbert"]
    np.testing.assert_allclose(np.delete(got, np.s_[9:20], axis=0), want, atol=2e-5)
    backend.close()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_model_without_weights_stops_the_load(name: str, tmp_path: Path) -> None:
    """load reports problems of the files; the fake opens none."""
    from vectord.errors import ModelUnavailable

    spec = replace(write_plain(tmp_path), weights=(tmp_path / "missing.safetensors",))
    if name == "fake":
        load(name, spec, BackendOptions()).close()
        return
    with pytest.raises(ModelUnavailable, match=r"missing\.safetensors"):
        load(name, spec, BackendOptions(device="cpu", threads=1))
