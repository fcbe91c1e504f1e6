"""Handwritten torch files, in which every byte can be wrong: zip members with padding, and pickles."""

from __future__ import annotations

import io
import mmap
import zipfile
from collections.abc import Mapping
from pathlib import Path

PICKLED_FLOATS = (
    b"\x80\x02}X\x01\x00\x00\x00x"
    b"ctorch._utils\n_rebuild_tensor_v2\n"
    b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
    b"K\x00K\x04\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtRs."
)  # {"x": four floats, the whole of storage 0}


def pack(members: Mapping[str, bytes], *, shift: int = 0) -> bytes:
    """Return a zip file of uncompressed members; their bytes start `shift` after a multiple of 64."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            room = -(file.tell() + 30 + len(name) + 4) % 64 + shift
            info.extra = b"FB" + room.to_bytes(2, "little") + b"Z" * room
            archive.writestr(info, data)
    return file.getvalue()


def torch_members(pickled: bytes = PICKLED_FLOATS, storage: bytes = bytes(16)) -> dict[str, bytes]:
    """Return the members of a torch file with one storage."""
    return {"m/data.pkl": pickled, "m/byteorder": b"little", "m/data/0": storage, "m/version": b"3\n"}


def map_bytes(path: Path, data: bytes) -> mmap.mmap:
    """Write the bytes to `path` and return the file's map."""
    path.write_bytes(data)
    return map_file(path)


def map_file(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
