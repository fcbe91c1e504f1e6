"""Read the weights of a torch.save file (.bin, .pt) without torch: `read_torch_file(path, mapped)`.

Since torch 1.6 such a file is a zip archive of uncompressed members. ROOT/data.pkl describes the tensors, ROOT/data/KEY
holds the bytes of one storage, and the returned arrays lie over the memory map. `zipfile` finds the members, and a
restricted unpickler reads data.pkl: it neither imports nor calls anything that a file names. Before, it was a sequence
of pickles, followed by each storage.
The format: torch/serialization.py ("_save", "_load", "_legacy_save") and torch/_utils.py of torch; Lib/pickletools.py
of Python.
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

PICKLE_LIMIT_BYTES = 4 * 2**20  # 20,000 tensors; one byte may cost 64 bytes of memory
# The first pickles of torch before 1.6: its magic number, and the number of its format.
_OLDER = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\x80\x02M\xe9\x03."
_ENCRYPTED = 1
_LOCAL = struct.Struct("<26x 2H")  # a member's local header: lengths of name and extra field, which follow it

Members = Mapping[str, range]  # the bytes of each member in the file


class Storage(msgspec.Struct, frozen=True):
    """Member data/KEY, which must hold exactly `items` items."""

    key: str
    dtype: Dtype
    items: int

    @property
    def item_bytes(self) -> int:
        return np.dtype(DTYPES[self.dtype]).itemsize


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

    Two names of one tensor share one array. Tensors that are not contiguous (a transpose) are copied, and so are those
    of torch before 1.6, which aligned nothing.
    """
    if mapped[: len(_OLDER)] == _OLDER:
        return _read_older(path, mapped)
    members = read_members(path, mapped)
    root = min(members, default="").partition("/")[0]
    pickled = members.get(f"{root}/data.pkl")
    if pickled is None:
        raise ModelUnavailable(f"{path}: a zip file, but not torch.save's: expected one folder with data.pkl in it")
    order = members.get(f"{root}/byteorder")  # torch before 2.1 wrote none
    if order and mapped[order.start : min(order.stop, order.start + 7)] != b"little":
        raise ModelUnavailable(f"{path}: its numbers are not little-endian; convert it to safetensors")
    if len(pickled) > PICKLE_LIMIT_BYTES:
        raise ModelUnavailable(f"{path}: a pickle of {len(pickled):,} bytes; the limit is {PICKLE_LIMIT_BYTES:,}")
    tensors = read_tensors(path, mapped[pickled.start : pickled.stop])
    keys = {tensor.storage.key for tensor in tensors.values()}
    return _weights(path, mapped, tensors, {key: members.get(f"{root}/data/{key}") for key in keys})


def _read_older(path: Path, mapped: mmap.mmap) -> dict[str, Weight]:
    file = io.BytesIO(mapped[:PICKLE_LIMIT_BYTES])
    file.seek(len(_OLDER))
    system, value, keys = (_load(path, file) for _ in range(3))
    is_little = isinstance(system, _Dict) and system.get("little_endian") is True
    if not is_little or not isinstance(keys, list):
        raise ModelUnavailable(f"{path}: not a file of torch before 1.6 with little-endian numbers")
    tensors = _checked(path, value)
    storages = {tensor.storage.key: tensor.storage for tensor in tensors.values()}
    places: dict[str, range | None] = {}
    at = file.tell()
    for key in keys:
        storage = storages.get(key) if isinstance(key, str) else None
        if storage is None or mapped[at : at + 8] != storage.items.to_bytes(8, "little"):
            raise ModelUnavailable(
                f"{path}: the storage {str(key)[:100]!r} has another size, or no tensor; incomplete?"
            )
        place = range(at + 8, at + 8 + storage.items * storage.item_bytes)
        places[key], at = place, place.stop
    if at > len(mapped):
        raise ModelUnavailable(f"{path}: {len(mapped):,} bytes, of {at:,} that it describes; incomplete?")
    return _weights(path, mapped, tensors, places)


def _weights(
    path: Path, mapped: mmap.mmap, tensors: Mapping[str, StoredTensor], places: Mapping[str, range | None]
) -> dict[str, Weight]:
    """places: the bytes of each storage."""
    storages: dict[Storage, npt.NDArray[np.generic]] = {}
    views: dict[StoredTensor, npt.NDArray[np.generic]] = {}  # over the map, in their own strides
    for name, tensor in tensors.items():
        storage = tensor.storage
        place, item_bytes = places.get(storage.key), storage.item_bytes
        if place is None or storage.items * item_bytes != len(place):
            raise ModelUnavailable(f"{path}: the storage of tensor {name[:100]!r} is missing or has another size")
        if tensor.stop > storage.items:
            raise ModelUnavailable(f"{path}: tensor {name[:100]!r} reaches outside its storage")
        if storage not in storages:
            storages[storage] = array_over(mapped, storage.dtype, (storage.items,), place.start)
        strides = [stride * item_bytes for stride in tensor.strides]
        views[tensor] = np.lib.stride_tricks.as_strided(storages[storage][tensor.offset :], tensor.shape, strides)
    copied_bytes = sum(view.nbytes for view in views.values() if not view.flags.c_contiguous)
    if copied_bytes > len(mapped):  # a few bytes seen with stride 0, or by many views, would need as much memory
        raise ModelUnavailable(
            f"{path}: tensors that are not contiguous take {copied_bytes:,} bytes, in a file of {len(mapped):,}"
        )
    arrays = {tensor: np.asarray(view, order="C") for tensor, view in views.items()}
    return {name: Weight(name, tensor.storage.dtype, arrays[tensor]) for name, tensor in tensors.items()}


# --- the zip archive ------------------------------------------------------------------------------------------


def read_members(path: Path, mapped: mmap.mmap) -> Members:
    """Return the place of every member's bytes in the file."""
    try:
        archive = zipfile.ZipFile(cast(io.BufferedIOBase, mapped))
    except (zipfile.BadZipFile, NotImplementedError, OSError, OverflowError, ValueError, struct.error) as error:
        raise ModelUnavailable(
            f"{path}: not a complete zip file ({error}); it is cut off, or of another format: convert it to safetensors"
        ) from error
    members: dict[str, range] = {}
    for entry in archive.infolist():
        name, at = entry.orig_filename, entry.header_offset
        if entry.compress_type or entry.flag_bits & _ENCRYPTED:
            raise ModelUnavailable(f"{path}: member {name[:100]!r} is compressed or encrypted, which torch's never are")
        start = at + _LOCAL.size
        if 0 <= at <= len(mapped) - _LOCAL.size:
            start += sum(_LOCAL.unpack_from(mapped, at))
        members[name] = range(start, start + entry.file_size)
        if at < 0 or members[name].stop > len(mapped):
            raise ModelUnavailable(f"{path}: member {name[:100]!r} lies outside the file")
    return members


# --- the pickle -----------------------------------------------------------------------------------------------


def read_tensors(path: Path, pickled: bytes) -> dict[str, StoredTensor]:
    """Return the tensors of a pickled dict by name."""
    return _checked(path, _load(path, io.BytesIO(pickled)))


_ADVICE = "only a plain dict of tensors is read: convert it to safetensors"


def _load(path: Path, file: io.BytesIO) -> Any:
    try:
        return _Unpickler(file).load()
    except (pickle.PickleError, struct.error, AttributeError, EOFError, LookupError, TypeError, ValueError) as error:
        why = str(error)[:200] if isinstance(error, ValueError) else "its pickle is damaged, or not torch.save's"
        raise ModelUnavailable(f"{path}: {why}; {_ADVICE}") from error


def _checked(path: Path, value: Any) -> dict[str, StoredTensor]:
    if not isinstance(value, _Dict):
        raise ModelUnavailable(f"{path}: it holds a {type(value).__name__}, not a dict of tensors; {_ADVICE}")
    for name, tensor in value.items():
        if not isinstance(tensor, StoredTensor):
            kind = type(tensor).__name__
            raise ModelUnavailable(f"{path}: its entry {name[:100]!r} is a {kind}, not a tensor; {_ADVICE}")
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
    *(pickle.NONE, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),  # before torch 1.6
)


class _Unpickler(pickle._Unpickler):
    """Python's unpickler with the instructions, functions and persistent ids of torch.save.

    pickle.Unpickler, in C, allocates gigabytes for one memo index, hashes dict keys before any hook sees them (nested
    tuples overflow its stack), and lets a file set attributes of the functions that `find_class` returns.
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
            # Before torch 1.6, a None follows: the storage is no view of another one.
            case ("storage", str(dtype), str(key), str(), int(items), *views) if (
                dtype in DTYPES and is_shape((items,)) and views in ([], [None])
            ):
                return Storage(key, cast(Dtype, dtype), items)
        raise ValueError("its pickle points to a value that is not a storage")
