"""The weights of a file of torch.save (.bin, .pt), without torch: `read_torch_file(path, mapped)`.

checkpoint.py calls it, in the loading thread. Since torch 1.6 such a file is a zip file that stores its members as they
are: ROOT/data.pkl says which tensors there are (torch_pickle.py reads it, and runs nothing), ROOT/data/KEY is the
storage that some of them lie in. stored_zip.py finds the members; the weights are arrays over the map.
The format: torch/serialization.py of torch, "_save" and "_load".
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.files.stored_zip import Member, read_members
from vectord.checkpoints.files.torch_pickle import PICKLE_LIMIT_BYTES, StoredTensor, read_tensors
from vectord.checkpoints.files.weight import KEPT, Dtype, Weight, array_over
from vectord.errors import ModelUnavailable


def read_torch_file(path: Path, mapped: mmap.mmap) -> dict[str, Weight]:
    """The float32, float16 and bfloat16 tensors of the file at `path`, mapped; others are left out.

    Two names of one tensor are two weights over the same array; what is not contiguous (a transpose) is copied.
    Raises ModelUnavailable, naming the file: not torch's zip format, cut off, or anything but a dict of tensors.
    """
    members = read_members(path, mapped)
    root = _root(path, members)
    _check_byte_order(path, mapped, members.get(f"{root}/byteorder"))
    tensors = read_tensors(path, _read_pickle(path, mapped, members[f"{root}/data.pkl"]))
    for name, tensor in tensors.items():
        _check_place(path, name, tensor, members.get(f"{root}/data/{tensor.storage.key}"))
    kept = {name: tensor for name, tensor in tensors.items() if tensor.storage.type.dtype in KEPT}
    views = set(kept.values())
    _check_copies(path, views, file_bytes=len(mapped))
    arrays = {view: _array(mapped, view, members[f"{root}/data/{view.storage.key}"].start) for view in views}
    return {name: Weight(name, cast(Dtype, view.storage.type.dtype), arrays[view]) for name, view in kept.items()}


def _root(path: Path, members: Mapping[str, Member]) -> str:
    """The one folder that everything in the file lies in; torch names it after the file, or "archive"."""
    roots = {name.partition("/")[0] for name in members}
    root = min(roots, default="")
    if len(roots) != 1 or f"{root}/data.pkl" not in members:
        raise ModelUnavailable(f"{path}: a zip file, but not as torch.save writes it: one folder with data.pkl in it")
    return root


def _check_byte_order(path: Path, mapped: mmap.mmap, member: Member | None) -> None:
    if member and mapped[member.start : min(member.stop, member.start + 7)] != b"little":  # none before torch 2.1
        raise ModelUnavailable(f"{path}: its numbers are not little-endian; convert it to safetensors")


def _read_pickle(path: Path, mapped: mmap.mmap, member: Member) -> bytes:
    if member.stop - member.start > PICKLE_LIMIT_BYTES:
        raise ModelUnavailable(
            f"{path}: a pickle of {member.stop - member.start:,} bytes; the limit is {PICKLE_LIMIT_BYTES:,}"
        )
    return mapped[member.start : member.stop]


def _check_place(path: Path, name: str, tensor: StoredTensor, member: Member | None) -> None:
    """The storage is all of its member, and the tensor inside of the storage."""
    storage = tensor.storage
    item_bytes = storage.type.item_bytes
    if member is None or storage.items * item_bytes != member.stop - member.start:
        raise ModelUnavailable(f"{path}: the storage of tensor {name[:100]!r} is missing, or not of the size it says")
    if member.start % item_bytes:  # torch aligns them to 64 bytes
        raise ModelUnavailable(f"{path}: the storage of tensor {name[:100]!r} is not aligned")
    if tensor.stop > storage.items:
        raise ModelUnavailable(f"{path}: tensor {name[:100]!r} reaches outside of its storage")


def _check_copies(path: Path, views: Iterable[StoredTensor], *, file_bytes: int) -> None:
    """A few bytes seen as a giant tensor (stride 0), or as many tensors, must not become as much memory."""
    copied_bytes = sum(view.size_bytes for view in views if not view.is_contiguous)
    if copied_bytes > file_bytes:
        raise ModelUnavailable(
            f"{path}: tensors that are not contiguous come to {copied_bytes:,} bytes, in a file of {file_bytes:,}"
        )


def _array(mapped: mmap.mmap, view: StoredTensor, storage_at: int) -> npt.NDArray[np.generic]:
    dtype, item_bytes = view.storage.type.dtype, view.storage.type.item_bytes
    start = storage_at + view.offset * item_bytes
    if view.is_contiguous:
        return array_over(mapped, dtype, view.shape, start)
    items = array_over(mapped, dtype, (view.stop - view.offset,), start)
    strides = [stride * item_bytes for stride in view.strides]
    return np.array(np.lib.stride_tricks.as_strided(items, view.shape, strides, writeable=False), order="C")
