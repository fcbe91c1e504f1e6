"""BGE-M3's sparse and ColBERT heads are found next to the weights, and refused if their shapes do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.checkpoints.folders import write_sentence_model
from tests.checkpoints.reading import refusal, spec_of

from vectord.checkpoints.spec import Colbert


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sentence_model(tmp_path / "model", pooling={"pooling_mode_cls_token": True})


def write_head(path: Path, outputs: int, inputs: int = 8) -> None:
    """Save one layer as FlagEmbedding does."""
    torch.save(torch.nn.Linear(inputs, outputs).state_dict(), path)


def test_both_heads(folder: Path) -> None:
    """With both files, the model also has lexical weights, and ColBERT vectors whose width is the file's."""
    write_head(folder / "sparse_linear.pt", 1)
    write_head(folder / "colbert_linear.pt", 6)
    spec = spec_of(folder)
    assert spec.outputs == {"dense", "tokens", "lexical", "colbert"}
    assert (spec.pooling, spec.dimensions) == ("cls", 8)
    assert spec.lexical == folder / "sparse_linear.pt"
    assert spec.colbert == Colbert(dimensions=6, linear=folder / "colbert_linear.pt", drops_first=True)


@pytest.mark.parametrize(("head", "output"), [("sparse_linear.pt", "lexical"), ("colbert_linear.pt", "colbert")])
def test_one_head_alone(head: str, output: str, folder: Path) -> None:
    """Each head works without the other."""
    write_head(folder / head, 1)
    assert spec_of(folder).outputs == {"dense", "tokens", output}


@pytest.mark.parametrize(
    ("head", "outputs", "inputs"),
    [("sparse_linear.pt", 2, 8), ("sparse_linear.pt", 1, 7), ("colbert_linear.pt", 4, 9)],
)
def test_a_head_that_does_not_fit_is_refused(head: str, outputs: int, inputs: int, folder: Path) -> None:
    """A head has another input width than the network, or a sparse head has two outputs. The message names the file."""
    write_head(folder / head, outputs, inputs)
    assert head in refusal(folder)


def test_a_head_file_without_a_head_is_refused(folder: Path) -> None:
    """A file without the head's weight, or that is no torch file, is named in the message."""
    torch.save({"other": torch.ones(2)}, folder / "colbert_linear.pt")
    assert "colbert_linear.pt" in refusal(folder)
    (folder / "colbert_linear.pt").write_bytes(b"x" * 100)
    assert "colbert_linear.pt" in refusal(folder)
