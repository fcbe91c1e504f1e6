"""Check an ONNX file before a runtime opens it: `read_onnx(path) -> OnnxFile`. Nothing is run.

A graph can keep tensors in other files that it names itself, so a hostile one could make the runtime read any file.
Such names are found in every message that can hold a tensor: weights, sparse weights, attributes of nodes, graphs
inside attributes, functions and training. All are visited, and a name that leads out of the folder is refused.
The format: onnx/onnx.proto of https://github.com/onnx/onnx, and protobuf's encoding.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from vectord.checkpoints.files.read import map_file
from vectord.errors import ModelUnavailable

GRAPH_LIMIT_BYTES = 2**31  # protobuf's own limit
DEPTH_LIMIT = 32  # of nested messages; a graph in a graph takes three levels

Message: TypeAlias = Literal["model", "training", "function", "graph", "node", "attribute", "sparse", "tensor"]

# The fields of each message that lead to tensors.
_FIELDS: Mapping[Message, Mapping[int, Message]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_GRAPH_OUTPUT, _OUTPUT_NAME, _EXTERNAL_DATA, _ENTRY_KEY, _ENTRY_VALUE = 12, 1, 13, 1, 2


class OnnxFile(msgspec.Struct, frozen=True):
    outputs: tuple[str, ...]  # names of the graph's outputs
    data: tuple[Path, ...]  # the files next to it that hold its tensors, sorted


def read_onnx(path: Path) -> OnnxFile:
    """Return the graph's outputs and the files that it needs."""
    with map_file(path) as mapped:
        if len(mapped) >= GRAPH_LIMIT_BYTES:
            raise ModelUnavailable(f"{path}: {GRAPH_LIMIT_BYTES:,} bytes or more, which no ONNX file can have")
        reader = _OnnxReader(path, mapped)
        reader.visit("model", 0, len(mapped), depth=0)
        return OnnxFile(tuple(reader.outputs), tuple(sorted(reader.data)))


class _OnnxReader:
    """Visits the messages of one file and collects `data` and `outputs`."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.data: set[Path] = set()
        self.outputs: list[str] = []  # of the main graph
        self._path = path
        self._mapped = mapped

    def visit(self, message: Message, start: int, stop: int, depth: int) -> None:
        """Check every tensor in these bytes."""
        if depth > DEPTH_LIMIT:
            raise self._refuse(f"messages nested more than {DEPTH_LIMIT} deep")
        inner = _FIELDS[message]
        for number, first, end in self._parts(start, stop):
            if number in inner:
                self.visit(inner[number], first, end, depth + 1)
            elif message == "graph" and depth == 1 and number == _GRAPH_OUTPUT:  # the model's own graph
                self.outputs.append(self._text(first, end, _OUTPUT_NAME))
            elif (message, number) == ("tensor", _EXTERNAL_DATA) and self._text(first, end, _ENTRY_KEY) == "location":
                self._add_data(self._text(first, end, _ENTRY_VALUE))

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Number, first byte and end of each field in these bytes that has a length: messages and strings."""
        while start < stop:
            tag, start = self._varint(start, stop)
            if tag >= 2**32:  # some parsers drop the higher bits and see another field
                raise self._refuse("a field with an impossible number")
            match tag & 7:
                case 0:
                    _, start = self._varint(start, stop)
                case 1:
                    start += 8
                case 2:
                    length, first = self._varint(start, stop)
                    start = first + length
                    if start <= stop:
                        yield tag >> 3, first, start
                case 5:
                    start += 4
                case kind:
                    raise self._refuse(f"a field of wire type {kind}, which ONNX does not use")
            if start > stop:
                raise self._refuse("it is cut off, or not an ONNX file")

    def _varint(self, start: int, stop: int) -> tuple[int, int]:
        """A number, and the position after it."""
        value = 0
        for i, byte in enumerate(self._mapped[start : min(stop, start + 10)]):
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return value, start + i + 1
        raise self._refuse("it is cut off, or not an ONNX file")

    def _text(self, start: int, stop: int, field: int) -> str:
        """The string in this field, empty if there is none; the last of several, as protobuf decides."""
        text = ""
        for number, first, end in self._parts(start, stop):
            if number != field:
                continue
            try:
                text = self._mapped[first:end].decode()
            except UnicodeDecodeError as error:
                raise self._refuse("a name that is not UTF-8") from error
        return text

    # --- tensors in other files -------------------------------------------------------------------------------

    def _add_data(self, location: str) -> None:
        """Raises ModelUnavailable if the file of that name is not the model's own."""
        if not location or location in {".", ".."} or any(character in location for character in "/\\:*\0"):
            raise self._refuse(f"a tensor in {location[:80]!r}; only files next to the graph are read")
        path = self._path.parent / location
        if path in self.data:  # many tensors share one file
            return
        try:
            target = path.resolve(strict=True)
            is_file = target.is_file()
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
            raise self._refuse(f"tensors in {path.name}, which cannot be read") from error
        if not is_file:
            raise self._refuse(f"tensors in {path.name}, which is not a regular file")
        # The links of a snapshot of the hub's cache lead to that model's blobs.
        folder = path.parent.resolve()
        snapshots = [parent for parent in folder.parents if parent.name == "snapshots"]
        blobs = [parent.with_name("blobs") for parent in snapshots if parent.parent.name.startswith("models--")]
        if target.parent not in (folder, *blobs):
            raise self._refuse(f"tensors in {path.name}, which is a link out of the model's folder")
        self.data.add(path)

    def _refuse(self, why: str) -> ModelUnavailable:
        return ModelUnavailable(f"{self._path}: {why}")
