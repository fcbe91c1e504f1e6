"""Which files hold a model's weights: safetensors, torch files, or a graph, in that order."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.checkpoints.files.onnx_bytes import external_tensor, field, graph, model
from tests.checkpoints.folders import write_json, write_transformer
from tests.checkpoints.reading import refusal, spec_of

OUTPUTS = {"last_hidden_state": ["n", "l", 8]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_transformer(tmp_path / "model")


def write_graph(folder: Path, *parts: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model(graph(*parts, outputs=OUTPUTS)))
    return folder / "model.onnx"


@pytest.mark.parametrize("inner", ["onnx", "."])
def test_a_graph_counts_only_without_other_weights(inner: str, folder: Path) -> None:
    """In its usual folder or next to config.json, a quantized one too. Weights come first, because they run packed."""
    path = write_graph(folder / inner)
    assert spec_of(folder).weights == (folder / "model.safetensors",)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert spec_of(folder).weights == (folder / "pytorch_model.bin",)
    (folder / "pytorch_model.bin").unlink()
    assert spec_of(folder).weights == (path,)
    quantized = path.rename(path.with_name("model_quantized.onnx"))
    assert spec_of(folder).weights == (quantized,)


def test_the_tensor_files_of_a_graph_count(folder: Path) -> None:
    """They are the weights: two models that differ only in them have two fingerprints."""
    (folder / "model.safetensors").unlink()
    data = folder / "onnx" / "model.onnx_data"
    path = write_graph(folder / "onnx", field(5, external_tensor(location=data.name, length="4")))
    data.write_bytes(b"abcd")
    before = spec_of(folder)
    assert before.weights == (path, data)
    data.write_bytes(b"abce")
    assert spec_of(folder).fingerprint != before.fingerprint


def test_a_graph_that_leads_out_of_its_folder_is_refused(folder: Path) -> None:
    """At start, before a runtime opens the files."""
    (folder / "model.safetensors").unlink()
    write_graph(folder / "onnx", field(5, external_tensor(location="../config.json", length="4")))
    assert "model.onnx" in refusal(folder)


def test_a_missing_shard_is_not_replaced_by_a_graph(folder: Path) -> None:
    """An interrupted download is reported."""
    (folder / "model.safetensors").unlink()
    write_graph(folder / "onnx")
    write_json(folder / "model.safetensors.index.json", {"weight_map": {"x": "model-00001-of-00001.safetensors"}})
    assert "model-00001-of-00001.safetensors" in refusal(folder)
