"""Where the members of a zip file lie that stores them as they are: `read_members(path, mapped)`.

torch_file.py calls it, in the loading thread, and reads the members over the map: nothing is unpacked. What two readers
of zip files could take for two different files is refused: every record must be where, and say what, the others say.
The format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3 and 4.5.3 (zip64).

    [ local header, name, extra | bytes of the member | sizes again ] ...   one after the other
    [ central header, name, extra, comment ] ...                            the directory: one for each member
    [ zip64 end, zip64 locator ]                                            torch always writes them
    [ end ]                                                                 the last 22 bytes
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from vectord.errors import ModelUnavailable

DIRECTORY_LIMIT_BYTES = 8 * 2**20  # 80,000 members as torch names them

# x: bytes passed over, such as times, checksums (of gigabytes, on every start) and the counts of further disks.
_LOCAL = struct.Struct("<4s 2x 2H 12x L 2H")  # signature, flags, method, size, lengths of name and extra
_CENTRAL = struct.Struct("<4s 4x 2H 8x 2L 4H 6x L")  # ..., packed size, size, three lengths, disk, local header's place
_END64 = struct.Struct("<4s 28x 3Q")  # signature, members, size and place of the directory
_LOCATOR64 = struct.Struct("<4s 4x Q 4x")  # signature, place of the zip64 end
_END = struct.Struct("<4s 2H 2x H 2L H")  # signature, two disks, members, size and place of the directory, comment

_IN_ZIP64 = 0xFFFF_FFFF  # a size or place of four bytes that the zip64 record holds instead
_COUNT_IN_ZIP64 = 0xFFFF
_ZIP64_TAG = 1
_KNOWN_FLAGS = 1 << 3 | 1 << 11  # sizes follow the bytes; names are UTF-8. Others mean encryption and patches


@dataclass(frozen=True, slots=True)
class Member:
    """The bytes from `start` up to `stop` of the file."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Directory:
    members: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """One checked central header."""

    name: str
    flags: int
    size_bytes: int
    header_at: int


def read_members(path: Path, mapped: mmap.mmap) -> dict[str, Member]:
    """The members of the zip file at `path`, mapped, by name; all inside the file, none over another.

    Raises ModelUnavailable, naming the file: no zip file, cut off, compressed, encrypted, or at odds with itself.
    """
    directory = _find_directory(path, mapped)
    entries = _read_directory(path, mapped, directory)
    members: dict[str, Member] = {}
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_at):
        if entry.name in members:
            raise ModelUnavailable(f"{path}: member {entry.name} is in there twice")
        member = _locate(path, mapped, entry, directory)
        if entry.header_at < end:
            raise ModelUnavailable(f"{path}: member {entry.name} lies over another one")
        members[entry.name] = member
        end = member.stop
    return members


def _find_directory(path: Path, mapped: mmap.mmap) -> _Directory:
    end_at = len(mapped) - _END.size
    if end_at < 0 or mapped[end_at : end_at + 4] != b"PK\x05\x06":
        raise ModelUnavailable(
            f"{path}: no zip directory at its end; it is incomplete, or in the format of torch before 1.6: "
            "convert it to safetensors"
        )
    _, disk, start_disk, members, size_bytes, start, comment_bytes = _END.unpack_from(mapped, end_at)
    directory = _Directory(members, start, start + size_bytes)
    stop = end_at
    if mapped[max(end_at - _LOCATOR64.size, 0) : end_at].startswith(b"PK\x06\x07"):
        directory, stop = _find_directory64(path, mapped, end_at - _LOCATOR64.size, directory)
    if disk or start_disk or comment_bytes or directory.stop != stop:
        raise ModelUnavailable(f"{path}: its zip directory is not where its end says")
    if directory.stop - directory.start > DIRECTORY_LIMIT_BYTES:
        raise ModelUnavailable(f"{path}: a zip directory of more than {DIRECTORY_LIMIT_BYTES:,} bytes")
    return directory


def _find_directory64(path: Path, mapped: mmap.mmap, locator_at: int, plain: _Directory) -> tuple[_Directory, int]:
    """What the zip64 end says, and where that lies. `plain`: what the end says, which must be the same or left open."""
    end_at = locator_at - _END64.size
    _, said_at = _LOCATOR64.unpack_from(mapped, locator_at)
    if said_at != end_at or mapped[end_at : end_at + 4] != b"PK\x06\x06":
        raise ModelUnavailable(f"{path}: its zip64 directory is not where its locator says")
    _, members, size_bytes, start = _END64.unpack_from(mapped, end_at)
    agrees = (
        plain.members in (members, _COUNT_IN_ZIP64)
        and plain.start in (start, _IN_ZIP64)
        and plain.stop - plain.start in (size_bytes, _IN_ZIP64)
    )
    if not agrees:
        raise ModelUnavailable(f"{path}: its zip directory and its zip64 directory differ")
    return _Directory(members, start, start + size_bytes), end_at


def _read_directory(path: Path, mapped: mmap.mmap, directory: _Directory) -> list[_Entry]:
    entries = []
    at = directory.start
    while at + _CENTRAL.size <= directory.stop:
        entry, at = _read_entry(path, mapped, at)
        entries.append(entry)
    if at != directory.stop or len(entries) != directory.members:
        raise ModelUnavailable(f"{path}: its zip directory does not hold the members it says")
    return entries


def _read_entry(path: Path, mapped: mmap.mmap, at: int) -> tuple[_Entry, int]:
    """The central header at byte `at`, and where the next one starts."""
    header = _CENTRAL.unpack_from(mapped, at)
    signature, flags, method, packed_bytes, size_bytes, name_bytes, extra_bytes, comment_bytes, disk, header_at = header
    name_at = at + _CENTRAL.size
    extra_at = name_at + name_bytes
    if signature != b"PK\x01\x02" or disk:
        raise ModelUnavailable(f"{path}: its zip directory is damaged at byte {at:,}")
    name = mapped[name_at:extra_at].decode("ascii", "replace")
    if not _is_plain_path(name):
        raise ModelUnavailable(f"{path}: a member named {name[:100]!r}, which is no plain relative path")
    if method or flags & ~_KNOWN_FLAGS:
        raise ModelUnavailable(f"{path}: member {name} is compressed or encrypted; torch.save stores it as it is")
    extra = mapped[extra_at : extra_at + extra_bytes]
    size_bytes, packed_bytes, header_at = _widen(path, name, extra, (size_bytes, packed_bytes, header_at))
    if packed_bytes != size_bytes:
        raise ModelUnavailable(f"{path}: member {name} is said to have {size_bytes:,} and {packed_bytes:,} bytes")
    return _Entry(name, flags, size_bytes, header_at), extra_at + extra_bytes + comment_bytes


def _is_plain_path(name: str) -> bool:
    return name.isascii() and name.isprintable() and "\\" not in name and not {"", ".", ".."} & set(name.split("/"))


def _widen(path: Path, name: str, extra: bytes, fields: tuple[int, int, int]) -> tuple[int, ...]:
    """Size, packed size and place, each from the zip64 extra field where its own four bytes leave it open."""
    in_zip64 = sum(field == _IN_ZIP64 for field in fields)
    if not in_zip64:
        return fields
    at = 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, at)
        at += 4
        if tag == _ZIP64_TAG and length >= 8 * in_zip64 and at + length <= len(extra):
            wide = iter(struct.unpack_from(f"<{in_zip64}Q", extra, at))
            return tuple(next(wide) if field == _IN_ZIP64 else field for field in fields)
        at += length
    raise ModelUnavailable(f"{path}: member {name} has no zip64 sizes where its header points to them")


def _locate(path: Path, mapped: mmap.mmap, entry: _Entry, directory: _Directory) -> Member:
    """Where the member's bytes lie, after its local header, which must say what the directory says."""
    name_at = entry.header_at + _LOCAL.size
    if name_at > directory.start:
        raise ModelUnavailable(f"{path}: member {entry.name} lies outside the file")
    signature, flags, method, size_bytes, name_bytes, extra_bytes = _LOCAL.unpack_from(mapped, entry.header_at)
    if size_bytes in (0, _IN_ZIP64):  # it was written before the size was known, or leaves it to zip64
        size_bytes = entry.size_bytes
    name = mapped[name_at : name_at + name_bytes]
    said = (signature, flags, method, name, size_bytes)
    if said != (b"PK\x03\x04", entry.flags, 0, entry.name.encode("ascii"), entry.size_bytes):
        raise ModelUnavailable(f"{path}: the header of member {entry.name} and the zip directory differ")
    start = name_at + name_bytes + extra_bytes
    if start + entry.size_bytes > directory.start:
        raise ModelUnavailable(f"{path}: member {entry.name} lies outside the file")
    return Member(start, start + entry.size_bytes)
