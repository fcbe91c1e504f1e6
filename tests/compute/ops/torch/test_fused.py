"""The fused forms of ops: joined products, and Triton kernels, which Triton's interpreter runs on the processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.compute.networks import tiny_decoders, tiny_encoders
from tests.compute.networks.case import numpy_answer, texts_of

from vectord.checkpoints.checkpoint import Weight, open_checkpoint
from vectord.compute.networks.network import Network
from vectord.compute.ops.base import PackedTexts
from vectord.compute.ops.torch import TorchOps, pack
from vectord.compute.ops.torch.ops import EightBits

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
CASES = {**tiny_encoders.CASES, **tiny_decoders.CASES}
NETWORKS = ("bert", "gemma3_text", "nomic_bert", "qwen3")
TEXTS = texts_of(5, 1, 9)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is for Linux on x86-64")
def test_kernels_compute_what_torch_does(tmp_path: Path) -> None:
    """Each up to two steps of the dtype, and whole networks: norms before and after each half and of heads, gates.

    Triton decides at its import whether it interprets, so another process runs them.
    """
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.compute.ops.torch.test_fused", str(tmp_path)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    differences = json.loads(output.splitlines()[-1])
    limits = {**{name: 2 * torch.finfo(dtype).eps for name, dtype in DTYPES.items()}, **dict.fromkeys(NETWORKS, 1e-4)}
    assert differences.keys() == limits.keys()
    assert {name: difference for name, difference in differences.items() if not difference <= limits[name]} == {}


@pytest.mark.parametrize("matrices", [None, "int8", "fp8"])
def test_joined_layers_compute_the_same_and_hold_nothing_twice(matrices: EightBits | None) -> None:
    """Also if only some have a bias."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(rows, 16)).astype(np.float32) for rows in (32, 16, 16)]
    biases = [None, torch.tensor(rng.normal(size=16), dtype=torch.float32), None]
    x = torch.tensor(rng.normal(size=(5, 16)), dtype=torch.float32)
    answers = []
    for joins in (False, True):
        ops = TorchOps(CPU, torch.float32, matrices=matrices, joins=joins)
        layers = list(zip([ops.matrix(Weight("w", "F32", array)) for array in arrays], biases, strict=True))
        ops.join(layers)
        matrices_held = len(ops._scales)
        ops.join(layers)  # as in a model whose layers share their weights
        assert len(ops._scales) == matrices_held
        assert len({weight.untyped_storage().data_ptr() for weight, _ in layers}) == (1 if joins else 3)
        answers.append(ops.linears(x, layers))
        for y, (weight, bias) in zip(answers[-1], layers, strict=True):
            if matrices is None:
                torch.testing.assert_close(ops.linear(x, weight, bias), y, atol=1e-5, rtol=0)
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def print_differences(folder: Path) -> None:
    """Print the largest difference of the kernels in each dtype, and of each network from the reference, as JSON."""
    from vectord.compute.ops.torch.fused import FusedOps, largest_difference

    differences = {name: largest_difference(CPU, dtype) for name, dtype in DTYPES.items()}
    packed = pack(PackedTexts.of([np.array(text, np.int32) for text in TEXTS]), CPU)
    for name in NETWORKS:
        spec = CASES[name].spec(CASES[name].write(folder / name))
        network = Network(spec, open_checkpoint(spec.weights), FusedOps(CPU, torch.float32, joins=True))
        with torch.inference_mode():
            got = network(packed, ("tokens",))["tokens"].numpy()
        differences[name] = float(np.abs(got - numpy_answer(spec, TEXTS)).max())
    print(json.dumps(differences))


if __name__ == "__main__":
    print_differences(Path(sys.argv[1]))
