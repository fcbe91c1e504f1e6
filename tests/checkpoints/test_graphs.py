"""checkpoints/graphs.py: which ONNX file of a folder is run."""

from __future__ import annotations

import logging
import platform
from pathlib import Path

import pytest

from vectord.checkpoints.graphs import dtype_of, find_graph, graph_patterns
from vectord.errors import ConfigError, ModelUnavailable


def write(folder: Path, *names: str) -> Path:
    (folder / "onnx").mkdir()
    for name in names:
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("auto", "model.onnx"), ("float32", "model.onnx"), ("float16", "model_fp16.onnx"), ("int8", "model_int8.onnx")],
)
def test_the_name_gives_the_dtype(dtype: str, name: str, tmp_path: Path) -> None:
    """Exporters write the same model in several data types."""
    folder = write(tmp_path, *(f"onnx/{one}" for one in ("model.onnx", "model_fp16.onnx", "model_int8.onnx")))
    assert find_graph(folder, dtype) == folder / "onnx" / name
    assert dtype_of(folder / "onnx" / name) == ("float32" if dtype == "auto" else dtype)


@pytest.mark.parametrize(
    ("machine", "has_vnni", "name"),
    [
        ("x86_64", True, "model_qint8_avx512_vnni.onnx"),
        ("x86_64", False, "model_quint8_avx2.onnx"),
        ("aarch64", True, "model_qint8_arm64.onnx"),
    ],
)
def test_int8_follows_the_processor(
    machine: str, has_vnni: bool, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sentence-transformers exports one file for each."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    kinds = ("qint8_avx512_vnni", "qint8_avx512", "quint8_avx2", "qint8_arm64")
    folder = write(tmp_path, *(f"onnx/model_{kind}.onnx" for kind in kinds))
    assert find_graph(folder, "int8", has_vnni=has_vnni).name == name


def test_a_missing_dtype_is_replaced_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The float32 graph runs instead; without it the quantized one."""
    folder = write(tmp_path, "model.onnx", "onnx/model_quantized.onnx")
    with caplog.at_level(logging.WARNING):
        assert find_graph(folder, "float16") == folder / "model.onnx"
        assert "no graph in float16" in caplog.text
        (folder / "model.onnx").unlink()
        assert find_graph(folder, "auto") == folder / "onnx/model_quantized.onnx"
    assert "no graph in auto" in caplog.text


def test_a_named_file_is_used(tmp_path: Path) -> None:
    """Even if its name implies another type; a missing one is refused."""
    folder = write(tmp_path, "onnx/model.onnx", "onnx/mine_O4.onnx")
    assert dtype_of(find_graph(folder, "int8", "onnx/mine_O4.onnx")) == "float16"
    with pytest.raises(ModelUnavailable, match="no such file"):
        find_graph(folder, "auto", "onnx/other.onnx")


@pytest.mark.parametrize("name", ["/etc/model.onnx", "../model.onnx", "onnx/../../model.onnx", "model.bin"])
def test_a_name_outside_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    """Only graphs inside the model's folder run."""
    with pytest.raises(ConfigError, match=r"onnx_file: expected a \.onnx file inside the model's folder"):
        find_graph(tmp_path, "auto", name)


def test_a_folder_without_a_known_graph_lists_its_files(tmp_path: Path) -> None:
    """So that the operator can name one."""
    folder = write(tmp_path, "onnx/strange.onnx")
    with pytest.raises(ModelUnavailable, match=r"found: onnx/strange\.onnx; set --onnx-file to choose one"):
        find_graph(folder, "auto")


def test_a_download_includes_the_graph_and_its_data() -> None:
    """The files that find_graph would look for, and the files of their tensors."""
    assert {"onnx/model_fp16.onnx", "onnx/model_fp16.onnx_data*", "onnx/model.onnx"} <= {*graph_patterns("float16")}
    assert graph_patterns("auto", "onnx/a.onnx") == ("onnx/a.onnx", "onnx/a.onnx_data*", "onnx/a.onnx.data")
