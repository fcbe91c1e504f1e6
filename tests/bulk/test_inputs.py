"""inputs.py: how input is read, and the errors for input that is broken or hostile."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.bulk.makers import FakeEmbedder, job_of, names_in, read_output, rows_of, run_job, write_input
from zstandard import ZstdCompressor

from vectord.bulk import inputs
from vectord.bulk.folder import JobFolder
from vectord.bulk.inputs import find_source
from vectord.bulk.job import BulkFailed
from vectord.bulk.outputs import file_format_of
from vectord.bulk.rows import InvalidText, RowLimits
from vectord.errors import ConfigError

LIMITS = RowLimits(rows=3, characters=20)


def read(path: Path, column: str | None = None, **options: str) -> list[tuple[str | InvalidText, dict[str, object]]]:
    source = find_source(job_of(path, path.with_suffix(".npy"), column=column, **options))
    return [
        (text, dict(columns))
        for rows in source.read(LIMITS)
        for text, columns in zip(rows.texts, rows.columns, strict=True)
    ]


def test_groups_are_as_large_as_allowed(tmp_path: Path) -> None:
    """By rows and by characters; a longer text is alone. Positions are in bytes."""
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\nd\n" + "e" * 30 + "\n" + "f" * 15 + "\n" + "g" * 6 + "\n")
    found = list(find_source(job_of(path, tmp_path / "out.npy")).read(LIMITS))
    assert [len(rows) for rows in found] == [3, 1, 1, 1, 1]
    assert found[-1].position == path.stat().st_size


def test_csv_of_spreadsheets_is_read(tmp_path: Path) -> None:
    """With a byte order mark and quoted line ends; 007 stays 007."""
    path = tmp_path / "in.csv"
    path.write_bytes(b'\xef\xbb\xbfid,text\r\n007,"a, ""b""\r\nc"\r\n')
    assert read(path) == [('a, "b"\r\nc', {"id": "007", "text": 'a, "b"\r\nc'})]


@pytest.mark.parametrize(
    ("name", "data", "options"),
    [
        ("in.csv", "id;text\n1;caf\u00e9\n".encode("cp1252"), {"delimiter": ";", "encoding": "cp1252"}),
        ("in.tsv", "id\ttext\n1\tcaf\u00e9\n".encode("utf-16"), {"encoding": "utf-16"}),
        ("in.txt", "caf\u00e9\n".encode("latin-1"), {"encoding": "latin-1"}),
        ("in.txt", b"\xef\xbb\xbfcaf\xc3\xa9\r\n", {}),
        ("in.jsonl", b'\xef\xbb\xbf{"text": "caf\xc3\xa9"}\r\n', {}),
    ],
    ids=["cp1252", "utf-16", "latin-1", "byte order mark", "JSON with a byte order mark"],
)
def test_text_in_other_encodings_is_read(tmp_path: Path, name: str, data: bytes, options: dict[str, str]) -> None:
    """And CSV with another delimiter. A byte order mark is no part of the text."""
    path = tmp_path / name
    path.write_bytes(data)
    assert [text for text, _ in read(path, **options)] == ["caf\u00e9"]


@pytest.mark.parametrize(
    ("name", "out"), [("in.csv", "out.jsonl"), ("in.csv", "out.npy"), ("in.parquet", "out.parquet")]
)
async def test_empty_texts_are_skipped(tmp_path: Path, name: str, out: str) -> None:
    """They are counted, even a whole part of them; the other rows keep their numbers, and the job resumes."""
    texts = ["a", "", "", " \t", "c", "poison"]
    source = write_input(tmp_path / name, [{"id": str(i), "text": text} for i, text in enumerate(texts)])
    options: dict[str, Any] = {"part_rows": 2, "on_empty": "skip"}
    with pytest.raises(BulkFailed, match=r"Row 5, counted from 0"):
        await run_job(source, tmp_path / out, **options)
    write_input(source, [{"id": str(i), "text": text} for i, text in enumerate(texts[:5])])
    summary = await run_job(source, tmp_path / out, restart=True, **options)
    assert (summary.rows, summary.empty, summary.failed) == (5, 3, 0)
    assert len(read_output(tmp_path / out)) == 2


@pytest.mark.parametrize("on_empty", ["embed", "fail"])
async def test_empty_texts_are_embedded_or_have_no_valid_text(tmp_path: Path, on_empty: str) -> None:
    """They are counted in both cases; null has never a valid text."""
    source = write_input(tmp_path / "in.jsonl", [{"text": "a"}, {"text": ""}, {"text": None}])
    summary = await run_job(source, tmp_path / "out.jsonl", on_empty=on_empty, on_error="null")
    found = read_output(tmp_path / "out.jsonl")
    reason = "the text is empty" if on_empty == "fail" else None
    assert [row.get("error") for row in found] == [None, reason, "`text` is null"]
    assert summary.empty == 2


@pytest.fixture
def store() -> Iterator[str]:
    """The URL of a folder of a store, which fsspec holds in memory."""
    files = fsspec.filesystem("memory")
    yield "memory://bucket"
    files.rm("/", recursive=True)


@pytest.mark.parametrize("name", ["in.csv", "in.jsonl.gz", "in.parquet"])
async def test_files_of_a_store_are_read_and_written(tmp_path: Path, store: str, name: str, monkeypatch: Any) -> None:
    """By a URL. The parts are in the current folder; OUT is complete or absent."""
    monkeypatch.chdir(tmp_path)
    rows = rows_of(300)
    files = fsspec.filesystem("memory")
    files.put_file(str(write_input(tmp_path / name, rows)), f"{store}/{name}")
    options: dict[str, Any] = {"out": Path("out.jsonl"), "out_url": f"{store}/out.jsonl"}
    summary = await run_job(f"{store}/{name}", **options)
    assert (summary.out, summary.rows) == (f"{store}/out.jsonl", 300)
    files.get_file(f"{store}/out.jsonl", str(tmp_path / "copy.jsonl"))
    assert [row["id"] for row in read_output(tmp_path / "copy.jsonl")] == [row["id"] for row in rows]
    assert names_in(tmp_path) == {name, "copy.jsonl"}
    with pytest.raises(ConfigError, match="exists already"):
        await run_job(f"{store}/{name}", **options)


def test_a_store_without_credentials_is_an_error(tmp_path: Path, store: str, monkeypatch: Any) -> None:
    """Many stores connect at the first call. The message does not contain the password."""

    def refuse(self: Any, path: str) -> bool:
        raise ValueError("no credentials")

    monkeypatch.setattr(MemoryFileSystem, "exists", refuse)
    job = job_of("in.csv", Path("out.jsonl"), out_url="memory://me:s3cret@bucket/out.jsonl")
    with pytest.raises(ConfigError) as refused:
        JobFolder(job, file_format_of(job))
    assert str(refused.value) == "OUT: memory://***@bucket/out.jsonl cannot be reached: no credentials"


@pytest.mark.parametrize(("where", "order"), [("here", ["z.md", "a/c.md"]), ("store", ["a/c.md", "z.md"])])
async def test_a_folder_of_texts_gives_one_row_per_file(
    tmp_path: Path, store: str, where: str, order: list[str]
) -> None:
    """With its path, sorted, without hidden files. A changed file is another input."""
    files = fsspec.filesystem("memory" if where == "store" else "file", auto_mkdir=True)
    folder = f"{store}/notes" if where == "store" else str(tmp_path / "notes")
    for name in ("z.md", "a/c.md", ".hidden", ".git/x"):
        files.pipe_file(f"{folder}/{name}", b"a text")
    await run_job(folder, tmp_path / "out.jsonl")
    assert [row["path"] for row in read_output(tmp_path / "out.jsonl")] == order
    before = find_source(job_of(folder, tmp_path / "out.jsonl")).identity
    files.pipe_file(f"{folder}/z.md", b"another text")
    assert find_source(job_of(folder, tmp_path / "out.jsonl")).identity != before


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://bucket/absent.csv", "does not exist"),
        ("nonsense://bucket/in.csv", "cannot be reached: Protocol not known: nonsense"),
        ("memory://me:s3/cret@bucket/absent.csv", r"^IN: memory://\*\*\*@bucket/absent.csv does not exist"),
        ("nonsense://me:s3/cret@bucket/in.csv", r"^IN: nonsense://\*\*\*@bucket/in.csv cannot be reached"),
        ("s3://bucket/in.csv", r"s3:// needs another package; run .*pip install .*\[s3\]"),
    ],
)
def test_a_url_that_cannot_be_read_is_an_error(tmp_path: Path, url: str, message: str) -> None:
    """It names the package that is missing, and not the password."""
    with pytest.raises(ConfigError, match=message):
        find_source(job_of(url, tmp_path / "out.npy"))


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("in.txt", b"good\nb\xffd\n", "the text is not UTF-8"),
        ("in.csv", b"text,id\ngood,1\nb\xffd,2\n", "the text is not UTF-8"),
        ("in.jsonl", b'{"text": "good"}\n{"text": "b\xff"}\n', "the line is not JSON"),
        ("in.jsonl", b'{"text": "good"}\n[1]\n', "the line is not a JSON object"),
        ("in.jsonl", b'{"text": "good"}\n' + b"[" * 100_000 + b"\n", "the line is not JSON"),
        ("in.jsonl", b'{"text": "good"}\n{"txt": "x"}\n', "`text` is null"),
        ("in.jsonl", b'{"text": "good"}\n{"text": "half \\ud800"}\n', "the line is not JSON"),
    ],
    ids=["bytes in lines", "bytes in csv", "bytes in json", "list", "deep", "absent", "half a pair"],
)
async def test_an_invalid_row_fails_alone(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    """The other rows are read, and its columns can still be written."""
    path = tmp_path / name
    path.write_bytes(data)
    (first, _), (second, _) = read(path)
    assert (first, second) == ("good", InvalidText(why))
    await run_job(path, tmp_path / "out.jsonl", on_error="null")
    assert [row.get("error") for row in read_output(tmp_path / "out.jsonl")] == [None, why]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("in.csv", b"id,text\n1,a\n2\n", r"line 3 has 1 fields; the first line names 2"),
        ("in.csv", b"id,id\n1,a\n", r"names a column twice"),
        ("in.csv", b"text,pr\xe9\na,b\n", r"the first line is not UTF-8; set --encoding"),
        ("in.csv", b'id,text\n1,"never closed\n2,b\n', r"line 3 is not CSV"),
        ("in.txt.gz", gzip.compress(b"a\n" * 100_000)[:-20], r"cannot be read"),
        ("in.txt.gz", b"no gzip at all", r"cannot be read"),
        ("in.txt.zst", b"no zstandard at all", r"cannot be read"),
        ("in.parquet", b"PAR1 broken PAR1", r"cannot be read"),
        ("in.csv", b"text\n" + b"x" * 20_000, r"a line is longer than 10000 characters"),
        ("in.jsonl", b"x" * 20_000, r"a line is longer than 10000 bytes"),
    ],
    ids=["fields", "twice", "header", "quote", "cut gzip", "no gzip", "no zstd", "parquet", "long field", "long line"],
)
def test_a_broken_file_fails_the_job(
    tmp_path: Path, name: str, data: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the broken place the start of the next row is unknown."""
    monkeypatch.setattr(inputs, "MAX_ROW_BYTES", 10_000)
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(BulkFailed, match=message):
        read(path)


def test_an_unreadable_file_or_folder_fails_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows would be missing."""
    denied = PermissionError(errno.EACCES, "Permission denied", "denied")

    def fail(*_arguments: object) -> NoReturn:
        raise denied

    (tmp_path / "in.txt").write_bytes(b"a")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", fail)
        with pytest.raises(BulkFailed, match=r"^in\.txt cannot be read: Permission denied$"):
            read(tmp_path / "in.txt")
    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(ConfigError, match=r"^IN: denied cannot be read: Permission denied$"):
        read(tmp_path)


def test_the_length_of_a_line_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after decompression. The rest of the line is not read."""
    monkeypatch.setattr(inputs, "MAX_ROW_BYTES", 10_000)
    (tmp_path / "in.txt.zst").write_bytes(ZstdCompressor().compress(b"text\n" + b"x" * 20_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(BulkFailed, match="longer than 10000"):
            read(tmp_path / "in.txt.zst")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_file_that_is_too_large_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read to the end."""
    monkeypatch.setattr(inputs, "MAX_ROW_BYTES", 10)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a").write_text("x" * 11)
    (folder / "b").write_text("small")
    assert [text for text, _ in read(folder)] == [InvalidText("a is larger than 10 bytes"), "small"]


@pytest.mark.parametrize(
    ("names", "message"),
    [(["a.csv", "b.jsonl"], r"several formats \(csv, jsonl\); set --format"), ([], "contains no file")],
    ids=["mixed", "empty"],
)
def test_a_folder_without_one_format_is_an_error(tmp_path: Path, names: list[str], message: str) -> None:
    """The format is not guessed."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("x")
    with pytest.raises(ConfigError, match=message):
        find_source(job_of(folder, tmp_path / "out.npy"))


def test_an_ambiguous_text_column_is_an_error(tmp_path: Path) -> None:
    """The error lists the columns. A single one needs no name."""
    path = tmp_path / "in.csv"
    path.write_bytes(b"id\n1\n")
    assert read(path) == [("1", {"id": "1"})]
    path.write_bytes(b"id,body,title\n1,a,b\n")
    with pytest.raises(ConfigError, match="there are 'id', 'body', 'title'"):
        read(path)


async def test_standard_input_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it delivers the same texts again; that there are fewer is seen at the end. The last part is made again."""
    texts = [f"text {i}" for i in range(300)]

    def provide_input(rows: int = 300) -> None:
        data = "\n".join((*texts[:rows], "poison", "")).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    provide_input()
    with pytest.raises(BulkFailed, match="Row 300"):
        await run_job("-", tmp_path / "out.jsonl", input_format="lines", part_rows=100)
    provide_input(rows=99)
    with pytest.raises(BulkFailed, match="IN has fewer rows"):
        await run_job("-", tmp_path / "out.jsonl", input_format="lines", part_rows=100, on_error="null")
    provide_input()
    again = FakeEmbedder()
    summary = await run_job("-", tmp_path / "out.jsonl", again, input_format="lines", part_rows=100, on_error="null")
    assert (summary.rows, again.seen) == (301, [*texts[200:], "poison"])
    with pytest.raises(ConfigError, match="IN is standard input: set --format"):
        find_source(job_of("-", tmp_path / "out.npy"))


@pytest.mark.parametrize("shard", [(1, 1), (2, 2)], ids=["whole", "shard"])
async def test_standard_input_with_more_rows_loses_none(
    shard: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last part of the first run was short; the second run completes it."""
    out = tmp_path / "out.jsonl"
    for rows in (150, 270):
        data = b"".join(b"text %d\n" % i for i in range(rows))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        await run_job("-", out, input_format="lines", part_rows=100, keep_parts=True, shard=shard)
    lines = (tmp_path / "out.jsonl.parts" / "part-000001.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == [f"text {i}" for i in range(100, 200)]
