"""The zip reader returns the place of each member inside the file."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.checkpoints.files.torch_files import map_bytes, map_file, pack

from vectord.checkpoints.files.torch_file import read_members
from vectord.errors import ModelUnavailable

MEMBERS = {"m/data.pkl": b"pickle", "m/data/0": b"0123456789", "m/data/1": b"", "m/version": b"3\n"}
PACKED = pack(MEMBERS)
DIRECTORY = PACKED.index(b"PK\x01\x02")
END = len(PACKED) - 22

# Bytes from the start of a record to the field (APPNOTE 4.3.7, 4.3.12).
LOCAL_NAME_BYTES, FLAGS, PACKED_SIZE, PLACE = 26, 8, 20, 42


def patch(at: int, form: str, *values: int) -> bytes:
    """Return the file with other numbers at byte `at`."""
    data = bytearray(PACKED)
    struct.pack_into(f"<{form}", data, at, *values)
    return bytes(data)


def compressed() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", bytes(100))
    return file.getvalue()


def test_members_are_found(tmp_path: Path) -> None:
    """After local headers of any length; empty members too."""
    mapped = map_bytes(tmp_path / "m.bin", PACKED)
    members = read_members(tmp_path / "m.bin", mapped)
    assert {name: mapped[member.start : member.stop] for name, member in members.items()} == MEMBERS
    assert all(member.start % 64 == 0 for member in members.values())


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
    "no zip file": bytes(100),
    "cut off": PACKED[:-1],
    "cut off by half": PACKED[: len(PACKED) // 2],
    "compressed": compressed(),
    "encrypted": patch(DIRECTORY + FLAGS, "H", 1),
    "larger than the file": patch(DIRECTORY + PACKED_SIZE, "2L", 2**31, 2**31),
    "a local header behind the file": patch(DIRECTORY + PLACE, "L", 2**32 - 2),
    "an extra field beyond the file": patch(LOCAL_NAME_BYTES + 2, "H", 65_535),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_zip_file_is_refused_by_name(broken: str, tmp_path: Path) -> None:
    """The error names the file."""
    path = tmp_path / "m.bin"
    mapped = map_bytes(path, BROKEN[broken])
    with pytest.raises(ModelUnavailable, match=r"m\.bin: "):
        read_members(path, mapped)
