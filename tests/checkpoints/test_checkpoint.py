"""Checkpoints and the safetensors reader: tensors are read bit for bit, and hostile files are refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from tests.checkpoints.folders import GIT_LFS_POINTER
from tests.models import MINILM

from vectord.checkpoints.checkpoint import find_weights, open_checkpoint
from vectord.errors import ModelUnavailable

WEIGHTS = MINILM / "model.safetensors"

Header = dict[str, Any]


def tensor(start: int, stop: int, *, dtype: str = "F32", shape: tuple[int, ...] | None = None) -> Header:
    return {"dtype": dtype, "shape": list(shape or ((stop - start) // 4,)), "data_offsets": [start, stop]}


def write_raw(path: Path, header: object, data: bytes = b"", *, header_bytes: int | None = None, pad: int = 0) -> Path:
    """Return a file in safetensors' layout with any header."""
    text = (header if isinstance(header, bytes) else json.dumps(header).encode()) + b" " * pad
    path.write_bytes(struct.pack("<Q", len(text) if header_bytes is None else header_bytes) + text + data)
    return path


def write_index(folder: Path, weight_map: object, *, name: str = "model.safetensors") -> Path:
    path = folder / f"{name}.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def test_tensors_keep_name_shape_and_bits(tmp_path: Path) -> None:
    """Integers too: a network must account for every tensor of its files."""
    written = {
        "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.array([1.5, -2], np.float16),
        "scalar": np.array(7, np.float32),
        "position_ids": np.arange(8, dtype=np.int64),
        "mask": np.array([True]),
    }
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(written, path)
    checkpoint = open_checkpoint([path])
    assert set(checkpoint) == set(written)
    for name, weight in checkpoint.items():
        assert weight.name == name
        assert weight.array.dtype == written[name].dtype
        np.testing.assert_array_equal(weight.array, written[name])
        assert weight.array.shape == written[name].shape


def test_bfloat16_is_read_as_its_bits(tmp_path: Path) -> None:
    """numpy has no bfloat16, so the 16 bits are kept as uint16."""
    path = write_raw(tmp_path / "b.safetensors", {"x": tensor(0, 4, dtype="BF16", shape=(2,))}, b"\x80\x3f\x00\xc0")
    weight = open_checkpoint([path])["x"]
    assert weight.dtype == "BF16"
    assert weight.array.tolist() == [0x3F80, 0xC000]


def test_the_real_model_equals_safetensors() -> None:
    """All 104 tensors of all-MiniLM-L6-v2, bit for bit, and none of them copied."""
    expected = safetensors.numpy.load_file(WEIGHTS)
    checkpoint = open_checkpoint([WEIGHTS])
    assert set(checkpoint) == set(expected)
    for name, weight in checkpoint.items():
        assert not weight.array.flags.owndata
        assert weight.array.flags.aligned
        assert weight.array.flags.writeable  # some runtimes require it for shared memory
        np.testing.assert_array_equal(weight.array, expected[name])


def test_weights_are_readable_after_release() -> None:
    """release() returns memory to the system, and the weights stay."""
    checkpoint = open_checkpoint([WEIGHTS])
    word = checkpoint["embeddings.word_embeddings.weight"].array
    before = word[1000].copy()
    checkpoint.release()
    np.testing.assert_array_equal(word[1000], before)


def test_a_closed_checkpoint_is_empty_and_its_arrays_stay_readable(tmp_path: Path) -> None:
    """A graph may outlive the checkpoint that it was built from."""
    path = write_raw(tmp_path / "m.safetensors", {"x": tensor(0, 4)}, struct.pack("<f", 2.0))
    checkpoint = open_checkpoint([path])
    array = checkpoint["x"].array
    checkpoint.close()
    checkpoint.release()  # may be called at any time
    assert len(checkpoint) == 0
    assert array[0] == 2.0


def test_tensors_after_an_unpadded_header_are_aligned(tmp_path: Path) -> None:
    """Writers before safetensors 0.3 did not pad the header."""
    for pad in range(4):
        path = write_raw(tmp_path / f"{pad}.safetensors", {"x": tensor(0, 8)}, struct.pack("<ff", 1, 2), pad=pad)
        array = open_checkpoint([path])["x"].array
        assert array.flags.aligned
        assert array.tolist() == [1, 2]


BROKEN: Mapping[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "empty": lambda path: path.write_bytes(b""),
    "seven bytes": lambda path: path.write_bytes(b"1234567"),
    "header longer than the file": lambda path: write_raw(path, {}, header_bytes=3),
    "header of 2**64 - 1 bytes": lambda path: write_raw(path, {}, header_bytes=2**64 - 1),
    "header over the limit": lambda path: write_raw(path, {}, header_bytes=100_000_001),
    "header not JSON": lambda path: write_raw(path, b"{'x'}"),
    "header not UTF-8": lambda path: write_raw(path, b'{"\xff": 1}'),
    "header a list": lambda path: write_raw(path, []),
    "header nested 100,000 deep": lambda path: write_raw(path, b"[" * 100_000),
    "a tensor twice": lambda path: write_raw(
        path, b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":1}', bytes(4)
    ),
    "tensor without dtype": lambda path: write_raw(path, {"x": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "tensor a number": lambda path: write_raw(path, {"x": 3}),
    "unknown dtype": lambda path: write_raw(path, {"x": tensor(0, 4, dtype="F99")}, bytes(4)),
    "negative size": lambda path: write_raw(path, {"x": tensor(0, 4, shape=(-1, -1))}, bytes(4)),
    "size true": lambda path: write_raw(path, {"x": tensor(0, 4, shape=(True,))}, bytes(4)),
    "size 1.0": lambda path: write_raw(path, {"x": tensor(0, 4, shape=(1.0,))}, bytes(4)),
    "nine dimensions": lambda path: write_raw(path, {"x": tensor(0, 4, shape=(1,) * 9)}, bytes(4)),
    "shape that overflows 64 bits": lambda path: write_raw(path, {"x": tensor(0, 0, shape=(2**32, 2**32))}),
    "empty shape that overflows 64 bits": lambda path: write_raw(path, {"x": tensor(0, 0, shape=(0, 2**59, 2**59))}),
    "shape does not fit the bytes": lambda path: write_raw(path, {"x": tensor(0, 4, shape=(2,))}, bytes(4)),
    "a thousand dimensions": lambda path: write_raw(path, {"x": tensor(0, 4, shape=(1,) * 1000)}, bytes(4)),
    "stop before start": lambda path: write_raw(path, {"x": tensor(4, 0, shape=(1,))}, bytes(4)),
    "negative start": lambda path: write_raw(path, {"x": tensor(-4, 0, shape=(1,))}, bytes(4)),
    "outside the file": lambda path: write_raw(path, {"x": tensor(0, 8)}, bytes(4)),
    "bytes that belong to nobody": lambda path: write_raw(path, {"x": tensor(0, 4)}, bytes(8)),
    "overlap": lambda path: write_raw(path, {"x": tensor(0, 8), "y": tensor(4, 12)}, bytes(12)),
    "gap": lambda path: write_raw(path, {"x": tensor(0, 4), "y": tensor(8, 12)}, bytes(12)),
    "the same place twice": lambda path: write_raw(path, {"x": tensor(0, 4), "y": tensor(0, 4)}, bytes(4)),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_file_is_refused_by_name(broken: str, tmp_path: Path) -> None:
    """The error names the file, and does not repeat what the file holds at length."""
    path = tmp_path / "model.safetensors"
    BROKEN[broken](path)
    with pytest.raises(ModelUnavailable, match=r"model\.safetensors") as caught:
        open_checkpoint([path])
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "a pointer of Git LFS") for name in ("model.safetensors", "pytorch_model.bin", "model.gguf")),
        ("model.h5", r"weights are read from \.safetensors, \.bin, \.pt and GGUF"),
    ],
)
def test_a_file_without_weights_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    """Such as the pointer that `git clone` leaves without Git LFS, and a name that no format has."""
    path = tmp_path / name
    path.write_text(GIT_LFS_POINTER)
    with pytest.raises(ModelUnavailable, match=f"{name}: {reason}"):
        open_checkpoint([path])


def test_shards_are_read_in_order_as_one(tmp_path: Path) -> None:
    """A sharded checkpoint is one Mapping over all its files."""
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for i, name in enumerate(names):
        safetensors.numpy.save_file({f"x{i}": np.full(2, i, np.float32)}, tmp_path / name)
    write_index(tmp_path, {"x1": names[1], "x0": names[0]})
    paths = find_weights(tmp_path)
    assert [path.name for path in paths] == names
    checkpoint = open_checkpoint(paths)
    assert {name: weight.array.tolist() for name, weight in checkpoint.items()} == {"x0": [0, 0], "x1": [1, 1]}


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    """It is not defined which of the two would count."""
    paths = [write_raw(tmp_path / f"{i}.safetensors", {"x": tensor(0, 4)}, bytes(4)) for i in range(2)]
    with pytest.raises(ModelUnavailable, match="'x' is in an earlier file too"):
        open_checkpoint(paths)


@pytest.mark.parametrize(
    "name",
    [
        "../other.safetensors",
        "/etc/passwd",
        "/x.safetensors",
        "a/b.safetensors",
        "a\\b.safetensors",
        "x.bin",
        "c:x.safetensors",
    ],
)
def test_a_shard_outside_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    """An index may only name safetensors files next to it."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_raw(tmp_path / "other.safetensors", {})
    write_index(folder, {"x": name})
    with pytest.raises(ModelUnavailable, match="of its own folder"):
        find_weights(folder)


@pytest.mark.parametrize("weight_map", [None, {}, [], {"x": 3}, {"x": None}], ids=str)
def test_an_invalid_index_is_refused(weight_map: object, tmp_path: Path) -> None:
    """A weight_map must map names to file names."""
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelUnavailable, match=r"model\.safetensors\.index\.json"):
        find_weights(tmp_path)


def test_weights_in_another_format_are_named(tmp_path: Path) -> None:
    """A folder with weights of an unsupported format does not look empty."""
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(ModelUnavailable, match=r"no model\.safetensors, no pytorch_model\.bin.*model\.onnx"):
        find_weights(tmp_path)


def test_torch_files_and_safetensors_form_one_checkpoint(tmp_path: Path) -> None:
    """A model in one format and its heads in the other are read together over their maps."""
    import torch

    torch.save({"linear.weight": torch.ones(2)}, tmp_path / "sparse_linear.pt")
    safetensors.numpy.save_file({"x": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint([tmp_path / "model.safetensors", tmp_path / "sparse_linear.pt"])
    array = checkpoint["linear.weight"].array
    checkpoint.release()
    checkpoint.close()
    assert array.tolist() == [1, 1]


def test_torch_shards_are_read_as_one(tmp_path: Path) -> None:
    """pytorch_model.bin.index.json names them as the index of safetensors does."""
    import torch

    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    for i, name in enumerate(names):
        torch.save({f"x{i}": torch.full((2,), i, dtype=torch.float16)}, tmp_path / name)
    write_index(tmp_path, {"x1": names[1], "x0": names[0]}, name="pytorch_model.bin")
    checkpoint = open_checkpoint(find_weights(tmp_path))
    assert {name: weight.array.tolist() for name, weight in checkpoint.items()} == {"x0": [0, 0], "x1": [1, 1]}


def test_safetensors_take_precedence(tmp_path: Path) -> None:
    """The order: one safetensors file, its shards, one torch file, its shards."""
    for name in ("pytorch_model-1.bin", "pytorch_model.bin", "model-1.safetensors", "model.safetensors"):
        (tmp_path / name).touch()
    write_index(tmp_path, {"x": "pytorch_model-1.bin"}, name="pytorch_model.bin")
    write_index(tmp_path, {"x": "model-1.safetensors"})
    for name, removed in [
        ("model.safetensors", "model.safetensors"),
        ("model-1.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin"),
        ("pytorch_model-1.bin", "pytorch_model.bin.index.json"),
    ]:
        assert find_weights(tmp_path) == (tmp_path / name,)
        (tmp_path / removed).unlink()
