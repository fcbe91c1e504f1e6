"""Read the weights of a torch.save file (.bin, .pt) without torch: `read_torch_file(path, mapped)`.

Since torch 1.6 such a file is a zip archive of uncompressed members. ROOT/data.pkl describes the tensors, ROOT/data/KEY
holds the bytes of one storage, and the returned arrays lie over the memory map. `zipfile` finds the members, and a
restricted unpickler reads data.pkl: it neither imports nor calls anything that a file names.
The format: torch/serialization.py ("_save", "_load") and torch/_utils.py of torch; Lib/pickletools.py of Python.
"""

from __future__ import annotations

import io
import mmap
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.checkpoints.files.weight import DTYPES, Dtype, Weight, array_over, is_shape
from vectord.errors import ModelUnavailable

DIRECTORY_LIMIT_BYTES = 8 * 2**20  # 80,000 members under torch's names
PICKLE_LIMIT_BYTES = 4 * 2**20  # 20,000 tensors; one byte may cost 64 bytes of memory
_ENCRYPTED = 1
_LOCAL = struct.Struct("<26x 2H")  # a member's local header: lengths of name and extra field, which follow it

Members = Mapping[str, range]  # the bytes of each member in the file


class Storage(msgspec.Struct, frozen=True):
    """Member data/KEY, which must hold exactly `items` items."""

    key: str
    dtype: Dtype
    items: int


class StoredTensor(msgspec.Struct, frozen=True):
    """A view into a storage. Offset and strides count items and are not negative; the end is not checked yet."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def stop(self) -> int:
        """One past the last item of the view."""
        if 0 in self.shape:
            return self.offset
        return self.offset + 1 + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))


def read_torch_file(path: Path, mapped: mmap.mmap) -> dict[str, Weight]:
    """Return the tensors of the mapped file.

    Two names of one tensor share one array. Tensors that are not contiguous (a transpose) are copied.
    """
    members = read_members(path, mapped)
    root = min(members, default="").partition("/")[0]
    pickled = members.get(f"{root}/data.pkl")
    if pickled is None or any(not name.startswith(f"{root}/") for name in members):
        raise ModelUnavailable(f"{path}: a zip file, but not torch.save's: expected one folder with data.pkl in it")
    order = members.get(f"{root}/byteorder")  # torch before 2.1 wrote none
    if order and mapped[order.start : min(order.stop, order.start + 7)] != b"little":
        raise ModelUnavailable(f"{path}: its numbers are not little-endian; convert it to safetensors")
    if len(pickled) > PICKLE_LIMIT_BYTES:
        raise ModelUnavailable(f"{path}: a pickle of {len(pickled):,} bytes; the limit is {PICKLE_LIMIT_BYTES:,}")
    tensors = read_tensors(path, mapped[pickled.start : pickled.stop])
    views = {
        tensor: _view(path, name, tensor, mapped, members.get(f"{root}/data/{tensor.storage.key}"))
        for name, tensor in tensors.items()
    }
    copied_bytes = sum(view.nbytes for view in views.values() if not view.flags.c_contiguous)
    if copied_bytes > len(mapped):  # a few bytes seen with stride 0, or by many views, would need as much memory
        raise ModelUnavailable(
            f"{path}: tensors that are not contiguous take {copied_bytes:,} bytes, in a file of {len(mapped):,}"
        )
    arrays = {tensor: np.asarray(view, order="C") for tensor, view in views.items()}
    return {name: Weight(name, tensor.storage.dtype, arrays[tensor]) for name, tensor in tensors.items()}


def _view(
    path: Path, name: str, tensor: StoredTensor, mapped: mmap.mmap, member: range | None
) -> npt.NDArray[np.generic]:
    """The tensor over the map, in its own strides. member: the bytes of its storage."""
    storage = tensor.storage
    item_bytes = np.dtype(DTYPES[storage.dtype]).itemsize
    if member is None or storage.items * item_bytes != len(member):
        raise ModelUnavailable(f"{path}: the storage of tensor {name[:100]!r} is missing or has another size")
    if member.start % item_bytes:  # torch aligns members to 64 bytes
        raise ModelUnavailable(f"{path}: the storage of tensor {name[:100]!r} is not aligned")
    if tensor.stop > storage.items:
        raise ModelUnavailable(f"{path}: tensor {name[:100]!r} reaches outside its storage")
    items = array_over(mapped, storage.dtype, (storage.items,), member.start)[tensor.offset :]
    return np.lib.stride_tricks.as_strided(items, tensor.shape, [stride * item_bytes for stride in tensor.strides])


# --- the zip archive ------------------------------------------------------------------------------------------


def read_members(path: Path, mapped: mmap.mmap) -> Members:
    """Return the place of every member's bytes in the file."""
    try:
        archive = zipfile.ZipFile(cast(io.BufferedIOBase, _BoundedReader(mapped)))
    except (zipfile.BadZipFile, NotImplementedError, OSError, OverflowError, ValueError, struct.error) as error:
        raise ModelUnavailable(
            f"{path}: not a complete zip file ({error}); it is cut off, or in the format of torch before 1.6: "
            "convert it to safetensors"
        ) from error
    members: dict[str, range] = {}
    for entry in archive.infolist():
        name, at = entry.orig_filename, entry.header_offset
        if entry.compress_type or entry.flag_bits & _ENCRYPTED:
            raise ModelUnavailable(f"{path}: member {name[:100]!r} is compressed or encrypted, which torch's never are")
        if not 0 <= at <= len(mapped) - _LOCAL.size:
            raise ModelUnavailable(f"{path}: member {name[:100]!r} lies outside the file")
        name_bytes, extra_bytes = _LOCAL.unpack_from(mapped, at)
        start = at + _LOCAL.size + name_bytes + extra_bytes
        if start + entry.file_size > len(mapped):
            raise ModelUnavailable(f"{path}: member {name[:100]!r} lies outside the file")
        members[name] = range(start, start + entry.file_size)
    return members


class _BoundedReader:
    """The map as zipfile reads it: the largest read is the directory, whose entries become much larger objects."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        mapped.seek(0)
        self.seek, self.tell = mapped.seek, mapped.tell

    def read(self, size: int = -1) -> bytes:
        if size > DIRECTORY_LIMIT_BYTES:
            raise ValueError(f"a directory of more than {DIRECTORY_LIMIT_BYTES:,} bytes")
        return self._mapped.read(size)


# --- the pickle -----------------------------------------------------------------------------------------------


def read_tensors(path: Path, pickled: bytes) -> dict[str, StoredTensor]:
    """Return the tensors of a pickled dict by name."""
    try:
        value = _Unpickler(io.BytesIO(pickled)).load()
        if not isinstance(value, _Dict):
            raise ValueError(f"it holds a {type(value).__name__}, not a dict of tensors")
        for name, tensor in value.items():
            if not isinstance(tensor, StoredTensor):
                raise ValueError(f"its entry {name[:100]!r} is a {type(tensor).__name__}, not a tensor")
    except (pickle.UnpicklingError, struct.error, EOFError, LookupError, TypeError, ValueError) as error:
        why = str(error)[:200] if isinstance(error, ValueError) else "its pickle is damaged, or not torch.save's"
        advice = "only a plain dict of tensors is read: convert it to safetensors"
        raise ModelUnavailable(f"{path}: {why}; {advice}") from error
    return value


class _Dict(dict[str, Any]):
    """A dict of the pickle."""

    __slots__ = ()

    def __init__(self) -> None:
        """Without arguments, whose keys nothing would check."""

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):  # nested tuples take hours to hash, or overflow the stack of C
            raise ValueError("its pickle has a key that is not a string")
        super().__setitem__(key, value)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, requires_grad: Any, hooks: Any) -> StoredTensor:
    if not isinstance(storage, Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise ValueError("its pickle has a tensor of other parts than torch.save writes")
    if not is_shape(shape) or len(strides) != len(shape) or not all(is_shape((n,)) for n in (offset, *strides)):
        raise ValueError("its pickle has a tensor of an impossible shape or place")
    return StoredTensor(storage, offset, shape, strides)


_GLOBALS: Mapping[str, object] = {
    "collections OrderedDict": _Dict,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_parameter": lambda tensor, requires_grad, hooks: tensor,
    "torch FloatStorage": "F32",
    "torch HalfStorage": "F16",
    "torch BFloat16Storage": "BF16",
    "torch DoubleStorage": "F64",
    "torch LongStorage": "I64",
    "torch IntStorage": "I32",
    "torch ShortStorage": "I16",
    "torch CharStorage": "I8",
    "torch ByteStorage": "U8",
    "torch BoolStorage": "BOOL",
}
_INSTRUCTIONS = (  # that torch.save writes for a dict of tensors, in protocol 2
    *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.GLOBAL, pickle.REDUCE, pickle.BINPERSID),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.NEWTRUE, pickle.NEWFALSE),
    *(pickle.BINUNICODE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
)


class _Unpickler(pickle._Unpickler):
    """Python's unpickler with the instructions, functions and persistent ids of torch.save.

    pickle.Unpickler, in C, allocates gigabytes for one memo index and hashes dict keys before any hook sees them.
    """

    stack: list[Any]

    def load_empty_dict(self) -> None:
        self.stack.append(_Dict())

    def load_build(self) -> None:
        """Drop the attribute `_metadata` of a state dict."""
        self.stack.pop()
        if not isinstance(self.stack[-1], _Dict):
            raise ValueError("its pickle sets attributes of an object")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in _INSTRUCTIONS},
        pickle.EMPTY_DICT[0]: load_empty_dict,
        pickle.BUILD[0]: load_build,
    }

    def find_class(self, module: str, name: str) -> object:
        """Return our counterpart of a name of torch. Raises ValueError for every other name."""
        found = _GLOBALS.get(f"{module} {name}")
        if found is None:
            raise ValueError(f"its pickle names {f'{module} {name}'[:100]!r}")
        return found

    def persistent_load(self, pid: object) -> Storage:
        """Return the storage of torch's persistent id. Raises ValueError for every other id."""
        match pid:
            case ("storage", str(dtype), str(key), str(), int(items)) if dtype in DTYPES and is_shape((items,)):
                return Storage(key, cast(Dtype, dtype), items)
            case _:
                raise ValueError("its pickle points to a value that is not a storage")
