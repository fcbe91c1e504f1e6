"""What a load decides: matrices in 8 bits, whether a network has a flat form, the tokens of a batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.compute.backends.models import write_classifier, write_decoder, write_plain
from tests.compute.ops.torch.kernel import written_out
from tests.models import batch_of, random_texts, read_minilm_spec, read_tiny_spec, write_bert

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import BackendOptions, TokenBatch
from vectord.compute.backends.torch import load
from vectord.compute.backends.torch.capacity import choose_budget, measure, sample_texts
from vectord.compute.backends.torch.loading import fused_ops, probe, runs_flat
from vectord.compute.networks.network import Network
from vectord.compute.ops.torch import TorchOps

CPU = torch.device("cpu")


def network_of(spec: ModelSpec) -> Network[torch.Tensor]:
    return Network(spec, open_checkpoint(spec.weights), TorchOps(CPU, torch.float32, written_out))


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
@pytest.mark.parametrize("write", [write_plain, write_decoder, write_classifier])
def test_matrices_are_held_in_8_bits(write: Callable[[Path], ModelSpec], dtype: str, tmp_path: Path) -> None:
    """The outputs differ from those of the usual dtype, and `forward_exact` has these."""
    spec = write(tmp_path)
    backend = load(spec, BackendOptions(device="cpu", dtype=dtype))
    assert backend.facts.dtype == dtype
    output = min(spec.outputs - {"tokens"})
    batch = batch_of(*random_texts((9, 40, 3)), outputs=[output])
    got, want = (one.forward(batch, 0)[output] for one in (backend, load(spec, BackendOptions(device="cpu"))))
    assert np.abs(got - want).max() > 1e-5
    np.testing.assert_allclose(backend.forward_exact(batch)[output], want, atol=1e-5)


@pytest.mark.parametrize(("dtype", "least"), [("int8", 0.999), ("fp8", 0.99)])
def test_8_bits_of_a_trained_model_are_close(dtype: str, least: float) -> None:
    """MiniLM's vectors of random tokens keep this cosine in the mean."""
    batch = TokenBatch(texts=sample_texts(512, 128, 30_522), outputs=frozenset({"dense"}))
    options = (BackendOptions(device="cpu", dtype=name) for name in (dtype, "float32"))
    got, want = (load(read_minilm_spec(), each).forward(batch, 0)["dense"] for each in options)
    cosines = (got * want).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
    assert cosines.mean() > least


def test_the_flat_form_of_a_network_is_detected(tmp_path: Path) -> None:
    """Heads that the kernel does not support have none, nor has a network without a kernel."""
    spec = write_plain(tmp_path / "8")
    assert runs_flat(network_of(spec), CPU, spec.outputs)
    without = Network(spec, open_checkpoint(spec.weights), TorchOps(CPU, torch.float32))
    assert not runs_flat(without, CPU, spec.outputs)
    odd = read_tiny_spec(write_bert(tmp_path / "odd", hidden_size=24, num_attention_heads=2, intermediate_size=24))
    assert not runs_flat(network_of(odd), CPU, odd.outputs)


def test_capacity_is_found_by_running(tmp_path: Path) -> None:
    """Real batches of the model, of the probed sizes."""
    spec = write_plain(tmp_path)
    backend = load(spec, BackendOptions(device="cpu", threads=1))
    seen: list[int] = []

    def peak_of(call: Callable[[], object]) -> int:
        call()
        seen.append(1)
        return 1000 << len(seen)

    points = measure(partial(probe, backend, spec, peak_of), 5000, 60.0)
    assert [point.tokens for point in points] == [1024, 2048][: len(points)]
    assert all(point.seconds > 0 for point in points)
    backend.limit(choose_budget(points, 5000, 1))
    assert backend.facts.max_batch_tokens in {1024, 2048}


def test_kernels_that_cannot_be_compiled_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a GPU or Triton, torch's own functions compute; where kernels were expected, the log has the reason."""
    fused_ops.cache_clear()
    assert fused_ops(torch.device("cpu"), torch.float32) is TorchOps
    assert not caplog.messages
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setitem(sys.modules, "vectord.compute.ops.torch.fused", None)
    assert fused_ops(torch.device("cuda"), torch.bfloat16) is TorchOps
    assert caplog.messages[0].startswith("fused kernels cannot be compiled, so torch's own are used")
    fused_ops.cache_clear()
