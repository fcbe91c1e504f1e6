"""journal.py: a restart removes the incomplete part, and never resumes another job."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from tests.bulk.makers import FakeEmbedder, read_output, rows_of, run_job, write_input

from vectord.bulk import journal
from vectord.bulk.job import BulkFailed
from vectord.bulk.journal import JobFolder, JobHeader, Journal, PartRecord, open_journal
from vectord.errors import ConfigError

HEADER = JobHeader(1, "source", {"kind": None}, "model", "f" * 16)


def record(journal: Journal, data: bytes) -> PartRecord:
    last = journal.last
    end = last.bytes + len(data)
    return PartRecord(last.rows + 1, end, 1, 0, 0, 0.0, "space", 1, "digest", last.bytes, zlib.crc32(data))


@pytest.fixture
def place(tmp_path: Path) -> JobFolder:
    """A folder with two parts, `one` and `two`."""
    place = JobFolder(tmp_path / "out.jsonl")
    journal = open_journal(place, HEADER, restart=False)
    for data in (b"one", b"two"):
        journal.add(data, record(journal, data))
    journal.close()
    return place


@pytest.mark.parametrize("torn", [b"", b'{"rows":3', b'{"rows":3,"bytes":9,"tok'], ids=["none", "begun", "half"])
def test_an_incomplete_part_is_removed(place: JobFolder, torn: bytes) -> None:
    """It is removed from the data and the journal, wherever the process was killed."""
    with place.data.open("ab") as data, (place.path / "journal").open("ab") as lines:
        data.write(b"thr")
        lines.write(torn)
    journal = open_journal(place, HEADER, restart=False)
    assert (journal.last.rows, journal.resumed_rows) == (2, 2)
    journal.add(b"three", record(journal, b"three"))
    journal.close()
    assert place.data.read_bytes() == b"onetwothree"
    assert len((place.path / "journal").read_bytes().splitlines()) == 4


@pytest.mark.parametrize("lines", [0, 1], ids=["empty", "no part"])
def test_a_journal_without_a_part_starts_over(place: JobFolder, lines: int) -> None:
    """The process was killed before it finished the first part."""
    path = place.path / "journal"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    journal = open_journal(place, HEADER, restart=False)
    assert journal.last.rows == 0
    assert place.data.read_bytes() == b""
    journal.close()


@pytest.mark.parametrize("spoil", ["data", "journal", "shorter"])
def test_damaged_files_are_an_error(place: JobFolder, spoil: str) -> None:
    """The disk lost or changed data that was fsynced."""
    if spoil == "data":
        place.data.write_bytes(b"oneTWO")
    elif spoil == "shorter":
        place.data.write_bytes(b"onet")
    else:
        path = place.path / "journal"
        path.write_bytes(path.read_bytes().replace(b'"rows":1', b'"rows":x'))
    with pytest.raises(ConfigError, match=r"is damaged; --restart"):
        open_journal(place, HEADER, restart=False)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (JobHeader(1, "other", {"kind": None}, "model", "f" * 16), "another input"),
        (JobHeader(1, "source", {"kind": "query"}, "model", "f" * 16), "kind None, now query"),
        (JobHeader(1, "source", {"kind": None}, "other", "f" * 16), "model model, now other"),
        (JobHeader(1, "source", {"kind": None}, "model", "e" * 16), "other weights"),
        (JobHeader(2, "source", {"kind": None}, "model", "f" * 16), "another version"),
    ],
    ids=["input", "option", "model", "weights", "version"],
)
def test_the_folder_of_another_job_is_refused(place: JobFolder, header: JobHeader, message: str) -> None:
    """The error names the difference; --restart deletes the old job."""
    with pytest.raises(ConfigError, match=message):
        open_journal(place, header, restart=False)
    journal = open_journal(place, header, restart=True)
    assert journal.last.rows == 0
    journal.close()


def test_two_processes_do_not_write_one_output(place: JobFolder) -> None:
    """The second process fails."""
    journal = open_journal(place, HEADER, restart=False)
    with pytest.raises(ConfigError, match="another process is working"):
        open_journal(place, HEADER, restart=False)
    journal.close()


def test_a_kill_between_renaming_and_deleting_keeps_out(place: JobFolder) -> None:
    """OUT is complete; the rest of OUT.parts is deleted."""
    place.data.rename(place.out)
    with pytest.raises(ConfigError, match="exists already"):
        open_journal(place, HEADER, restart=False)
    assert not place.path.exists()
    assert place.out.read_bytes() == b"onetwo"


@pytest.mark.parametrize("out", ["out.parquet", "out.arrow", "out.arrows", "out.jsonl", "out.npy"])
async def test_a_job_that_failed_at_the_end_finishes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    """Making OUT of its parts can be repeated."""
    monkeypatch.setattr(journal, "PART_ROWS", 100)
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


async def test_finished_parts_must_match_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts are compared, because standard input has no size and time."""
    monkeypatch.setattr(journal, "PART_ROWS", 100)
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


def test_a_deleted_data_file_ends_the_job_at_the_next_part(place: JobFolder) -> None:
    """Otherwise the job runs for hours and fails at its end."""
    job = open_journal(place, HEADER, restart=False)
    place.data.unlink()
    with pytest.raises(FileNotFoundError) as raised:
        job.add(b"three", record(job, b"three"))
    assert raised.value.strerror == f"{place.data} was deleted"
    job.close()
