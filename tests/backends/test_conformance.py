"""What every backend must do for the engine. Backends are found by listing the folder; each serves a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import pytest
from tests.models import WIDTH, batch_of, random_texts, read_tiny_spec, write_sentence_bert

from vectord import backends
from vectord.artifacts.checkpoint import open_checkpoint
from vectord.artifacts.spec import ModelSpec
from vectord.backends.base import Backend, BackendOptions, TokenBatch
from vectord.networks.network import Network
from vectord.ops.numpy import NumpyOps, pack

NOT_BACKENDS = {"base"}
BACKENDS = sorted({module.name for module in iter_modules(backends.__path__)} - NOT_BACKENDS)
DIMENSIONS = 16
LENGTHS = (9, 1, 30, 2, 17, 30)
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return read_tiny_spec(write_sentence_bert(tmp_path_factory.mktemp("model"), dense=(DIMENSIONS,)))


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest, spec: ModelSpec) -> Iterator[Backend]:
    loaded: Backend = import_module(f"vectord.backends.{request.param}").load(
        spec, BackendOptions(device="cpu", dtype="float32", threads=2)
    )
    yield loaded
    loaded.close()


def test_facts_name_the_backend_and_bound_its_batches(backend: Backend) -> None:
    """What the scheduler and /info read is complete and true."""
    assert backend.facts.name in BACKENDS
    assert (backend.facts.device, backend.facts.dtype) == ("cpu", "float32")
    assert backend.facts.cost in {"packed", "padded"}
    assert backend.facts.streams >= 1
    assert backend.facts.max_batch_tokens >= 1


def test_budget_of_the_options_is_kept(spec: ModelSpec, backend: Backend) -> None:
    """max_batch_tokens of the options is the one that the scheduler sees."""
    load = import_module(f"vectord.backends.{backend.facts.name}").load
    other = load(spec, BackendOptions(device="cpu", dtype="float32", threads=1, max_batch_tokens=77))
    assert other.facts.max_batch_tokens == 77
    other.close()


@pytest.mark.parametrize("alone", [False, True], ids=["among others", "alone"])
@pytest.mark.parametrize("lengths", [LENGTHS, (1,), (512,), (1, 512, 3)], ids=str)
def test_dense_is_one_vector_a_text(backend: Backend, lengths: tuple[int, ...], alone: bool) -> None:
    """From one token to as many as the model reads, (N, D) finite float32."""
    vectors = backend.forward(batch_of(*random_texts(lengths), alone=alone), 0)
    assert vectors.shape == (len(lengths), DIMENSIONS)
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()


@pytest.mark.parametrize("lengths", [LENGTHS, (1,), (512,)], ids=str)
def test_tokens_is_one_vector_a_token(backend: Backend, lengths: tuple[int, ...]) -> None:
    """(T, H), before pooling and Dense, no row more than the batch has tokens."""
    vectors = backend.forward(batch_of(*random_texts(lengths), output="tokens"), 0)
    assert vectors.shape == (sum(lengths), WIDTH)
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()


def test_more_tokens_than_the_budget_still_run(backend: Backend) -> None:
    """The scheduler sends a text over the budget alone; other batches than the largest expected must work too."""
    texts = random_texts((512,) * (backend.facts.max_batch_tokens // 512 + 1))
    assert np.isfinite(backend.forward(batch_of(*texts), 0)).all()


@pytest.mark.parametrize("output", ["dense", "tokens"])
def test_neighbours_change_nothing(backend: Backend, output: str) -> None:
    """A text has the same vectors alone, in a batch, and beside longer ones."""
    texts = random_texts(LENGTHS)
    together = backend.forward(batch_of(*texts, output=output), 0)
    alone = [backend.forward(batch_of(text, output=output, alone=True), 0) for text in texts]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=2e-5)


def test_order_in_is_order_out(backend: Backend) -> None:
    """Reversing a batch reverses its answer."""
    texts = random_texts(LENGTHS)
    forwards = backend.forward(batch_of(*texts), 0)
    backwards = backend.forward(batch_of(*texts[::-1]), 0)
    np.testing.assert_allclose(backwards, forwards[::-1], atol=2e-5)


def test_answer_outlives_the_next_forward(backend: Backend) -> None:
    """An answer is the caller's own: neither later batches nor writing to it touch any other answer."""
    batch = batch_of(*random_texts(LENGTHS))
    answer = backend.forward(batch, 0)
    kept = answer.copy()
    again = backend.forward(batch, 0)
    backend.forward(batch_of(*random_texts(LENGTHS, seed=1)), 0)
    np.testing.assert_array_equal(answer, kept)
    again[:] = np.nan
    np.testing.assert_allclose(backend.forward(batch, 0), kept, atol=2e-5)


def test_inputs_are_only_read(backend: Backend) -> None:
    """The engine may go on using a batch's arrays, for a retry of its single texts."""
    batch = batch_of(*random_texts(LENGTHS))
    backend.forward(batch, 0)
    untouched = batch_of(*random_texts(LENGTHS))
    np.testing.assert_array_equal(batch.ids, untouched.ids)
    np.testing.assert_array_equal(batch.type_ids, untouched.type_ids)
    np.testing.assert_array_equal(batch.cu_seqlens, untouched.cu_seqlens)


def test_streams_run_at_once(backend: Backend) -> None:
    """Every stream gives the same answers while all the others work."""
    streams = backend.facts.streams
    batches = [batch_of(*random_texts(LENGTHS, seed=seed)) for seed in range(12)]
    want = [backend.forward(batch, 0) for batch in batches]

    def work(stream: int) -> list[np.ndarray]:
        return [backend.forward(batch, stream) for batch in batches]

    with ThreadPoolExecutor(streams) as pool:
        for answers in pool.map(work, range(streams)):
            np.testing.assert_allclose(np.array(answers), np.array(want), atol=2e-5)


def test_impossible_calls_are_our_own_mistake(backend: Backend) -> None:
    """No client can cause an empty batch or a stream that is not there, so these are assertions."""
    none = np.zeros(0, np.int32)
    with pytest.raises(AssertionError):
        backend.forward(TokenBatch(ids=none, type_ids=none, cu_seqlens=np.zeros(1, np.int32)), 0)
    with pytest.raises(AssertionError):
        backend.forward(batch_of([1, 2]), backend.facts.streams)


@pytest.mark.parametrize("output", ["dense", "tokens"])
def test_answer_is_that_of_the_reference(backend: Backend, spec: ModelSpec, output: str) -> None:
    """A backend that runs the network gives the float64 reference's vectors within 1e-4; the fake gives its own."""
    batch = batch_of(*random_texts(LENGTHS), output=output)
    network = Network(spec, open_checkpoint(spec.weights), NumpyOps())
    want = network(pack(batch.ids, batch.type_ids, batch.cu_seqlens), batch.output)
    distance = np.abs(backend.forward(batch, 0) - want).max()
    assert (distance > TOLERANCE) == (backend.facts.name == "fake")
