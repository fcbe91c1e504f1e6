"""commands/bulk.py: its words, and how a job that cannot start ends: one line, exit code 2."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bulk.makers import read_output, rows_of, write_input

from vectord.bulk.options import parameters
from vectord.cli.main import run
from vectord.config.settings import SETTINGS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with in.jsonl and in.csv; what the command does to logging ends with the test."""
    monkeypatch.chdir(tmp_path)
    write_input(tmp_path / "in.jsonl", rows_of(20))
    write_input(tmp_path / "in.csv", rows_of(20))
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_job_from_its_words_to_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    """Own options, settings of serve and a model in any order behind IN and OUT."""
    words = "--backend fake --json all-MiniLM-L6-v2 --dtype float32 --numbers float16"
    assert run(["bulk", "in.jsonl", "out.jsonl", *words.split()]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["resumed_from"], summary["parts"]) == (20, 0, 1)
    assert summary["model"] == "all-MiniLM-L6-v2"
    rows = read_output(Path("out.jsonl"))
    assert [row["id"] for row in rows] == [str(i) for i in range(20)]
    assert len(rows[0]["dense"]) == 384


def test_the_summary_for_people_says_what_was_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has to look for it."""
    write_input(Path("in.jsonl"), [{"text": "word " * 500}, {"text": "short"}])
    assert run(["bulk", "in.jsonl", "out.jsonl", "--backend", "fake"]) == 0
    printed = capsys.readouterr().out
    assert "1 texts were longer than the model reads" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "Missing argument 'IN'"),
        ("in.jsonl", "Missing argument 'OUT'"),
        ("absent.csv out.jsonl", "IN: there is no absent.csv"),
        ("in.jsonl out.pdf", "OUT: its name must end in one of .parquet"),
        ("in.jsonl out", "OUT: its name must end in one of .parquet"),
        ("in.jsonl out.parquet.gz", "only JSON Lines are written as .gz"),
        ("in.jsonl out.npy --outputs dense,sparse", ".npy holds dense vectors alone"),
        ("in.jsonl out.npy --on-error null", ".npy holds dense vectors alone"),
        ("in.jsonl out.jsonl --outputs dense,dens", "--outputs: expected some of dense, sparse, colbert"),
        ("in.jsonl out.jsonl --dimensions 0", "--dimensions: expected 1 or more"),
        ("in.jsonl out.jsonl --numbers float64", "Invalid value for '--numbers'"),
        ("in.jsonl out.jsonl --sparkle", "unknown option '--sparkle'"),
        ("in.jsonl out.jsonl --url http://h --device cpu", "--url: the server has its own settings"),
        ("in.jsonl out.jsonl --api-key k", "--api-key: requires --url"),
        ("in.jsonl out.jsonl --url h:8000", "--url: base_url must begin with http"),
        ("in.csv out.jsonl --column body --backend fake", "--column: there is no 'body'"),
        ("- out.jsonl", "IN is standard input: say --format"),
    ],
)
def test_a_job_that_cannot_start_is_one_line_and_exit_code_2(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which names the word that is at fault, and leaves no file."""
    assert run(["bulk", *words.split()]) == 2
    printed = capsys.readouterr()
    assert told in printed.err
    assert printed.out == ""
    assert {path.name for path in Path().iterdir()} == {"in.jsonl", "in.csv"}


def test_own_options_hide_no_setting() -> None:
    """But --api-key, which is here the key that a server wants."""
    own = {flag for parameter in parameters() for flag in parameter.opts if flag.startswith("-")}
    settings = {flag for setting in SETTINGS for flag in setting.flags}
    assert own & settings == {"--api-key"}


def test_a_row_that_fails_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    """With what is done kept."""
    write_input(Path("in.jsonl"), [{"text": "good"}, {"text": None}])
    assert run(["bulk", "in.jsonl", "out.jsonl", "--backend", "fake"]) == 1
    assert "Row 1, counted from 0: `text` is null" in capsys.readouterr().err
    assert Path("out.jsonl.parts").is_dir()


def test_the_help_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Usage, options, files, exit codes, examples, in lines that a terminal holds."""
    assert run(["bulk", "--help"]) == 0
    printed = capsys.readouterr().out
    for words in ("vectord bulk [OPTIONS] IN OUT", "--on-error", "Exit codes:", "Files:", "Examples:"):
        assert words in printed
    assert max(map(len, printed.splitlines())) <= 120
