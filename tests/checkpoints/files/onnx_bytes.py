"""Handwritten ONNX files: protobuf as bytes, so that a tensor can be put at any place.

Field numbers: onnx/onnx.proto.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

FLOAT, INT64 = 1, 7  # TensorProto.DataType


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | str | int) -> bytes:
    """Return one field: a number, or a value with a length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name: str, array: np.ndarray) -> bytes:
    """Return a TensorProto that contains its numbers."""
    return _tensor(name, array.shape, field(9, array.astype(np.float32).tobytes()))


def external_tensor(name: str = "w", shape: tuple[int, ...] = (1,), **entries: str) -> bytes:
    """Return a TensorProto with its numbers in another file. entries: location, offset, length."""
    pairs = b"".join(field(13, field(1, key) + field(2, value)) for key, value in entries.items())
    return _tensor(name, shape, pairs + field(14, 1))


def _tensor(name: str, shape: tuple[int, ...], data: bytes) -> bytes:
    return b"".join(field(1, size) for size in shape) + field(2, FLOAT) + field(8, name) + data


def node(op: str, inputs: list[str], outputs: list[str], attributes: bytes = b"") -> bytes:
    names = b"".join(field(1, name) for name in inputs) + b"".join(field(2, name) for name in outputs)
    return names + field(4, op) + attributes


def value(name: str, kind: int, sizes: list[str | int]) -> bytes:
    """Return a ValueInfoProto; a text stands for a size that is known only at run time."""
    shape = b"".join(field(1, field(2, size) if isinstance(size, str) else field(1, size)) for size in sizes)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, shape)))


def graph(
    *parts: bytes, inputs: Mapping[str, list[str | int]] | None = None, outputs: Mapping[str, list[str | int]]
) -> bytes:
    """Return a GraphProto. parts: whole fields, mostly nodes (1) and tensors (5); inputs are int64, outputs float."""
    taken = b"".join(field(11, value(name, INT64, sizes)) for name, sizes in (inputs or {}).items())
    given = b"".join(field(12, value(name, FLOAT, sizes)) for name, sizes in outputs.items())
    return b"".join(parts) + field(2, "g") + taken + given


def model(graph: bytes, *parts: bytes) -> bytes:
    """Return a ModelProto of IR version 8, opset 17."""
    return field(1, 8) + field(8, field(1, "") + field(2, 17)) + field(7, graph) + b"".join(parts)
