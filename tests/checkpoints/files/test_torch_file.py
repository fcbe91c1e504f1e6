"""The reader of torch files gives the same tensors as torch, and refuses every hostile file."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoints.files.torch_files import PICKLED_FLOATS, map_bytes, map_file, pack, torch_members

from vectord.checkpoints.files.torch_file import PICKLE_LIMIT_BYTES, read_torch_file
from vectord.checkpoints.files.weight import Weight
from vectord.errors import ModelUnavailable


def read(path: Path) -> dict[str, Weight]:
    return read_torch_file(path, map_file(path))


def read_bytes(path: Path, data: bytes) -> dict[str, Weight]:
    return read_torch_file(path, map_bytes(path, data))


def save(path: Path, value: object, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


def bits(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the tensor as the reader represents it: bfloat16 as its 16 bits."""
    tensor = tensor.detach().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_state_dict_equals_torchs(dtype: torch.dtype, tmp_path: Path) -> None:
    """Every weight is equal bit for bit, mapped and aligned; the metadata of state_dict is ignored."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, dtype=dtype)
    state = layer.state_dict()
    weights = read(save(tmp_path / "pytorch_model.bin", state))
    assert weights.keys() == state.keys()
    for name, weight in weights.items():
        assert weight.name == name
        assert weight.dtype == {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]
        assert weight.array.flags.aligned
        assert weight.array.flags.writeable
        assert not weight.array.flags.owndata
        np.testing.assert_array_equal(weight.array, bits(state[name]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_file_of_torch_before_1_6_equals_torchs(dtype: torch.dtype, tmp_path: Path) -> None:
    """Bit for bit: parameters, two names of one tensor, and views; the file aligns nothing."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, dtype=dtype)
    state = layer.state_dict()
    state |= {"again": state["linear1.weight"], "turned": state["linear1.weight"].t(), "part": state["norm1.bias"][3:]}
    weights = read(save(tmp_path / "pytorch_model.bin", state, _use_new_zipfile_serialization=False))
    assert weights.keys() == state.keys()
    for name, weight in weights.items():
        assert weight.array.flags.aligned
        np.testing.assert_array_equal(weight.array, bits(state[name]))


def test_views_of_every_kind_equal_torchs(tmp_path: Path) -> None:
    """Slices, columns, transposes, scalars and empty tensors; non-contiguous ones are copied into C order."""
    torch.manual_seed(0)
    matrix = torch.randn(6, 4)
    state = {
        "whole": matrix,
        "transposed": matrix.t(),
        "rows": matrix[2:4],
        "column": matrix[:, 1],
        "every other row": matrix[::2],
        "last number": matrix[5, 3],
        "one column": torch.randn(1, 5).t(),
        "nothing": torch.zeros(0, 4),
        "no rows": matrix[:0],
        "expanded": torch.ones(1).expand(2, 3),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(torch.randn(3)),
    }
    weights = read(save(tmp_path / "m.pt", state))
    assert weights.keys() == state.keys()
    for name, weight in weights.items():
        assert weight.array.flags.c_contiguous
        assert weight.array.flags.writeable
        assert weight.array.shape == state[name].shape
        np.testing.assert_array_equal(weight.array, bits(state[name]))


def test_tied_weights_share_memory(tmp_path: Path) -> None:
    """Two names of one tensor, such as embeddings and a language model's head, take the memory of one."""
    table = torch.nn.Embedding(50, 8)
    weights = read(save(tmp_path / "m.bin", {"embeddings": table.weight, "head": table.weight}))
    assert np.shares_memory(weights["embeddings"].array, weights["head"].array)
    np.testing.assert_array_equal(weights["head"].array, bits(table.weight))


def test_tensors_of_other_types_keep_their_names(tmp_path: Path) -> None:
    """A network must account for every tensor of its files, position_ids and masks too."""
    others = [torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    state = {str(dtype): torch.ones(3, dtype=dtype) for dtype in others}
    weights = read(save(tmp_path / "m.bin", {**state, "x": torch.ones(2)}))
    assert weights.keys() == {*state, "x"}
    assert all(weights[name].array.tolist() == [1, 1, 1] for name in state)


def test_a_file_of_torch_before_2_1_is_read(tmp_path: Path) -> None:
    """It has no byteorder member. Storages need not be aligned."""
    members = torch_members(storage=np.arange(4, dtype=np.float32).tobytes())
    del members["m/byteorder"]
    for shift in (0, 2):
        array = read_bytes(tmp_path / "m.bin", pack(members, shift=shift))["x"].array
        assert array.tolist() == [0, 1, 2, 3] and array.flags.aligned


def test_a_file_name_with_spaces_is_read(tmp_path: Path) -> None:
    """torch names the folder inside the file after the file."""
    assert read(save(tmp_path / "my model (1).bin", {"x": torch.ones(1)})).keys() == {"x"}


def transposed(shape: int, stride: int) -> bytes:
    """Return PICKLED_FLOATS with another shape and stride, of a byte each."""
    return PICKLED_FLOATS.replace(b"K\x04\x85K\x01\x85", bytes([0x4B, shape, 0x85, 0x4B, stride, 0x85]))


def old_tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return file.getvalue()


def saved(value: object, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


ONE = torch.ones(1)
OLDER = saved({"x": ONE}, _use_new_zipfile_serialization=False)
SQUARE = torch.arange(65_536, dtype=torch.float32).reshape(256, 256)
BROKEN: Mapping[str, bytes] = {
    "cut off before 1.6": OLDER[:-1],
    "a magic number alone": OLDER[:16],
    "another protocol": OLDER.replace(b"M\xe9\x03", b"M\xe8\x03"),
    "big-endian before 1.6": OLDER.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89"),
    "another number of items": OLDER[:-12] + bytes(8) + OLDER[-4:],
    "numbers in a list before 1.6": saved([ONE], _use_new_zipfile_serialization=False),
    "torch's format before 0.1.10": old_tar(),
    "a plain pickle": pickle.dumps({"x": 1}),
    "a whole module": saved(torch.nn.Linear(2, 2)),
    "a dict in a dict": saved({"state_dict": {"x": ONE}}),
    "a tensor alone": saved(ONE),
    "a list of tensors": saved([ONE]),
    "a dict with numbers": saved({"x": ONE, "epoch": 3}),
    "a pickle of protocol 4": saved({"x": ONE}, pickle_protocol=4),
    "a dtype torch has no old storage for": saved({"x": torch.ones(1, dtype=torch.uint16)}),
    "a complex tensor": saved({"x": torch.ones(1, dtype=torch.complex64)}),
    "a sparse tensor": saved({"x": torch.eye(2).to_sparse()}),
    "no members": pack({}),
    "no pickle": pack({"m/data/0": bytes(16)}),
    "members in no folder": pack({"data.pkl": PICKLED_FLOATS, "data/0": bytes(16)}),
    "big-endian": pack({**torch_members(), "m/byteorder": b"big"}),
    "an order of bytes of its own": pack({**torch_members(), "m/byteorder": b"little-endian"}),
    "no storage": pack({"m/data.pkl": PICKLED_FLOATS}),
    "storage shorter than said": pack(torch_members(storage=bytes(15))),
    "storage longer than said": pack(torch_members(storage=bytes(17))),
    "view beyond the storage": pack(torch_members(pickled=transposed(5, 1))),
    "strides beyond the storage": pack(torch_members(pickled=transposed(2, 4))),
    "four floats seen as 255": pack(torch_members(pickled=transposed(255, 0))),
    "more copies than bytes": saved({str(i): SQUARE.t()[i:] for i in range(4)}),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_file_without_a_dict_of_tensors_is_refused_by_name(broken: str, tmp_path: Path) -> None:
    """The error names the file, and recommends the conversion to safetensors of a sound file of another format."""
    is_sound = broken.startswith(("torch's", "a "))
    with pytest.raises(ModelUnavailable, match=rf"m\.bin: .*{'convert it to safetensors' if is_sound else ''}"):
        read_bytes(tmp_path / "m.bin", BROKEN[broken])


def test_a_pickle_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Each byte of a pickle may become an object."""
    with pytest.raises(ModelUnavailable, match="the limit is 4,194,304"):
        read_bytes(tmp_path / "m.bin", pack(torch_members(pickled=bytes(PICKLE_LIMIT_BYTES + 1))))


def test_a_tensor_with_two_names_is_copied_once(tmp_path: Path) -> None:
    """Tied weights that are a transpose take the memory of one copy."""
    weights = read_bytes(tmp_path / "m.bin", saved({"embeddings": SQUARE.t(), "head": SQUARE.t()}))
    assert weights["embeddings"].array is weights["head"].array
    np.testing.assert_array_equal(weights["head"].array, bits(SQUARE.t()))
