"""ONNX files written by hand: protobuf as bytes, so that every odd place for a tensor can be written too.

The numbers of the fields: onnx/onnx.proto.
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
    """One field: a number, or anything that has a length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name: str, array: np.ndarray) -> bytes:
    """TensorProto with its numbers in it."""
    return _tensor(name, array.shape, field(9, array.astype(np.float32).tobytes()))


def external_tensor(name: str = "w", shape: tuple[int, ...] = (1,), **entries: str) -> bytes:
    """TensorProto with its numbers in another file. entries: location, offset, length."""
    pairs = b"".join(field(13, field(1, key) + field(2, value)) for key, value in entries.items())
    return _tensor(name, shape, pairs + field(14, 1))


def _tensor(name: str, shape: tuple[int, ...], data: bytes) -> bytes:
    return b"".join(field(1, size) for size in shape) + field(2, FLOAT) + field(8, name) + data


def node(op: str, inputs: list[str], outputs: list[str], attributes: bytes = b"") -> bytes:
    names = b"".join(field(1, name) for name in inputs) + b"".join(field(2, name) for name in outputs)
    return names + field(4, op) + attributes


def value(name: str, kind: int, sizes: list[str | int]) -> bytes:
    """ValueInfoProto: a text is a size that is known when the graph runs."""
    shape = b"".join(field(1, field(2, size) if isinstance(size, str) else field(1, size)) for size in sizes)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, shape)))


def graph(
    *parts: bytes, inputs: Mapping[str, list[str | int]] | None = None, outputs: Mapping[str, list[str | int]]
) -> bytes:
    """GraphProto. parts: whole fields, nodes (1) and tensors (5) mostly; inputs are int64, outputs float."""
    taken = b"".join(field(11, value(name, INT64, sizes)) for name, sizes in (inputs or {}).items())
    given = b"".join(field(12, value(name, FLOAT, sizes)) for name, sizes in outputs.items())
    return b"".join(parts) + field(2, "g") + taken + given


def model(graph: bytes, *parts: bytes) -> bytes:
    """ModelProto of IR version 8, opset 17."""
    return field(1, 8) + field(8, field(1, "") + field(2, 17)) + field(7, graph) + b"".join(parts)
