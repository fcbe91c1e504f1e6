"""text_rows.py and inputs.py: what is read, and what is told of input that is broken or meant to break us."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest
from tests.bulk.makers import FakeEmbedder, job_of, read_output, run_job
from zstandard import ZstdCompressor

from vectord.bulk import rows as rows_module
from vectord.bulk import text_rows
from vectord.bulk.failures import BulkFailed
from vectord.bulk.inputs import find_source
from vectord.bulk.rows import NoText
from vectord.bulk.text_rows import Limits, read_rows
from vectord.errors import ConfigError

LIMITS = Limits(rows=3, characters=20)


def read(path: Path, column: str | None = None, **options: str) -> list[tuple[str | NoText, dict[str, object]]]:
    source = find_source(job_of(path, path.with_suffix(".npy"), **options))
    return [
        (text, dict(columns))
        for rows in read_rows(source, column, LIMITS)
        for text, columns in zip(rows.texts, rows.columns, strict=True)
    ]


def test_requests_are_as_large_as_they_may_be(tmp_path: Path) -> None:
    """By rows and by characters; a longer text goes alone. Positions are the bytes that are read."""
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\nd\n" + "e" * 30 + "\n" + "f" * 15 + "\n" + "g" * 6 + "\n")
    found = list(read_rows(find_source(job_of(path, tmp_path / "out.npy")), None, LIMITS))
    assert [len(rows) for rows in found] == [3, 1, 1, 1, 1]
    assert found[-1].position == path.stat().st_size


def test_csv_is_read_as_spreadsheets_write_it(tmp_path: Path) -> None:
    """A mark at the begin, quotes around line ends, and 007 stays what it is."""
    path = tmp_path / "in.csv"
    path.write_bytes(b'\xef\xbb\xbfid,text\r\n007,"a, ""b""\r\nc"\r\n')
    assert read(path) == [('a, "b"\r\nc', {"id": "007", "text": 'a, "b"\r\nc'})]


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("in.txt", b"good\nb\xffd\n", "the text is not UTF-8"),
        ("in.csv", b"text,id\ngood,1\nb\xffd,2\n", "the text is not UTF-8"),
        ("in.jsonl", b'{"text": "good"}\n{"text": "b\xff"}\n', "the line is no JSON"),
        ("in.jsonl", b'{"text": "good"}\n[1]\n', "the line is no JSON object"),
        ("in.jsonl", b'{"text": "good"}\n' + b"[" * 100_000 + b"\n", "the line is no JSON"),
        ("in.jsonl", b'{"text": "good"}\n{"txt": "x"}\n', "`text` is null"),
        ("in.jsonl", b'{"text": "good"}\n{"text": "half \\ud800"}\n', "the line is no JSON"),
    ],
    ids=["bytes in lines", "bytes in csv", "bytes in json", "list", "deep", "absent", "half a pair"],
)
async def test_a_broken_row_fails_alone(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    """The rows around it are read, and its columns can still be written."""
    path = tmp_path / name
    path.write_bytes(data)
    (first, _), (second, _) = read(path)
    assert (first, second) == ("good", NoText(why))
    await run_job(path, tmp_path / "out.jsonl", on_error="null")
    assert [row.get("error") for row in read_output(tmp_path / "out.jsonl")] == [None, why]


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("in.csv", b"id,text\n1,a\n2\n", r"line 3 has 1 fields; the first line names 2"),
        ("in.csv", b"id,id\n1,a\n", r"names a column twice"),
        ("in.csv", b'id,text\n1,"never closed\n2,b\n', r"line 3 is no CSV"),
        ("in.txt.gz", gzip.compress(b"a\n" * 100_000)[:-20], r"cannot be read on"),
        ("in.txt.gz", b"no gzip at all", r"cannot be read on"),
        ("in.txt.zst", b"no zstandard at all", r"cannot be read on"),
    ],
    ids=["fields", "twice", "quote", "cut gzip", "no gzip", "no zstd"],
)
def test_what_cannot_be_read_on_is_told(tmp_path: Path, name: str, data: bytes, told: str) -> None:
    """Behind it nobody knows where a row begins."""
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(BulkFailed, match=told):
        read(path)


@pytest.mark.parametrize("name", ["in.txt", "in.csv", "in.jsonl", "in.txt.zst"])
def test_a_line_without_end_is_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Not even one that was a few bytes before it was unpacked."""
    monkeypatch.setattr(text_rows, "MAX_ROW_BYTES", 10_000)
    data = b"text\n" + b"x" * 20_000
    path = tmp_path / name
    path.write_bytes(ZstdCompressor().compress(data) if name.endswith("zst") else data)
    with pytest.raises(BulkFailed, match="longer than 10000"):
        read(path)


def test_a_file_that_is_too_large_for_a_text_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not read to its end."""
    monkeypatch.setattr(text_rows, "MAX_ROW_BYTES", 10)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a").write_text("x" * 11)
    (folder / "b").write_text("small")
    assert [text for text, _ in read(folder)] == [NoText("a is larger than 10 bytes"), "small"]


@pytest.mark.parametrize(
    ("names", "told"),
    [(["a.csv", "b.jsonl"], r"several formats \(csv, jsonl\); say --format"), ([], "no file is in")],
    ids=["mixed", "empty"],
)
def test_a_folder_of_what_is_told(tmp_path: Path, names: list[str], told: str) -> None:
    """No guess is made."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("x")
    with pytest.raises(ConfigError, match=told):
        find_source(job_of(folder, tmp_path / "out.npy"))


@pytest.mark.parametrize(
    ("data", "told"),
    [(b"id,body,title\n1,a,b\n", "there are 'id', 'body', 'title'"), (b"id\n1\n", None)],
    ids=["several", "one"],
)
def test_the_column_of_texts_is_named_where_it_is_not_plain(tmp_path: Path, data: bytes, told: str | None) -> None:
    """With the columns that there are."""
    path = tmp_path / "in.csv"
    path.write_bytes(data)
    if told is None:
        assert read(path) == [("1", {"id": "1"})]
        return
    with pytest.raises(ConfigError, match=told):
        read(path)


async def test_standard_input_is_read_as_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on where it stopped, if the same texts come again."""

    def given() -> None:
        data = b"".join(b"text %d\n" % i for i in range(300)) + b"poison\n"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    given()
    with pytest.raises(BulkFailed, match="Row 300"):
        await run_job("-", tmp_path / "out.jsonl", input_format="lines")
    given()
    again = FakeEmbedder()
    summary = await run_job("-", tmp_path / "out.jsonl", again, input_format="lines", on_error="null")
    assert (summary.rows, again.seen) == (301, ["poison"])
    with pytest.raises(ConfigError, match="IN is standard input: say --format"):
        find_source(job_of("-", tmp_path / "out.npy"))


def test_rows_of_nothing_and_of_an_empty_text_differ() -> None:
    """Else one might be continued as the other."""
    assert rows_module.digest_of(["", "a"]) != rows_module.digest_of(["a", ""])
    assert rows_module.digest_of([NoText("why")]) != rows_module.digest_of([""])
