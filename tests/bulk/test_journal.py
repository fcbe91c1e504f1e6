"""journal.py: what lies behind the last whole line was never there, and nobody else's begin is continued."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from tests.bulk.makers import FakeEmbedder, read_output, rows_of, run_job, write_input

from vectord.bulk import parts
from vectord.bulk.failures import BulkFailed
from vectord.bulk.journal import Begun, Journal, Place, Written, open_journal
from vectord.errors import ConfigError

BEGUN = Begun(1, "source", {"kind": None}, "model", "f" * 16)


def written(journal: Journal, data: bytes) -> Written:
    last = journal.last
    end = last.bytes + len(data)
    return Written(last.rows + 1, end, 1, 0, 0, 0.0, "space", 1, "digest", last.bytes, zlib.crc32(data))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """With two parts, `one` and `two`."""
    place = Place(tmp_path / "out.jsonl")
    journal = open_journal(place, BEGUN, restart=False)
    for data in (b"one", b"two"):
        journal.add(data, written(journal, data))
    journal.close()
    return place


@pytest.mark.parametrize("torn", [b"", b'{"rows":3', b'{"rows":3,"bytes":9,"tok'], ids=["none", "begun", "half"])
def test_what_was_being_written_is_cut_off(place: Place, torn: bytes) -> None:
    """Of data and of the journal, wherever the process was killed."""
    with place.data.open("ab") as data, (place.folder / "journal").open("ab") as lines:
        data.write(b"thr")
        lines.write(torn)
    journal = open_journal(place, BEGUN, restart=False)
    assert (journal.last.rows, journal.resumed_rows) == (2, 2)
    journal.add(b"three", written(journal, b"three"))
    journal.close()
    assert place.data.read_bytes() == b"onetwothree"
    assert len((place.folder / "journal").read_bytes().splitlines()) == 4


@pytest.mark.parametrize("lines", [0, 1], ids=["empty", "no part"])
def test_a_journal_without_a_part_is_a_new_one(place: Place, lines: int) -> None:
    """Killed before its first part was whole."""
    path = place.folder / "journal"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    journal = open_journal(place, BEGUN, restart=False)
    assert journal.last.rows == 0
    assert place.data.read_bytes() == b""
    journal.close()


@pytest.mark.parametrize("spoil", ["data", "journal", "shorter"])
def test_damage_is_told(place: Place, spoil: str) -> None:
    """A disk that lost or changed what it had promised to keep."""
    if spoil == "data":
        place.data.write_bytes(b"oneTWO")
    elif spoil == "shorter":
        place.data.write_bytes(b"onet")
    else:
        path = place.folder / "journal"
        path.write_bytes(path.read_bytes().replace(b'"rows":1', b'"rows":x'))
    with pytest.raises(ConfigError, match=r"is damaged; --restart"):
        open_journal(place, BEGUN, restart=False)


@pytest.mark.parametrize(
    ("begun", "told"),
    [
        (Begun(1, "other", {"kind": None}, "model", "f" * 16), "another input"),
        (Begun(1, "source", {"kind": "query"}, "model", "f" * 16), "kind None, now query"),
        (Begun(1, "source", {"kind": None}, "other", "f" * 16), "model model, now other"),
        (Begun(1, "source", {"kind": None}, "model", "e" * 16), "other weights"),
        (Begun(2, "source", {"kind": None}, "model", "f" * 16), "another vectord"),
    ],
    ids=["input", "option", "model", "weights", "version"],
)
def test_another_job_is_refused(place: Place, begun: Begun, told: str) -> None:
    """With what differs; --restart forgets the old one."""
    with pytest.raises(ConfigError, match=told):
        open_journal(place, begun, restart=False)
    journal = open_journal(place, begun, restart=True)
    assert journal.last.rows == 0
    journal.close()


def test_two_processes_do_not_write_one_output(place: Place) -> None:
    """The second one says so."""
    journal = open_journal(place, BEGUN, restart=False)
    with pytest.raises(ConfigError, match="another process is working"):
        open_journal(place, BEGUN, restart=False)
    journal.close()


def test_a_kill_between_the_rename_and_the_cleaning_leaves_out_alone(place: Place) -> None:
    """OUT is whole: what is left in OUT.parts is rubbish."""
    place.data.rename(place.out)
    with pytest.raises(ConfigError, match="is there already"):
        open_journal(place, BEGUN, restart=False)
    assert not place.folder.exists()
    assert place.out.read_bytes() == b"onetwo"


@pytest.mark.parametrize("out", ["out.parquet", "out.arrow", "out.arrows", "out.jsonl", "out.npy"])
async def test_a_job_that_failed_at_its_very_end_ends_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    """Killed while OUT was made of its parts, which may be done again."""
    monkeypatch.setattr(parts, "PART_ROWS", 100)
    source = write_input(tmp_path / "in.jsonl", rows_of(130))

    def kill(journal: Journal, whole: Path) -> None:
        raise OSError(5, "killed")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "deliver", kill)
        with pytest.raises(BulkFailed, match="killed"):
            await run_job(source, tmp_path / out)
    again = FakeEmbedder()
    summary = await run_job(source, tmp_path / out, again)
    assert again.seen == []
    assert (summary.rows, summary.resumed_from) == (130, 130)
    assert len(read_output(tmp_path / out)) == 130


async def test_rows_that_are_written_must_be_those_of_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard input has no size and time to compare: its texts are."""
    monkeypatch.setattr(parts, "PART_ROWS", 100)
    monkeypatch.setattr("vectord.bulk.inputs._measure", lambda path: (1, "same"))
    rows = [*rows_of(200), {"id": "200", "text": "poison"}]
    source = write_input(tmp_path / "in.jsonl", rows)
    with pytest.raises(BulkFailed, match="poison"):
        await run_job(source, tmp_path / "out.jsonl")
    write_input(source, [{"id": "0", "text": "another"}, *rows[1:]])
    with pytest.raises(BulkFailed, match="IN has other texts"):
        await run_job(source, tmp_path / "out.jsonl")
    write_input(source, rows[:50])
    with pytest.raises(BulkFailed, match="IN has fewer rows"):
        await run_job(source, tmp_path / "out.jsonl")
