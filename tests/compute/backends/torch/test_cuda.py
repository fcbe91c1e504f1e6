"""On a GPU, if there is one: copies, streams, captures and memory, which the processor cannot show.

Every architecture: tests/compute/networks/test_on_gpu.py.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.compute.backends.models import write_all_kinds, write_classifier, write_decoder, write_plain, write_splade
from tests.models import batch_of, pack_texts, random_texts

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import Answers, BackendOptions, TokenBatch
from vectord.compute.backends.torch import TorchBackend, load
from vectord.compute.backends.torch.device import MIB, cap_memory
from vectord.compute.backends.torch.graphs import Graphs
from vectord.compute.backends.torch.loading import fused_ops
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.compute.ops.torch import TorchOps
from vectord.compute.ops.torch.ops import FUSED_TOLERANCES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MODELS: dict[str, Callable[[Path], ModelSpec]] = {
    "plain": write_plain,
    "all kinds": write_all_kinds,
    "splade": write_splade,
    "classifier": write_classifier,
    "decoder": write_decoder,
}
TOLERANCES = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.3}  # for numbers around 1, with random weights
LENGTHS = (9, 1, 30, 2, 17, 30)
LONG = (400, 500, 1, 300, 500, 77, 480, 500)  # more than the largest graph holds


@pytest.fixture(scope="module", params=MODELS)
def spec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return MODELS[request.param](tmp_path_factory.mktemp("model"))


def on_gpu(spec: ModelSpec, dtype: str, **options: float) -> TorchBackend:
    return load(spec, BackendOptions(device="cuda", dtype=dtype, **{"capacity_s": 0, **options}))


def assert_close(got: Answers, want: Answers, atol: float) -> None:
    assert got.keys() == want.keys()
    for output, rows in want.items():
        np.testing.assert_allclose(got[output], rows, atol=atol, rtol=atol, err_msg=output)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("lengths", [LENGTHS, LONG], ids=["small", "large"])
def test_outputs_equal_the_reference(spec: ModelSpec, dtype: str, lengths: tuple[int, ...]) -> None:
    """In every dtype, with graphs and beyond them."""
    batch = batch_of(*random_texts(lengths), outputs=spec.outputs)
    want = Network(spec, open_checkpoint(spec.weights), NumpyOps())(pack(batch.texts), batch.outputs)
    backend = on_gpu(spec, dtype)
    assert_close(backend.forward(batch, 0), want, TOLERANCES[dtype])
    assert_close(backend.forward_exact(batch), want, TOLERANCES["float32"])
    backend.close()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_graphs_equal_eager_kernels(spec: ModelSpec, dtype: str) -> None:
    """Except for the order of sums in products of another size."""
    backend = on_gpu(spec, dtype)
    if torch.cuda.get_device_capability() >= (8, 0):
        assert len(backend.graphs)
    batches = [batch_of(*random_texts(LENGTHS, seed=seed), outputs=spec.outputs) for seed in range(4)]
    with_graphs = [backend.forward(batch, 0) for batch in batches]
    backend.graphs = Graphs()
    for batch, got in zip(batches, with_graphs, strict=True):
        assert_close(got, backend.forward(batch, 0), TOLERANCES[dtype] / 4)
    backend.close()


@pytest.mark.parametrize("dtype", FUSED_TOLERANCES, ids=str)
def test_fused_kernels_run_and_agree_with_torch(dtype: torch.dtype) -> None:
    """From Ampere on, with Triton and a C compiler."""
    assert torch.cuda.get_device_capability() < (8, 0) or fused_ops(torch.device("cuda"), dtype) is not TorchOps


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_8_bits_keep_the_direction(dtype: str, tmp_path: Path) -> None:
    """Of random weights' vectors; fp8 from compute capability 8.9 on."""
    if dtype == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs compute capability 8.9")
    spec, batch = write_plain(tmp_path), batch_of(*random_texts(LENGTHS))
    backends = [on_gpu(spec, name) for name in (dtype, "float32")]
    got, want = (backend.forward(batch, 0)["dense"] for backend in backends)
    cosines = (got * want).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
    assert cosines.mean() > 0.99
    for backend in backends:
        backend.close()


def test_streams_do_not_mix_batches(spec: ModelSpec) -> None:
    """Batches of both forms and many sizes, on two streams at once, have the outputs of sequential runs."""
    backend = on_gpu(spec, "float16")
    shapes = [LENGTHS, LONG, (1,), (16,) * 40, (500,)]
    batches = [batch_of(*random_texts(some, seed=i), outputs=spec.outputs) for i, some in enumerate(shapes * 6)]
    want = [backend.forward(batch, 0) for batch in batches]

    def work(stream: int) -> list[Answers]:
        return [backend.forward(batch, stream) for batch in batches[:: 1 - 2 * stream]]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(work, range(2))
    for answers in (first, second[::-1]):
        for got, expected in zip(answers, want, strict=True):
            assert_close(got, expected, 1e-3)
    backend.close()


def test_parents_and_keys_use_the_kernel_too(tmp_path: Path) -> None:
    """Without a flat form: a beginning that several texts share."""
    spec = write_decoder(tmp_path)
    backend = on_gpu(spec, "float16")
    start, *ends = random_texts((40, 7, 90, 1))
    shared = pack_texts(start, *ends, parents=np.array([-1, 0, 0, 0], np.int32))
    got = backend.forward(TokenBatch(texts=shared, outputs=frozenset({"dense"})), 0)
    want = backend.forward(batch_of(start, *(start + end for end in ends)), 0)
    assert_close(got, want, TOLERANCES["float16"])
    backend.close()


def test_a_full_device_is_a_memory_error_and_recovers(tmp_path: Path) -> None:
    """The engine halves a batch on it; a batch that fits runs as before."""
    spec = write_plain(tmp_path)
    backend = on_gpu(spec, "float16", graph_memory_mib=0)
    small = batch_of(*random_texts(LENGTHS))
    want = backend.forward(small, 0)
    held = int(torch.cuda.memory_reserved() / MIB)
    cap_memory(torch.device("cuda"), held + 64)
    try:
        with pytest.raises(MemoryError):
            backend.forward(batch_of(*random_texts((500,) * 4000)), 0)
        assert_close(backend.forward(small, 0), want, 1e-3)
        assert torch.cuda.memory_reserved() <= (held + 64) * MIB
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    backend.close()


def test_capacity_is_found(tmp_path: Path) -> None:
    """A measured budget, which runs."""
    spec = write_plain(tmp_path)
    backend = on_gpu(spec, "float16", capacity_s=5.0)
    tokens = backend.facts.max_batch_tokens
    assert tokens >= 1
    backend.forward(batch_of(*random_texts((min(tokens, 500),) * max(1, tokens // 500))), 0)
    backend.close()


def test_repeated_loads_free_their_memory(tmp_path: Path) -> None:
    """Graphs and weights go with their model."""
    spec = write_plain(tmp_path)
    on_gpu(spec, "float16").close()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        backend = on_gpu(spec, "float16")
        backend.forward(batch_of(*random_texts(LENGTHS)), 1)
        backend.close()
        del backend
    assert torch.cuda.memory_allocated() <= before + MIB
