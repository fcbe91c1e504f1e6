"""Vectors and weights of single tokens on the reference op set against their formulas in plain torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.compute.networks.case import numpy_answer
from tests.compute.networks.tiny_encoders import write_tiny
from tests.models import WIDTH, random_texts, read_tiny_spec, write_sentence_bert
from torch.nn.functional import linear, normalize

from vectord.checkpoints.spec import Colbert

TEXTS = random_texts((9, 1, 30))
DIMENSIONS = 12


def write_linear(path: Path, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Write a layer as BGE-M3's colbert_linear and sparse_linear. Returns its weight and bias in float64."""
    generator = torch.Generator().manual_seed(outputs)
    weight, bias = torch.randn(outputs, WIDTH, generator=generator), torch.randn(outputs, generator=generator)
    if path.suffix == ".pt":
        torch.save({"weight": weight, "bias": bias}, path)
    else:
        save_file({"weight": weight, "bias": bias}, path)
    return weight.double(), bias.double()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tokens"), "Bert")


def states(folder: Path) -> torch.Tensor:
    return torch.from_numpy(numpy_answer(read_tiny_spec(folder), TEXTS))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_colbert_vectors_equal_flag_embedding(folder: Path, tmp_path: Path, suffix: str) -> None:
    """Each token through colbert_linear, then normalized; the engine selects the tokens."""
    file = tmp_path / f"colbert_linear{suffix}"
    weight, bias = write_linear(file, DIMENSIONS)
    colbert = Colbert(dimensions=DIMENSIONS, linear=file)
    got = numpy_answer(read_tiny_spec(folder, outputs=frozenset({"colbert"}), colbert=colbert), TEXTS, "colbert")
    want = normalize(linear(states(folder), weight, bias), dim=1)
    np.testing.assert_allclose(got, want.numpy(), atol=1e-8)


def test_colbert_vectors_equal_pylate(tmp_path: Path) -> None:
    """Each token through the Dense modules in sequence, then normalized."""
    folder = write_sentence_bert(tmp_path, dense=(16, DIMENSIONS))
    spec = read_tiny_spec(folder)
    colbert = Colbert(dimensions=DIMENSIONS, dense_modules=spec.dense_modules)
    facts = {"outputs": frozenset({"colbert"}), "dense_modules": (), "pooling": None, "colbert": colbert}
    got = numpy_answer(read_tiny_spec(folder, **facts), TEXTS, "colbert")
    x = states(folder)
    for module in spec.dense_modules:
        tensors = {name: tensor.double() for name, tensor in load_file(module.weights).items()}
        x = linear(x, tensors["linear.weight"], tensors["linear.bias"])
        x = x.tanh() if module.activation == "tanh" else x
    np.testing.assert_allclose(got, normalize(x, dim=1).numpy(), atol=1e-8)


def test_lexical_weights_equal_flag_embedding(folder: Path, tmp_path: Path) -> None:
    """Each token through sparse_linear and a ReLU: no weight is below 0, and some are above."""
    file = tmp_path / "sparse_linear.pt"
    weight, bias = write_linear(file, 1)
    spec = read_tiny_spec(folder, outputs=frozenset({"lexical"}), lexical=file)
    got = numpy_answer(spec, TEXTS, "lexical")
    want = linear(states(folder), weight, bias).relu()
    assert 0 < (want > 0).sum() < len(want)
    np.testing.assert_allclose(got, want.numpy(), atol=1e-8)
