"""The pickle of a torch file, read as data: `read_tensors(path, pickled)` gives its dict of tensors. Nothing is run.

torch_file.py calls it, in the loading thread, and looks for the bytes of the tensors.

A pickle is a program for a stack machine, which may import and call anything: Python's own must not see a file from
elsewhere. This machine has the instructions that torch.save writes for a dict of tensors. "Call" knows three names,
all of them kept here, and makes plain values; "import" is a look into the table of those names; there is no instruction
that reaches an attribute, a module or an object's own code.
The instructions: Lib/pickletools.py of Python; the calls: torch/_utils.py of torch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from vectord.checkpoints.files.weight import is_shape
from vectord.errors import ModelUnavailable

PICKLE_LIMIT_BYTES = 4 * 2**20  # 20,000 tensors; a byte may cost 64 of memory
_STRING_LIMIT_BYTES = 1024  # the name of a tensor, a storage or a device
_STACK_LIMIT = 100_000  # values under one mark: two for each tensor, if a writer puts all in one go
_MARKS_LIMIT = 16  # torch nests three

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class StorageType:
    """What the items of a storage are, in safetensors' words."""

    dtype: str
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of items in the file: member `data/KEY`, if it has as many bytes."""

    key: str
    type: StorageType
    items: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A view into a storage; offset and strides count items, from 0 up. That it stays inside is not yet checked."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.storage.type.item_bytes

    @property
    def stop(self) -> int:
        """The item after the last that belongs to the tensor."""
        if 0 in self.shape:
            return self.offset
        return self.offset + 1 + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))

    @property
    def is_contiguous(self) -> bool:
        """Whether its items lie one after the other in C order."""
        if 0 in self.shape:
            return True
        dense = 1
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n > 1 and stride != dense:
                return False
            dense *= n
        return True


class _Call(Enum):
    """What a pickle may call, under the names it has there."""

    ORDERED_DICT = "collections OrderedDict"
    TENSOR = "torch._utils _rebuild_tensor_v2"
    PARAMETER = "torch._utils _rebuild_parameter"


_GLOBALS: Mapping[str, object] = {
    **{named.value: named for named in _Call},
    "torch FloatStorage": StorageType("F32", 4),
    "torch HalfStorage": StorageType("F16", 2),
    "torch BFloat16Storage": StorageType("BF16", 2),
    "torch DoubleStorage": StorageType("F64", 8),
    "torch LongStorage": StorageType("I64", 8),
    "torch IntStorage": StorageType("I32", 4),
    "torch ShortStorage": StorageType("I16", 2),
    "torch CharStorage": StorageType("I8", 1),
    "torch ByteStorage": StorageType("U8", 1),
    "torch BoolStorage": StorageType("BOOL", 1),
}


def read_tensors(path: Path, pickled: bytes) -> dict[str, StoredTensor]:
    """The tensors of a pickled dict, by name. path: the file it comes from, for messages.

    Raises ModelUnavailable, naming the file: anything but one dict of tensors as torch.save writes it.
    """
    value = _Machine(path, pickled).run()
    if type(value) is not dict:
        raise _refuse(path, f"it holds {_describe(value)}, not a dict of tensors")
    for name, tensor in value.items():
        if not isinstance(tensor, StoredTensor):
            raise _refuse(path, f"its entry {name[:100]!r} is {_describe(tensor)}, not a tensor")
    return value


def _refuse(path: Path, why: str) -> ModelUnavailable:
    return ModelUnavailable(f"{path}: {why}; only a plain dict of tensors is read: convert it to safetensors")


def _describe(value: object) -> str:
    match value:
        case dict():
            return "a dict"
        case StoredTensor():
            return "a single tensor"
        case _Call() | StorageType():
            return "a name of torch's"
        case _:
            return f"a value of type {type(value).__name__}"


class _Machine:
    """Runs one pickle. Values are dicts, tuples, strings, numbers, and what _GLOBALS and the calls give."""

    def __init__(self, path: Path, pickled: bytes) -> None:
        self._path = path
        self._pickled = pickled
        self._at = 0
        self._stacks: list[list[object]] = [[]]  # MARK starts another
        self._memo: dict[int, object] = {}

    def run(self) -> object:
        """What is on the stack when the program stops, which is at its last byte."""
        while (instruction := self.take(1)) != b".":
            step = _STEPS.get(instruction)
            if step is None:
                raise self.refuse(f"its pickle has instruction 0x{instruction.hex()} at byte {self._at - 1:,}")
            step(self)
        if self._at != len(self._pickled):
            raise self.refuse(f"its pickle ends at byte {self._at:,} of {len(self._pickled):,}")
        return self.pop(object)

    def refuse(self, why: str) -> ModelUnavailable:
        return _refuse(self._path, why)

    def take(self, count: int) -> bytes:
        taken = self._pickled[self._at : self._at + count]
        if len(taken) < count:
            raise self.refuse("its pickle is cut off")
        self._at += count
        return taken

    def number(self, form: str) -> int:
        (number,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(number)

    def line(self) -> str:
        stop = self._pickled.find(b"\n", self._at, self._at + _STRING_LIMIT_BYTES)
        if stop < 0:
            raise self.refuse("its pickle has a name without end")
        return self.take(stop + 1 - self._at)[:-1].decode("ascii", "replace")

    def push(self, value: object) -> None:
        if len(self._stacks[-1]) >= _STACK_LIMIT:
            raise self.refuse(f"its pickle stacks more than {_STACK_LIMIT:,} values")
        self._stacks[-1].append(value)

    def pop(self, kind: type[V]) -> V:
        value = self.top(kind)
        self._stacks[-1].pop()
        return value

    def top(self, kind: type[V]) -> V:
        if not self._stacks[-1] or not isinstance(value := self._stacks[-1][-1], kind):
            raise self.refuse(f"its pickle lacks a {kind.__name__} before byte {self._at:,}")
        return value

    def mark(self) -> None:
        if len(self._stacks) > _MARKS_LIMIT:
            raise self.refuse(f"its pickle is nested more than {_MARKS_LIMIT} deep")
        self._stacks.append([])

    def pop_marked(self) -> list[object]:
        if len(self._stacks) == 1:
            raise self.refuse(f"its pickle lacks a mark before byte {self._at:,}")
        return self._stacks.pop()

    def pop_tuple(self, count: int) -> None:
        values = [self.pop(object) for _ in range(count)]
        self.push(tuple(reversed(values)))

    def check_protocol(self) -> None:
        if (protocol := self.number("<B")) != 2:
            raise self.refuse(f"its pickle has protocol {protocol}, where torch.save writes 2")

    def push_long(self) -> None:
        count = self.number("<B")
        if count > 8:  # no size of anything takes more
            raise self.refuse(f"its pickle has a number of {count} bytes")
        self.push(int.from_bytes(self.take(count), "little", signed=True))

    def push_string(self) -> None:
        count = self.number("<L")
        if count > _STRING_LIMIT_BYTES:
            raise self.refuse(f"its pickle has a string of {count:,} bytes; the limit is {_STRING_LIMIT_BYTES:,}")
        try:
            self.push(self.take(count).decode())
        except UnicodeDecodeError as error:
            raise self.refuse("its pickle has a string that is not UTF-8") from error

    def push_global(self) -> None:
        name = f"{self.line()} {self.line()}"
        if name not in _GLOBALS:
            raise self.refuse(f"its pickle names {name[:100]!r}")
        self.push(_GLOBALS[name])

    def put(self, index: int) -> None:
        self._memo[index] = self.top(object)

    def get(self, index: int) -> None:
        if index not in self._memo:
            raise self.refuse(f"its pickle recalls value {index}, which it never kept")
        self.push(self._memo[index])

    def set_item(self) -> None:
        value, key = self.pop(object), self.pop(object)
        self._store(key, value)

    def set_items(self) -> None:
        values = iter(self.pop_marked())
        for key in values:
            if (value := next(values, self)) is self:
                raise self.refuse("its pickle has a key without a value")
            self._store(key, value)

    def _store(self, key: object, value: object) -> None:
        target = self.top(dict)
        if not isinstance(key, str) or key in target:
            raise self.refuse(f"its pickle has a key that is no string, or twice the same, before byte {self._at:,}")
        target[key] = value

    def build(self) -> None:
        """The attributes of an OrderedDict: _metadata, which torch.save keeps for load_state_dict. Dropped."""
        self.pop(dict)
        self.top(dict)

    def push_storage(self) -> None:
        match self.pop(tuple):
            case ("storage", StorageType() as kind, str(key), str(), items) if is_shape((items,)):
                self.push(Storage(key, kind, items))
            case _:
                raise self.refuse("its pickle points to something that is not a storage")

    def call(self) -> None:
        arguments = self.pop(tuple)
        match self.pop(_Call), arguments:
            case _Call.ORDERED_DICT, ():
                self.push({})
            case _Call.TENSOR, (Storage() as storage, int(offset), tuple(shape), tuple(strides), bool(), dict()):
                if not _is_view(offset, shape, strides):
                    raise self.refuse("its pickle has a tensor of an impossible shape or place")
                self.push(StoredTensor(storage, offset, shape, strides))
            case _Call.PARAMETER, (StoredTensor() as tensor, bool(), dict()):
                self.push(tensor)
            case name, _:
                raise self.refuse(f"its pickle calls {name.value!r} in an unknown way")


def _is_view(offset: int, shape: tuple[Any, ...], strides: tuple[Any, ...]) -> bool:
    return is_shape(shape) and len(strides) == len(shape) and all(is_shape((step,)) for step in (offset, *strides))


_STEPS: Mapping[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine.check_protocol,
    b"(": _Machine.mark,
    b"c": _Machine.push_global,
    b"R": _Machine.call,
    b"Q": _Machine.push_storage,
    b"b": _Machine.build,
    b"s": _Machine.set_item,
    b"u": _Machine.set_items,
    b"}": lambda machine: machine.push({}),
    b")": lambda machine: machine.push(()),
    b"t": lambda machine: machine.push(tuple(machine.pop_marked())),
    b"\x85": lambda machine: machine.pop_tuple(1),
    b"\x86": lambda machine: machine.pop_tuple(2),
    b"\x87": lambda machine: machine.pop_tuple(3),
    b"\x88": lambda machine: machine.push(True),
    b"\x89": lambda machine: machine.push(False),
    b"K": lambda machine: machine.push(machine.number("<B")),
    b"M": lambda machine: machine.push(machine.number("<H")),
    b"J": lambda machine: machine.push(machine.number("<i")),
    b"\x8a": _Machine.push_long,
    b"X": _Machine.push_string,
    b"q": lambda machine: machine.put(machine.number("<B")),
    b"r": lambda machine: machine.put(machine.number("<L")),
    b"h": lambda machine: machine.get(machine.number("<B")),
    b"j": lambda machine: machine.get(machine.number("<L")),
}
