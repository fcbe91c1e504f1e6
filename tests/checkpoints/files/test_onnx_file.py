"""The ONNX reader finds every tensor of a graph and refuses data outside the graph's folder. Files are handwritten."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.checkpoints.files.onnx_bytes import external_tensor, field, graph, model, node, tensor, varint

from vectord.checkpoints.files.onnx_file import OnnxFile, read_onnx
from vectord.errors import ModelUnavailable

OUTPUTS = {"last_hidden_state": ["n", "l", 4]}


def attribute(number: int, value: bytes) -> bytes:
    """Return a node with one attribute, as a field of a graph."""
    return field(1, node("If", ["x"], ["y"], field(5, field(number, value))))


def place(bad: bytes) -> dict[str, bytes]:
    """Return models with the tensor `bad` at each place that can hold one."""
    inner = field(5, bad)  # of a graph
    sparse = field(1, bad), field(2, bad)
    function = field(7, node("Constant", [], ["y"], field(5, field(5, bad))))
    return {
        "initializer": model(graph(field(5, bad), outputs=OUTPUTS)),
        "sparse values": model(graph(field(15, sparse[0]), outputs=OUTPUTS)),
        "sparse indices": model(graph(field(15, sparse[1]), outputs=OUTPUTS)),
        "attribute": model(graph(attribute(5, bad), outputs=OUTPUTS)),
        "attribute list": model(graph(attribute(10, bad), outputs=OUTPUTS)),
        "sparse attribute": model(graph(attribute(22, sparse[0]), outputs=OUTPUTS)),
        "sparse attribute list": model(graph(attribute(23, sparse[1]), outputs=OUTPUTS)),
        "subgraph": model(graph(attribute(6, inner), outputs=OUTPUTS)),
        "subgraph list": model(graph(attribute(11, inner), outputs=OUTPUTS)),
        "subgraph's subgraph": model(graph(attribute(6, attribute(6, inner)), outputs=OUTPUTS)),
        "function": model(graph(outputs=OUTPUTS), field(25, function)),
        "function's attribute": model(graph(outputs=OUTPUTS), field(25, field(11, field(5, bad)))),
        "training": model(graph(outputs=OUTPUTS), field(20, field(1, inner))),
        "training step": model(graph(outputs=OUTPUTS), field(20, field(2, inner))),
        "second graph": model(graph(outputs=OUTPUTS), field(7, inner)),
    }


def write(folder: Path, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(data)
    return folder / "model.onnx"


def refuse(path: Path, message: str) -> None:
    with pytest.raises(ModelUnavailable, match=message) as caught:
        read_onnx(path)
    assert str(path) in caught.value.message


def test_outputs_and_data_are_named(tmp_path: Path) -> None:
    """The outputs come in the graph's order, and each file of tensors once."""
    (tmp_path / "model.onnx_data").write_bytes(bytes(64))
    (tmp_path / "more.bin").write_bytes(bytes(8))
    parts = [
        field(5, tensor("a", np.zeros(3))),
        field(5, external_tensor("b", (16,), location="model.onnx_data", offset="0", length="64")),
        field(5, external_tensor("c", (8,), location="model.onnx_data", offset="32", length="32")),
        field(5, external_tensor("d", (2,), location="more.bin")),
    ]
    path = write(tmp_path, model(graph(*parts, outputs={"token_embeddings": ["n"], "sentence_embedding": ["n"]})))
    assert read_onnx(path) == OnnxFile(
        ("token_embeddings", "sentence_embedding"), (tmp_path / "model.onnx_data", tmp_path / "more.bin")
    )


@pytest.mark.parametrize("where", place(b""))
def test_every_place_for_a_tensor_is_checked(where: str, tmp_path: Path) -> None:
    """At each place of a graph, a tensor's file must be next to the graph."""
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "model"
    refuse(write(folder, place(external_tensor(location="../secret"))[where]), "only files next to the graph")
    (folder / "data").write_bytes(bytes(4))
    assert read_onnx(write(folder, place(external_tensor(location="data"))[where])).data == (folder / "data",)


@pytest.mark.parametrize(
    "location",
    ["", ".", "..", "/etc/passwd", "../model.onnx", "sub/data", "C:\\data", "..\\data", "*", "data\0", "*/_MEM_/*"],
)
def test_only_plain_file_names_are_accepted(location: str, tmp_path: Path) -> None:
    """Folders, drives, patterns and addresses of a runtime are refused."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data").write_bytes(bytes(4))
    refuse(write(tmp_path, place(external_tensor(location=location))["initializer"]), "only files next to the graph")


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    """A link may lead to another file of the folder only."""
    (tmp_path / "secret").write_bytes(bytes(4))
    folder = tmp_path / "model"
    path = write(folder, place(external_tensor(location="data"))["initializer"])
    (folder / "data").symlink_to(tmp_path / "secret")
    refuse(path, "link out of the model's folder")
    (folder / "data").unlink()
    (folder / "data").symlink_to("data")
    refuse(path, "cannot be read")
    (folder / "data").unlink()
    (folder / "own").write_bytes(bytes(4))
    (folder / "data").symlink_to("own")
    assert read_onnx(path).data == (folder / "data",)


def test_links_of_the_hub_cache_are_followed(tmp_path: Path) -> None:
    """In the cache every file is a link to the model's own blobs; another model's blobs are refused."""
    repository = tmp_path / "models--someone--model"
    path = write(repository / "snapshots" / ("0" * 40) / "onnx", place(external_tensor(location="data"))["initializer"])
    (repository / "blobs").mkdir()
    (repository / "blobs" / "abc").write_bytes(bytes(4))
    (path.parent / "data").symlink_to("../../../blobs/abc")
    assert read_onnx(path).data == (path.parent / "data",)
    other = tmp_path / "models--someone--other" / "blobs"
    other.mkdir(parents=True)
    (other / "abc").write_bytes(bytes(4))
    (path.parent / "data").unlink()
    (path.parent / "data").symlink_to(other / "abc")
    refuse(path, "link out of the model's folder")


def test_data_must_be_a_regular_file(tmp_path: Path) -> None:
    """A folder, a pipe (which would block) and a missing file are refused."""
    path = write(tmp_path, place(external_tensor(location="data"))["initializer"])
    refuse(path, "cannot be read")
    (tmp_path / "data").mkdir()
    refuse(path, "not a regular file")
    (tmp_path / "data").rmdir()
    os.mkfifo(tmp_path / "data")
    refuse(path, "not a regular file")


def test_each_location_of_a_tensor_is_checked(tmp_path: Path) -> None:
    """Readers disagree about which of two locations counts."""
    (tmp_path / "data").write_bytes(bytes(4))
    twice = external_tensor(location="data") + field(13, field(1, "location") + field(2, "/etc/passwd"))
    refuse(write(tmp_path, place(twice)["initializer"]), "only files next to the graph")


def test_field_numbers_over_32_bits_are_refused(tmp_path: Path) -> None:
    """Some parsers drop the higher bits and see another field."""
    hidden = field(5, external_tensor(location="/etc/passwd"))
    tag = varint((1 << 32) + (5 << 3 | 2))
    data = model(tag + hidden[1:] + graph(outputs=OUTPUTS))
    refuse(write(tmp_path, data), "impossible number")


def test_the_depth_is_bounded(tmp_path: Path) -> None:
    """Nested graphs would exhaust the stack."""
    nested = field(5, tensor("a", np.zeros(1)))
    for _ in range(40):
        nested = attribute(6, nested)
    refuse(write(tmp_path, model(nested)), "nested more than 32 deep")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\xff" * 20, "cut off, or not an ONNX file"),
        (varint(7 << 3 | 2) + varint(1000) + b"x", "cut off"),
        (varint(7 << 3 | 2) + varint(2**63), "cut off"),
        (varint(1 << 3 | 3), "wire type 3"),
    ],
    ids=["empty", "no varint", "cut off", "huge length", "group"],
)
def test_other_files_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    """A file that is not an ONNX file is reported as such."""
    refuse(write(tmp_path, data), message)
