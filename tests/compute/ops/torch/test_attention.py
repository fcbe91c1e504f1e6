"""The attention kernel of the flat layout, which Triton's interpreter runs on the processor; on a GPU: test_cuda.py.

The interpreter multiplies no bfloat16.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tests.compute.networks import tiny_decoders, tiny_encoders
from tests.compute.networks.case import numpy_answer, texts_of
from tests.compute.ops import test_conformance as conformance
from tests.compute.ops.torch.kernel import written_out
from tests.models import pack_texts

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.compute.backends.torch.loading import runs_flat
from vectord.compute.networks.network import Network
from vectord.compute.ops.base import AttentionSpec
from vectord.compute.ops.torch.flat import FlatShape, NotFlat, fill, flat_of, shape_of, tokens_of

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is for Linux on x86-64")

CPU = torch.device("cpu")
CASES = {**tiny_encoders.CASES, **tiny_decoders.CASES}
NETWORKS = ("gemma2", "jina_bert_v2", "mpnet")
TEXTS = texts_of(5, 1, 9)
LENGTHS = (3, 40, 1, 17, 66, 30, 1)  # texts within a block of 128 rows and across two
PADDING = 110  # rows: the last block has no text
PROGRAMS = {
    name: program
    for name, program in (conformance.ATTENTIONS | conformance.CAUSAL | conformance.BY_DISTANCE).items()
    if name in {"capped scores", "bias", "causal, bias", "slopes of two layers", "causal, window, capped scores"}
}
PROGRAMS["odd heads"] = partial(conformance.attention, spec=AttentionSpec(heads=2, head_size=20, window=9))
POISONED = 1  # the text with a NaN


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of this module in another process: Triton decides at its import whether it interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.compute.ops.torch.test_attention", str(tmp_path_factory.mktemp("models"))]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    measured: dict[str, Any] = json.loads(output.splitlines()[-1])
    return measured


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_kernel_equals_the_reference(found: dict[str, Any], program: str) -> None:
    """For each text; rows of padding are zeros."""
    difference, padding = found[program]
    assert difference < 3e-5
    assert padding == 0


@pytest.mark.parametrize("where", ["values", "keys and values"])
def test_a_nan_reaches_the_rows_that_see_it(found: dict[str, Any], where: str) -> None:
    """All of its text, and none of the other texts in its block, although NaN times zero is NaN."""
    assert found[where] == [text == POISONED for text in range(len(LENGTHS))]


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_run_flat(found: dict[str, Any], network: str) -> None:
    """Those with a bias by distance or capped scores, as close to the reference as in groups."""
    assert found[network] < 1e-4


def test_16_bits_agree_with_torch(found: dict[str, Any]) -> None:
    """As a load compares them."""
    assert found["float16"]


@pytest.mark.parametrize(
    ("capability", "size", "product", "shared_bytes"), [(90, 64, "wgmma", 227 << 10), (86, 256, "mma", 99 << 10)]
)
def test_the_kernel_compiles_for_a_gpu(
    capability: int, size: int, product: str, shared_bytes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which needs none: both products multiply 16 bits, and the blocks fit into the memory of a program."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from vectord.compute.ops.torch.attention import _attend, blocks_of

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    blocks = blocks_of(size)
    constants = dict.fromkeys(("CAUSAL", "WINDOWED", "BIASED", "CAPPED"), True)
    sizes = {"SIZE": size, "BLOCK": size, "ROWS": blocks.rows, "KEYS": blocks.keys}
    types = {**dict.fromkeys(("q", "k", "v", "out", "bias"), "*bf16"), "positions": "*i32", "ends": "*i32"}
    types |= {"factor": "fp32", "cap": "fp32", **dict.fromkeys([*constants, *sizes], "constexpr")}
    signature = {name: types.get(name, "i32") for name in _attend.arg_names}
    source = ASTSource(
        _attend, signature, {(_attend.arg_names.index(name),): value for name, value in {**constants, **sizes}.items()}
    )
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    products = [line for line in compiled.asm["ttir"].splitlines() if "tt.dot" in line]
    assert [line.count("xbf16>") for line in products] == [2, 2]
    assert product in compiled.asm["ptx"]
    assert compiled.metadata.shared <= shared_bytes


def test_a_kernel_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nor one that cannot be compiled: the network has no flat form then, and the log has the reason."""
    from vectord.compute.ops.torch import attention
    from vectord.compute.ops.torch.fused import FusedOps

    def fails(*about: object) -> float:
        raise RuntimeError("out of resource: shared memory")

    tokens = flat_of(pack_texts([1, 2]), CPU)
    x = torch.zeros(2, 32)
    for difference, reason in (
        (lambda *about: 0.1, "differs from torch's own functions by 0.1"),
        (fails, "out of res"),
    ):
        attention.agrees.cache_clear()
        monkeypatch.setattr(attention, "_difference", difference)
        with pytest.raises(NotFlat):
            FusedOps(CPU, torch.float32).attention(x, x, x, tokens, replace(conformance.HEADS, score_cap=1.0))
        assert reason in caplog.messages[-1]
    attention.agrees.cache_clear()


def print_findings(folder: Path) -> None:
    """As JSON: the largest difference of each program and network from the reference, the largest number of padding,
    and which texts a NaN reached."""
    from vectord.compute.ops.torch import attention
    from vectord.compute.ops.torch.fused import FusedOps

    ops = FusedOps(CPU, torch.float32)
    texts = conformance.typed(LENGTHS)
    shape = shape_of(texts)
    assert shape is not None
    shape = FlatShape(tokens=shape.tokens + PADDING, texts=shape.texts + 3, spans=shape.spans, longest=shape.longest)
    numbers = np.empty(shape.size, np.int32)
    fill(texts, shape, numbers)
    tokens = tokens_of(torch.from_numpy(numbers), shape)
    findings: dict[str, Any] = {}
    for name, program in PROGRAMS.items():
        with torch.inference_mode():
            got = program(ops, tokens).numpy()
        difference = np.abs(got[:-PADDING] - conformance.reference_of(program, texts)).max()
        findings[name] = float(difference), float(np.abs(got[-PADDING:]).max())
    for name in ("values", "keys and values"):
        q, k, v = (torch.ones(shape.tokens, conformance.WIDTH) for _ in range(3))
        v[texts.cu_seqlens[POISONED]] = torch.inf
        if name != "values":
            k[texts.cu_seqlens[POISONED]] = torch.nan
        rows = attention.attend(q, k, v, tokens, replace(conformance.HEADS, score_cap=3.0), None)[:-PADDING]
        bad = ~rows.isfinite().all(1)
        findings[name] = [bool(bad[a:b].all()) for a, b in zip(texts.cu_seqlens, texts.cu_seqlens[1:], strict=False)]
        assert int(bad.sum()) == LENGTHS[POISONED]
    for name in NETWORKS:
        spec = CASES[name].spec(CASES[name].write(folder / name))
        network = Network(spec, open_checkpoint(spec.weights), FusedOps(CPU, torch.float32, written_out))
        assert runs_flat(network, CPU, spec.outputs)
        with torch.inference_mode():
            states = network(flat_of(pack_texts(*TEXTS), CPU), ("tokens",))["tokens"].numpy()
        findings[name] = float(np.abs(states - numpy_answer(spec, TEXTS)).max())
    findings["float16"] = attention.agrees(CPU, torch.float16, replace(conformance.SHARED_KEYS, causal=True), True)
    print(json.dumps(findings))


if __name__ == "__main__":
    print_findings(Path(sys.argv[1]))
