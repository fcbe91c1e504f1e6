"""folder.py and writer.py: parts are made once, by any number of shards, and never mixed with those of another job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.bulk.makers import FakeEmbedder, job_of, names_in, read_output, rows_of, run_job, write_input

from vectord.bulk.folder import JobFolder
from vectord.bulk.inputs import find_source
from vectord.bulk.job import BulkFailed, BulkJob, Manifest
from vectord.bulk.outputs import file_format_of
from vectord.bulk.pipeline import Pipeline
from vectord.errors import ConfigError
from vectord.parts import move

PART_ROWS = 100
OUTPUTS = ["out.parquet", "out.arrow", "out.arrows", "out.jsonl", "out.jsonl.gz", "out.jsonl.zst", "out.npy"]
MANIFEST = Manifest(3, "source", {"kind": None}, "model", "space")


def open_folder(job: BulkJob, manifest: Manifest = MANIFEST) -> JobFolder:
    folder = JobFolder(job, file_format_of(job))
    folder.start(manifest, {"dense": 4}, {})
    return folder


def parts_of(out: Path) -> list[Path]:
    return sorted(out.with_name(f"{out.name}.parts").glob("part-*"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """450 rows: 5 parts."""
    return write_input(tmp_path / "in.jsonl", rows_of(450))


@pytest.mark.parametrize("name", OUTPUTS)
async def test_kept_parts_are_files_of_the_format(tmp_path: Path, source: Path, name: str) -> None:
    """Together they have the rows of IN in order, and `_SUCCESS` says so. The command without --parts joins them."""
    out = tmp_path / name
    summary = await run_job(source, out, part_rows=PART_ROWS, keep_parts=True)
    assert (summary.out, summary.parts, summary.missing) == (f"{out}.parts", 5, 0)
    assert not out.exists()
    assert (out.with_name(f"{name}.parts") / "_SUCCESS").exists()
    found = [read_output(part) for part in parts_of(out)]
    assert list(map(len, found)) == [100, 100, 100, 100, 50]
    again = FakeEmbedder()
    assert (await run_job(source, out, again, part_rows=PART_ROWS)).resumed_from == 450
    assert again.seen == []
    assert read_output(out) == [row for rows in found for row in rows]
    assert names_in(tmp_path) == {"in.jsonl", name}


async def test_shards_share_the_work(tmp_path: Path, source: Path, name: str = "out.parquet") -> None:
    """Each row is embedded by one of them. The last one marks the folder as complete."""
    out = tmp_path / name
    seen, missing = [], []
    for number in (2, 1, 3):
        embedder = FakeEmbedder()
        options: dict[str, Any] = {"part_rows": PART_ROWS, "keep_parts": True, "shard": (number, 3)}
        assert not (tmp_path / f"{name}.parts" / "_SUCCESS").exists()
        missing.append((await run_job(source, out, embedder, **options)).missing)
        seen += embedder.seen
    assert missing == [3, 1, 0]
    assert sorted(seen) == sorted(row["text"] for row in rows_of(450))
    assert (tmp_path / f"{name}.parts" / "_SUCCESS").exists()
    await run_job(source, out, part_rows=PART_ROWS)
    assert [row["id"] for row in read_output(out)] == [str(i) for i in range(450)]


async def test_a_shard_without_the_first_part_has_the_columns_of_the_first_rows(tmp_path: Path) -> None:
    """A column that is null in all its own rows has the type that the other shards write."""
    rows = [{"text": f"text {i}", "n": i if i < 100 else None} for i in range(200)]
    source = write_input(tmp_path / "in.jsonl", rows)
    for number in (2, 1):
        await run_job(source, tmp_path / "out.parquet", part_rows=100, keep_parts=True, shard=(number, 2))
    await run_job(source, tmp_path / "out.parquet", part_rows=100)
    assert [row["n"] for row in read_output(tmp_path / "out.parquet")] == [row["n"] for row in rows]


async def test_missing_parts_are_made_again(tmp_path: Path, source: Path) -> None:
    """Any of them; the others stay unchanged. What a killed process left is deleted."""
    out = tmp_path / "out.jsonl"
    await run_job(source, out, part_rows=PART_ROWS, keep_parts=True)
    lost = parts_of(out)[2]
    times = {path: path.stat().st_mtime_ns for path in parts_of(out) if path != lost}
    lost.rename(lost.with_name("_tmp-killed"))
    again = FakeEmbedder()
    await run_job(source, out, again, part_rows=PART_ROWS, keep_parts=True)
    assert again.seen == [row["text"] for row in rows_of(450)[200:300]]
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert names_in(lost.parent) == {
        *(f"part-{index:06}.jsonl" for index in range(5)), "_SUCCESS", "_vectord.json", "_lock",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["out.parquet", "out.arrow"])
async def test_on_error_may_change_between_two_runs(tmp_path: Path, name: str) -> None:
    """Rows of parts that were written before have no error."""
    source = write_input(tmp_path / "in.jsonl", [*rows_of(150), {"text": "poison"}])
    with pytest.raises(BulkFailed):
        await run_job(source, tmp_path / name, part_rows=PART_ROWS)
    await run_job(source, tmp_path / name, part_rows=PART_ROWS, on_error="null")
    assert [row["error"] for row in read_output(tmp_path / name)] == [None] * 150 + ["it is poison"]


def test_a_folder_that_does_not_exist_is_refused_before_the_model_loads(tmp_path: Path, source: Path) -> None:
    """Loading, and downloading, takes minutes."""
    with pytest.raises(ConfigError, match=r"OUT: the folder .*/none does not exist or cannot be written"):
        Pipeline(find_source(job_of(source, tmp_path / "none" / "out.jsonl")))


async def test_a_kill_between_renaming_and_deleting_keeps_out(tmp_path: Path, source: Path) -> None:
    """OUT is complete; the next start embeds nothing, and deletes the rest of the folder, but no other files."""
    job = job_of(source, tmp_path / "out.jsonl", part_rows=PART_ROWS)
    await run_job(source, job.out, part_rows=PART_ROWS)
    content = job.out.read_bytes()
    job.folder.mkdir()
    for name in ("part-000003.jsonl", "_SUCCESS", "_lock", "notes.txt"):
        (job.folder / name).touch()
    with pytest.raises(ConfigError, match="exists already"):
        await run_job(source, job.out, part_rows=PART_ROWS)
    assert job.out.read_bytes() == content
    assert names_in(job.folder) == {"notes.txt"}


@pytest.mark.parametrize("name", ["out.parquet", "out.npy"])
async def test_a_job_that_failed_at_the_end_finishes_at_the_next_start(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Making OUT of its parts can be repeated. An unfinished OUT is deleted at once."""

    def fail(written: Path, path: Path) -> None:
        if path.name == name:
            raise OSError(5, "killed")
        written.replace(path)

    with monkeypatch.context() as patched:
        patched.setattr("vectord.bulk.folder.move", fail)
        with pytest.raises(BulkFailed, match="killed"):
            await run_job(source, tmp_path / name, part_rows=PART_ROWS)
    assert not list((tmp_path / f"{name}.parts").glob("_tmp-*"))
    again = FakeEmbedder()
    summary = await run_job(source, tmp_path / name, again, part_rows=PART_ROWS)
    assert again.seen == []
    assert (summary.rows, summary.resumed_from) == (450, 450)
    assert len(read_output(tmp_path / name)) == 450
    assert names_in(tmp_path) == {"in.jsonl", name}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Manifest(3, "other", {"kind": None}, "model", "space"), "another input"),
        (Manifest(3, "source", {"kind": "query"}, "model", "space"), "kind None, now query"),
        (Manifest(3, "source", {"kind": None}, "other", "space"), "model model, now other"),
        (Manifest(3, "source", {"kind": None}, "model", "other"), "other weights"),
        (Manifest(4, "source", {"kind": None}, "model", "space"), "another version"),
    ],
    ids=["input", "option", "model", "weights", "version"],
)
def test_the_folder_of_another_job_is_refused(tmp_path: Path, other: Manifest, message: str) -> None:
    """The error names the difference; --restart deletes the parts."""
    job = job_of("in", tmp_path / "out.jsonl")
    first = open_folder(job)
    first.parts.part(0).touch()
    with pytest.raises(ConfigError, match="another process is working"):
        open_folder(job)
    first.close()
    with pytest.raises(ConfigError, match=message):
        open_folder(job, other)
    second = open_folder(replace(job, restart=True), other)
    assert second.parts.finished() == []
    second.close()


def test_shards_may_start_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One writes its manifest while another one does, and both work on the job."""
    opened: list[JobFolder] = []

    def start(number: int) -> None:
        job = job_of("in", tmp_path / "out.jsonl", keep_parts=True, shard=(number, 2))
        opened.append(open_folder(job))

    def start_another(written: Path, path: Path) -> None:
        monkeypatch.undo()
        start(2)
        move(written, path)

    monkeypatch.setattr("vectord.bulk.folder.move", start_another)
    start(1)
    assert len(opened) == 2
    for folder in opened:
        folder.close()
    assert names_in(tmp_path / "out.jsonl.parts") == {"_vectord.json", "_lock"}


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as on a full disk. The next start is not locked out."""

    def fail(written: Path, path: Path) -> None:
        raise OSError(28, "No space left on device")

    job = job_of("in", tmp_path / "out.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr("vectord.bulk.folder.move", fail)
        with pytest.raises(ConfigError, match="cannot be used: No space left on device"):
            open_folder(job)
    open_folder(job).close()
    assert not job.folder.exists()


async def test_a_damaged_manifest_is_an_error(tmp_path: Path, source: Path) -> None:
    """--restart starts over."""
    job = job_of(source, tmp_path / "out.jsonl", part_rows=PART_ROWS)
    await run_job(source, job.out, part_rows=PART_ROWS, keep_parts=True)
    (job.folder / "_vectord.json").write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"is damaged; --restart"):
        await run_job(source, job.out, part_rows=PART_ROWS)
    assert (await run_job(source, job.out, part_rows=PART_ROWS, restart=True)).resumed_from == 0
