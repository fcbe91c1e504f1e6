"""A folder of part files. Each part exists completely or not at all, also after kill -9 or a power failure.

    part-000000.SUFFIX   the parts, named by their index
    _tmp-...             a part that is being written
    _SUCCESS             all parts exist

Bulk jobs write their rows, and batches their results, as such parts. Programs that read folders of tables skip names
that begin with `_`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

SUCCESS, TEMPORARY = "_SUCCESS", "_tmp-"
_part = re.compile(r"part-(\d{6,})\.")


class PartFolder:
    """The parts with one suffix in a folder, which need not exist yet. Methods block; call them in a thread."""

    def __init__(self, path: Path, suffix: str) -> None:
        self.path = path
        self._suffix = suffix

    def part(self, index: int) -> Path:
        return self.path / f"part-{index:06}{self._suffix}"

    def finished(self) -> list[int]:
        """The indices of the parts that exist, in order."""
        found = (_part.match(path.name) for path in self._files())
        return sorted(int(match[1]) for match in found if match)

    def temporary(self) -> Path:
        """A new name in the folder for a part that is being written."""
        return self.path / f"{TEMPORARY}{uuid4().hex}"

    def add(self, temporary: Path, index: int) -> None:
        """Make a written file the part with this index, on the disk. Replaces an equal part that exists already."""
        move(temporary, self.part(index))

    def succeed(self) -> None:
        """Mark the folder as complete, and delete unfinished parts: they are copies that other processes left."""
        self.delete_unfinished()
        (self.path / SUCCESS).touch()

    def delete_unfinished(self) -> None:
        for path in self._files():
            if path.name.startswith(TEMPORARY):
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete all parts, and the marks."""
        for path in self._files():
            if path.name == SUCCESS or path.name.startswith(TEMPORARY) or _part.match(path.name):
                path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        with suppress(FileNotFoundError):
            return list(self.path.iterdir())
        return []


def move(written: Path, path: Path) -> None:
    """Rename a file. It is on the disk under its new name when this returns."""
    _sync(written)
    written.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
