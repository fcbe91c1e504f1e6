"""Tests of checkpoints/files/gguf_file.py: the header of a GGUF file, whole, damaged and hostile."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.checkpoints.gguf.gguf_files import add_value, finish

from vectord.checkpoints.files.gguf_file import (
    TENSOR_TYPES,
    GgufFile,
    is_gguf,
    read_gguf,
)
from vectord.checkpoints.files.read import map_file
from vectord.errors import ModelUnavailable

VALUES = {
    "a.float32": 0.5,
    "a.bool": True,
    "a.texts": ["", "é"],
    "a.numbers": [3, -4],
    "a.flags": [True, False],
}
TABLE = np.arange(64, dtype=np.float32).reshape(2, 32)


def read(path: Path) -> GgufFile:
    return read_gguf(path, map_file(path))


def write(path: Path) -> Path:
    """A file of the gguf package with a key of each type, and two tensors."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_uint8("a.uint8", 200)
    writer.add_int64("a.int64", -(2**40))
    writer.add_float64("a.float64", 1e-300)
    for key, value in VALUES.items():
        add_value(writer, key, value)
    writer.add_tensor("table", TABLE)
    writer.add_tensor("packed", gguf.quants.quantize(TABLE, gguf.GGMLQuantizationType.Q8_0), raw_dtype=8)
    finish(writer)
    return path


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(*, tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def tensor(name: bytes = b"t", shape: tuple[int, ...] = (2,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def test_values_and_tensors_are_those_that_the_package_wrote(tmp_path: Path) -> None:
    """All types of values, and tensors in whole numbers and in blocks."""
    file = read(write(tmp_path / "m.gguf"))
    values = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in file.metadata.items()}
    assert values == {
        "general.architecture": "bert",
        "a.uint8": 200,
        "a.int64": -(2**40),
        "a.float64": 1e-300,
        **VALUES,
    }
    table, packed = file.tensors["table"], file.tensors["packed"]
    assert (table.blocks.view(np.float32) == TABLE).all()
    assert (packed.shape, packed.blocks.shape, packed.type.name) == ((2, 32), (2, 34), "Q8_0")


def test_block_sizes_are_those_of_the_package() -> None:
    """And every type but the plain ones can be dequantized."""
    for number, kind in TENSOR_TYPES.items():
        assert (kind.items, kind.bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)]
        blocks = np.zeros((1, kind.bytes), np.uint8)
        assert gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(number)).size == kind.items


def test_a_file_is_known_by_its_name_or_its_first_bytes(tmp_path: Path) -> None:
    """A store keeps it under its digest; a folder and a missing file are none."""
    named, stored, other = tmp_path / "a.gguf", tmp_path / "sha256-00", tmp_path / "b.bin"
    named.write_bytes(b"")
    stored.write_bytes(b"GGUF...")
    other.write_bytes(b"....")
    assert [is_gguf(path) for path in (named, stored, other, tmp_path, tmp_path / "c.gguf")] == [True, True] + [
        False
    ] * 3


KEY = text(b"k")
HOSTILE: dict[str, tuple[bytes, str]] = {
    "another format": (b"\x00" * 64, "does not begin with GGUF"),
    "version 1": (header(version=1), "version 1 of GGUF"),
    "big-endian": (header(version=3 << 24), "big-endian files are not read"),
    "countless keys": (header(keys=2**63), "is cut off"),
    "countless tensors": (header(tensors=2**63), "is cut off"),
    "a long key": (header(keys=1) + struct.pack("<Q", 2**62), "a metadata key is cut off"),
    "a text after the end": (header(keys=1) + KEY + struct.pack("<IQ", 8, 2**62), "k is cut off"),
    "no UTF-8": (header(keys=1) + KEY + struct.pack("<I", 8) + text(b"\xff"), "k is not UTF-8"),
    "an unknown type": (header(keys=1) + KEY + struct.pack("<I", 13), "k has values of the type 13"),
    "texts after the end": (header(keys=1) + KEY + struct.pack("<IIQ", 9, 8, 1000), "k is cut off"),
    "a text in a list without end": (
        header(keys=1) + KEY + struct.pack("<IIQQ", 9, 8, 1, 2**64 - 1),
        "k is cut off",
    ),
    "countless numbers": (header(keys=1) + KEY + struct.pack("<IIQ", 9, 4, 2**62), "k is cut off"),
    "lists in a list": (header(keys=1) + KEY + struct.pack("<IIQ", 9, 9, 1), "k has values of the type 9"),
    "no boolean": (header(keys=1) + KEY + struct.pack("<IB", 7, 2), "k is neither true nor false"),
    "a key twice": (header(keys=2) + 2 * (KEY + struct.pack("<IB", 7, 1)), "k occurs twice"),
    "an alignment of 3": (header(keys=1) + text(b"general.alignment") + struct.pack("<II", 4, 3), "a power of two"),
    "a thousand dimensions": (header(tensors=1) + tensor(shape=(1,) * 1000), "'t' has 1,000 dimensions"),
    "an impossible shape": (header(tensors=1) + tensor(shape=(2**40, 2**40)), "'t' has a shape that is impossible"),
    "half a block": (header(tensors=1) + tensor(shape=(33,), kind=8), "'t' has a shape that is impossible for Q8_0"),
    "an unknown kind of block": (header(tensors=1) + tensor(kind=16), "'t' has ggml's type 16"),
    "a tensor after the end": (header(tensors=1) + tensor(shape=(2**30,)), "'t' is cut off"),
    "a tensor elsewhere": (header(tensors=1) + tensor(offset=64) + bytes(256), "'t' starts at byte"),
    "a tensor twice": (header(tensors=2) + tensor() + tensor(offset=32) + bytes(256), "'t' occurs twice"),
    "a name with a line break": (header(tensors=1) + tensor(name=b"a\nb", kind=16), r"'a\n"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_gives_one_line_with_file_and_field(name: str, tmp_path: Path) -> None:
    """Counts, lengths, shapes and offsets are compared with limits and with the file before they are used."""
    data, why = HOSTILE[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelUnavailable) as refused:
        read(path)
    message = refused.value.message
    assert why in message and message.startswith(f"{path}: ") and "\n" not in message


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    """At each byte of the header, and within the tensors."""
    data = write(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "m.gguf"
    for size in range(1, 64 + data.index(TABLE.tobytes())):
        path.write_bytes(data[:size])
        with pytest.raises(ModelUnavailable):
            read(path)
