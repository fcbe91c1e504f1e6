"""The zip reader returns the place of each member and refuses records that contradict each other."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.checkpoints.files.torch_files import map_bytes, map_file, pack

from vectord.checkpoints.files.torch_file import DIRECTORY_LIMIT_BYTES, read_members
from vectord.errors import ModelUnavailable

MEMBERS = {"m/data.pkl": b"pickle", "m/data/0": b"0123456789", "m/data/1": b"", "m/version": b"3\n"}
PACKED = pack(MEMBERS)
DIRECTORY = PACKED.index(b"PK\x01\x02")
END = len(PACKED) - 22

# Bytes from the start of a record to the field (APPNOTE 4.3.7, 4.3.12, 4.3.16).
LOCAL_FLAGS, LOCAL_METHOD, LOCAL_SIZE, LOCAL_NAME_BYTES, LOCAL_NAME = 6, 8, 22, 26, 30
FLAGS, METHOD, PACKED_SIZE, SIZE, NAME_BYTES, DISK, PLACE, NAME = 8, 10, 20, 24, 28, 34, 42, 46
END_DISK, END_MEMBERS, END_SIZE, END_PLACE, END_COMMENT = 4, 10, 12, 16, 20


def patch(at: int, form: str, *values: int, packed: bytes = PACKED) -> bytes:
    """Return the file with other numbers at byte `at`."""
    data = bytearray(packed)
    struct.pack_into(f"<{form}", data, at, *values)
    return bytes(data)


def pack_plainly(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip file written by Python, with any names."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def flag(bits: int) -> bytes:
    """Return PACKED with these flags for its first member, in both headers."""
    return patch(LOCAL_FLAGS, "H", bits, packed=patch(DIRECTORY + FLAGS, "H", bits))


def pack_shifted(by: int) -> bytes:
    """Return a file of one member whose records say that all of it is `by` bytes further on."""
    data = pack_plainly(("m/data.pkl", b"pickle"))
    directory = data.index(b"PK\x01\x02")
    data = patch(directory + PLACE, "L", by, packed=data)
    return patch(len(data) - 22 + END_PLACE, "L", directory + by, packed=data)


def with_zip64_end(
    packed: bytes,
    *,
    members: int = 4,
    moved_bytes: int = 0,
    locator: bytes = b"PK\x06\x07",
    signature: bytes = b"PK\x06\x06",
    open_end: bool = False,
) -> bytes:
    """Return the file with a zip64 end, as torch writes it; open_end: the plain end refers to it."""
    body, end = packed[:END], packed[END:]
    (size_bytes, start) = struct.unpack_from("<2L", end, END_SIZE)
    end64 = struct.pack("<4sQ2H2L4Q", signature, 44, 45, 45, 0, 0, members, members, size_bytes, start)
    if open_end:
        end = end[:8] + b"\xff" * 12 + end[20:]
    return body + end64 + struct.pack("<4sLQL", locator, 0, len(body) + moved_bytes, 1) + end


def test_members_are_found(tmp_path: Path) -> None:
    """After local headers of any length; empty members too."""
    mapped = map_bytes(tmp_path / "m.bin", PACKED)
    members = read_members(tmp_path / "m.bin", mapped)
    assert {name: mapped[member.start : member.stop] for name, member in members.items()} == MEMBERS
    assert all(member.start % 64 == 0 for member in members.values())


@pytest.mark.parametrize("open_end", [False, True], ids=["plain end says it too", "plain end left open"])
def test_a_zip64_end_is_read(open_end: bool, tmp_path: Path) -> None:
    """torch writes one even if the file does not need it."""
    mapped = map_bytes(tmp_path / "m.bin", with_zip64_end(PACKED, open_end=open_end))
    assert read_members(tmp_path / "m.bin", mapped).keys() == MEMBERS.keys()


def test_members_beyond_four_gigabytes_are_found(tmp_path: Path) -> None:
    """Sizes and places over four bytes are read from the zip64 fields. The file is sparse."""
    path = tmp_path / "m.bin"
    size_bytes = 2**32 + 64
    after = 30 + 8 + size_bytes
    with path.open("wb") as file:
        file.write(struct.pack("<4s5H3L2H", b"PK\x03\x04", 45, 8, 0, 0, 0, 0, 0, 0, 8, 0) + b"m/data/0")
        file.seek(after)
        file.write(struct.pack("<4s5H3L2H", b"PK\x03\x04", 45, 8, 0, 0, 0, 0, 0, 0, 8, 0) + b"m/data/1" + b"1234")
        directory = file.tell()
        for name, sizes, place, extra in [
            (b"m/data/0", (2**32 - 1,) * 2, 0, struct.pack("<2H2Q", 1, 16, size_bytes, size_bytes)),
            (b"m/data/1", (4, 4), 2**32 - 1, struct.pack("<4H1Q", 0x5555, 0, 1, 8, after)),
        ]:
            header = (b"PK\x01\x02", 45, 45, 8, 0, 0, 0, 0, *sizes, 8, len(extra), 0, 0, 0, 0, place)
            file.write(struct.pack("<4s6H3L5H2L", *header) + name + extra)
        end = file.tell()
        file.write(struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 2, 2, end - directory, directory))
        file.write(struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1))
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, end - directory, 2**32 - 1, 0))
    assert [info.file_size for info in zipfile.ZipFile(path).infolist()] == [size_bytes, 4]  # a check
    mapped = map_file(path)
    members = read_members(path, mapped)
    assert members["m/data/0"].stop - members["m/data/0"].start == size_bytes
    assert mapped[members["m/data/1"].start : members["m/data/1"].stop] == b"1234"


BROKEN: Mapping[str, bytes] = {
    "a few bytes": b"PK\x05\x06",
    "17 bytes with a signature where -5 points": bytes(12) + b"PK\x05\x06\0",
    "no zip file": b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + bytes(100),  # as torch before 1.6 began
    "cut off": PACKED[:-1],
    "cut off by half": PACKED[: len(PACKED) // 2],
    "bytes behind the end": PACKED + b"\0",
    "bytes before the start": b"#!/bin/sh\n" + PACKED,
    "a comment": PACKED[:-2] + b"\x04\x00abcd",
    "a comment that is another end": PACKED[:-2] + b"\x16\x00" + PACKED[END:],
    "a comment of no bytes": patch(END + END_COMMENT, "H", 4),
    "a second disk": patch(END + END_DISK, "H", 1),
    "a directory on a second disk": patch(END + END_DISK + 2, "H", 1),
    "more members than there are": patch(END + END_MEMBERS, "H", 5),
    "fewer members than there are": patch(END + END_MEMBERS, "H", 3),
    "directory elsewhere": patch(END + END_PLACE, "L", DIRECTORY - 1),
    "directory longer": patch(END + END_SIZE, "L", END - DIRECTORY + 1),
    "directory of 4 GB": patch(END + END_SIZE, "2L", 2**32 - 2, 0),
    "directory that starts one member later": patch(END + END_SIZE, "2L", END - DIRECTORY - 1, DIRECTORY + 1),
    "directory with bytes of nobody": PACKED[:END] + bytes(9) + patch(END + END_SIZE, "L", END - DIRECTORY + 9)[END:],
    "zip64: another number of members": with_zip64_end(PACKED, members=3),
    "zip64: the plain end has fewer members": with_zip64_end(patch(END + END_MEMBERS, "H", 3)),
    "zip64: the plain end names another directory": patch(END + 76 + END_PLACE, "L", 0, packed=with_zip64_end(PACKED)),
    "zip64: the plain end has another size": patch(END + 76 + END_SIZE, "L", 0, packed=with_zip64_end(PACKED)),
    "left open, and no zip64 end": patch(END + END_MEMBERS, "H", 0xFFFF),
    "a place that is wrong in all records": pack_shifted(5),
    "zip64: no end": with_zip64_end(PACKED, signature=b"PK\x06\x05"),
    "zip64: end elsewhere": with_zip64_end(PACKED, moved_bytes=1),
    "zip64: end at 2**64 - 1": with_zip64_end(PACKED, moved_bytes=2**64 - 1 - END),
    "zip64: no locator": with_zip64_end(PACKED, locator=b"PK\x06\x08"),
    "zip64: left open, and no field": patch(DIRECTORY + SIZE, "L", 2**32 - 1),
    "no directory entry": patch(DIRECTORY, "L", 0),
    "entry on a second disk": patch(DIRECTORY + DISK, "H", 1),
    "compressed": pack_plainly(("m/data.pkl", bytes(100)), method=zipfile.ZIP_DEFLATED),
    "said to be compressed in one place": patch(DIRECTORY + METHOD, "H", 8),
    "encrypted": flag(1),
    "strongly encrypted": flag(1 << 6),
    "names encrypted": flag(1 << 13),
    "said to be encrypted in one place": patch(DIRECTORY + FLAGS, "H", 1),
    "two sizes": patch(DIRECTORY + PACKED_SIZE, "L", 5),
    "larger than the file": patch(DIRECTORY + PACKED_SIZE, "2L", 2**31, 2**31),
    "longer than its local header says": patch(DIRECTORY + PACKED_SIZE, "2L", 7, 7),
    "a name beyond the directory": patch(DIRECTORY + NAME_BYTES, "H", 65_535),
    "a local header that is none": patch(0, "L", 0),
    "a local header elsewhere": patch(DIRECTORY + PLACE, "L", 1),
    "a local header behind the file": patch(DIRECTORY + PLACE, "L", 2**32 - 2),
    "a local header in the directory": patch(DIRECTORY + PLACE, "L", DIRECTORY),
    "other flags in the local header": patch(LOCAL_FLAGS, "H", 1),
    "other method in the local header": patch(LOCAL_METHOD, "H", 8),
    "other size in the local header": patch(LOCAL_SIZE, "L", 5),
    "other length of name in the local header": patch(LOCAL_NAME_BYTES, "H", 9),
    "other name in the local header": patch(LOCAL_NAME, "B", ord("n")),
    "extra field beyond the file": patch(LOCAL_NAME_BYTES + 2, "H", 65_535),
    "a name twice": pack_plainly(("m/a", b""), ("m/b", b"")).replace(b"m/b", b"m/a"),
    "a name that climbs": pack_plainly(("m/../../x", b"")),
    "a name from the root": pack_plainly(("/etc/passwd", b"")),
    "a name with a drive and backslashes": pack_plainly(("c:\\x", b"")),
    "a folder": pack_plainly(("m/data/", b"")),
    "a name with a dot": pack_plainly(("m/./x", b"")),
    "a name not in ASCII": pack_plainly(("m/ä", b"")),
    "a name with a line in it": pack_plainly(("m/a\nb", b"")),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_zip_file_is_refused_by_name(broken: str, tmp_path: Path) -> None:
    """The error names the file."""
    path = tmp_path / "m.bin"
    mapped = map_bytes(path, BROKEN[broken])
    with pytest.raises(ModelUnavailable, match=r"m\.bin: "):
        read_members(path, mapped)


def test_a_directory_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Each header would become an object many times its size."""
    size_bytes = DIRECTORY_LIMIT_BYTES + 1
    data = bytes(size_bytes) + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, size_bytes, 0, 0)
    with pytest.raises(ModelUnavailable, match="more than 8,388,608 bytes"):
        read_members(tmp_path / "m.bin", map_bytes(tmp_path / "m.bin", data))


def test_a_member_that_reaches_into_the_directory_is_refused(tmp_path: Path) -> None:
    """Its local header was written before its size was known, and does not contradict."""
    data = patch(LOCAL_SIZE, "L", 0)
    for size_bytes, refused in [(DIRECTORY - LOCAL_NAME, True), (2**31, True), (2**32 - 2, True), (6, False)]:
        data = patch(DIRECTORY + PACKED_SIZE, "2L", size_bytes, size_bytes, packed=data)
        mapped = map_bytes(tmp_path / "m.bin", data)
        with pytest.raises(ModelUnavailable, match="lies outside") if refused else nullcontext():
            read_members(tmp_path / "m.bin", mapped)


def add_entry(packed: bytes, entry: bytes) -> bytes:
    """Return the zip file with one more entry in its directory."""
    end = bytearray(packed[END - len(PACKED) :])
    members, size_bytes = struct.unpack_from("<HL", end, END_MEMBERS)
    struct.pack_into("<HHL", end, END_MEMBERS - 2, members + 1, members + 1, size_bytes + len(entry))
    return packed[:-22] + entry + end


def test_a_member_inside_another_is_refused(tmp_path: Path) -> None:
    """Both have consistent headers, but one lies inside the other's bytes."""
    inner = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 0, 0, 0, 0, 1, 1, 3, 0) + b"m/bx"
    header = (b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 1, 1, 3, 0, 0, 0, 0, 0, 33)
    data = add_entry(pack_plainly(("m/a", inner)), struct.pack("<4s6H3L5H2L", *header) + b"m/b")
    assert zipfile.ZipFile(io.BytesIO(data)).namelist() == ["m/a", "m/b"]  # checks the file of this test
    with pytest.raises(ModelUnavailable, match="m/b overlaps another one"):
        read_members(tmp_path / "m.bin", map_bytes(tmp_path / "m.bin", data))


def test_a_repeated_entry_is_refused(tmp_path: Path) -> None:
    """One local header may not count for two members."""
    data = add_entry(PACKED, PACKED[DIRECTORY : PACKED.index(b"PK\x01\x02", DIRECTORY + 1)])
    with pytest.raises(ModelUnavailable, match="twice"):
        read_members(tmp_path / "m.bin", map_bytes(tmp_path / "m.bin", data))


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    zip64=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, len(PACKED) + 75), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, zip64: bool, changes: list[tuple[int, int]]) -> None:
    """Changed bytes give ModelUnavailable, or members inside the file that do not overlap."""
    data = bytearray(with_zip64_end(PACKED, open_end=True) if zip64 else PACKED)
    for at, byte in changes:
        data[at % len(data)] = byte
    path = tmp_path / "m.bin"
    mapped = map_bytes(path, bytes(data))
    try:
        members = read_members(path, mapped)
    except ModelUnavailable as error:
        assert "m.bin" in error.message
    else:
        places = sorted((member.start, member.stop) for member in members.values())
        ends = [0, *(stop for _, stop in places)]
        assert all(end <= start <= stop <= len(data) for end, (start, stop) in zip(ends, places, strict=False))
