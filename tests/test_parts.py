"""parts.py: a part exists completely or not at all."""

from __future__ import annotations

from pathlib import Path

from vectord.parts import PartFolder


def add(folder: PartFolder, index: int, content: bytes) -> None:
    written = folder.temporary()
    written.write_bytes(content)
    folder.add(written, index)


def test_only_added_parts_are_finished(tmp_path: Path) -> None:
    """In the order of their indices; names with more digits count too."""
    folder = PartFolder(tmp_path, ".jsonl")
    for index in (2_000_000, 0, 11):
        add(folder, index, b"rows")
    folder.temporary().write_bytes(b"ro")
    (tmp_path / "notes.txt").touch()
    assert folder.finished() == [0, 11, 2_000_000]
    assert folder.part(11) == tmp_path / "part-000011.jsonl"


def test_a_part_that_is_made_twice_exists_once(tmp_path: Path) -> None:
    """Two processes may make the same part."""
    folder = PartFolder(tmp_path, ".jsonl")
    for content in (b"first", b"second"):
        add(folder, 0, content)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"second"]


def test_a_complete_folder_has_only_parts_and_the_mark(tmp_path: Path) -> None:
    """Readers of folders skip the mark."""
    folder = PartFolder(tmp_path, ".jsonl")
    add(folder, 0, b"rows")
    folder.temporary().touch()
    folder.succeed()
    assert {path.name for path in tmp_path.iterdir()} == {"part-000000.jsonl", "_SUCCESS"}


def test_clearing_keeps_other_files(tmp_path: Path) -> None:
    """And works for a folder that does not exist."""
    folder = PartFolder(tmp_path / "new", ".jsonl")
    folder.clear()
    assert folder.finished() == []
    folder.path.mkdir()
    add(folder, 0, b"rows")
    folder.temporary().touch()
    folder.succeed()
    (folder.path / "notes.txt").touch()
    folder.clear()
    assert [path.name for path in folder.path.iterdir()] == ["notes.txt"]
