"""`vectord bulk`: its options, and its exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.bulk.makers import read_output, rows_of, write_input
from tests.opening import minilm_folder

from vectord.bulk.options import parameters
from vectord.cli.main import run
from vectord.config.settings import SETTINGS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_log: None) -> None:
    """A folder with in.jsonl and in.csv."""
    monkeypatch.chdir(tmp_path)
    write_input(tmp_path / "in.jsonl", rows_of(20))
    write_input(tmp_path / "in.csv", rows_of(20))


def test_a_job_prints_its_summary_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Options of bulk, settings of serve and a model may follow IN and OUT in any order."""
    words = "--backend fake --json all-MiniLM-L6-v2 --dtype float32 --numbers float16"
    assert run(["bulk", "in.jsonl", "out.jsonl", *words.split()]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["resumed_from"], summary["parts"]) == (20, 0, 1)
    assert summary["model"] == "all-MiniLM-L6-v2"
    rows = read_output(Path("out.jsonl"))
    assert [row["id"] for row in rows] == [str(i) for i in range(20)]
    assert len(rows[0]["dense"]) == 384


def test_shards_make_the_parts_of_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Each reports the parts that the others have not finished; then the command without both options joins them."""
    words = ["bulk", "in.jsonl", "out.npy", "--part-rows", "7", "--backend", "fake"]
    for shard in ("2/2", "1/2"):
        assert run([*words, "--parts", "--shard", shard]) == 0
        printed = capsys.readouterr().out
        assert "out.npy.parts" in printed
        assert ("2 of them not finished by other shards" in printed) is (shard == "2/2")
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["resumed_from"] == 20
    assert len(read_output(Path("out.npy"))) == 20


def test_the_printed_summary_counts_truncated_texts(capsys: pytest.CaptureFixture[str]) -> None:
    """Without terminal codes if the output is not a terminal."""
    write_input(Path("in.jsonl"), [{"text": "word " * 500}, {"text": "short"}])
    assert run(["bulk", "in.jsonl", "out.jsonl", "--backend", "fake"]) == 0
    printed = capsys.readouterr().out
    assert "1 texts were longer than the model's limit" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("in.jsonl", "Missing argument 'OUT'"),
        ("absent.csv out.jsonl", "IN: absent.csv does not exist"),
        ("in.jsonl out.pdf", "OUT: its name must end in one of .parquet"),
        ("in.jsonl out.parquet.gz", "only JSON Lines are written as .gz"),
        ("in.jsonl out.npy --outputs dense,sparse", ".npy holds only dense vectors"),
        ("in.jsonl out.jsonl --outputs dense,dens", "--outputs: expected some of dense, sparse, colbert"),
        ("in.jsonl out.jsonl --dimensions 0", "--dimensions: expected 1 or more"),
        ("in.jsonl out.jsonl --chunk-by sentences", "--chunk-by: requires --chunk"),
        ("in.jsonl out.npy --chunk 64", "--chunk: .npy has no columns"),
        (
            "in.jsonl out.jsonl --backend fake --chunk 500",
            "--chunk: `chunk.max_tokens` must be between 20 and 254; got 500",
        ),
        ("in.jsonl out.jsonl --outputs sparse --dimensions 8", "--dimensions: is for dense vectors"),
        ("in.jsonl out.jsonl --outputs colbert --numbers int8", "--numbers: is for dense vectors"),
        ("in.jsonl out.jsonl --pool-factor 2", "--pool-factor: --outputs has no such vectors"),
        ("in.jsonl out.jsonl --outputs colbert --pool-factor 0.5", "--pool-factor: expected 1 or more"),
        ("in.jsonl out.jsonl --outputs muvera --muvera 5,16", "--muvera: expected three numbers"),
        ("in.jsonl out.jsonl --outputs muvera --muvera 50,16,20", "--muvera: Expected `int` <= 10"),
        ("in.csv qdrant://h/c --outputs colbert --colbert-numbers int8", "--colbert-numbers: is for files"),
        ("in.csv out.jsonl --columns-as-text", "--columns-as-text: is for JSON Lines"),
        ("in.jsonl out.jsonl --columns-as-text", "--columns-as-text: is for tables"),
        ("in.jsonl out.jsonl --column text --format lines", "--column: the format lines has no columns"),
        ("in.jsonl out.npy --output-column my_", "--output-column: .npy has no columns"),
        ("in.jsonl out.jsonl --cacert in.csv", "--cacert: belongs to --url"),
        ("in.jsonl out.jsonl --sparkle", "unknown option '--sparkle'"),
        ("in.jsonl out.jsonl --url http://h --device cpu", "--url: the server has its own settings"),
        ("in.jsonl out.jsonl --api-key k", "--api-key: requires --url"),
        ("in.jsonl out.jsonl --url h:8000", "--url: base_url must begin with http"),
        ("in.csv out.jsonl --column body --backend fake", "--column: there is no 'body'"),
        ("in.jsonl out.jsonl --parts --shard 3/2", "--shard: expected 1/N to N/N, got '3/2'"),
        ("in.jsonl out.jsonl --shard 1/2", "--shard: requires --parts"),
        ("in.csv out.jsonl --delimiter ab", "--delimiter: expected one character"),
        ("in.csv out.jsonl --encoding klingon", "--encoding: 'klingon' is unknown"),
        ("in.jsonl out.npy --delimiter ;", "--delimiter: is for CSV"),
        ("in.jsonl out.npy --encoding latin-1", "--encoding: is for CSV, lines and files"),
        ("in.csv out.jsonl --id-column id", "--id-column: is for databases"),
        ("in.csv memory://out.jsonl --parts", "--parts: is for files of this machine"),
        ("in.csv postgresql://127.0.0.1:1/db/docs --numbers int8", "--numbers: pgvector has float32, float16, ubinary"),
        ("in.csv postgresql://127.0.0.1:1/db/docs", "OUT: postgresql://127.0.0.1:1/db/docs: connection failed"),
        ("in.csv qdrant://127.0.0.1:1/docs", "OUT: qdrant://127.0.0.1:1/docs: "),
        ("in.csv qdrant://127.0.0.1:1", "OUT: expected qdrant://HOST:6333/COLLECTION"),
        ("in.jsonl out.jsonl --parts --shard 1/2 --restart", "--shard: requires --parts, and excludes --restart"),
    ],
)
def test_a_job_that_cannot_start_is_one_line_and_exit_code_2(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the option at fault; no file is left."""
    assert run(["bulk", *words.split()]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert {path.name for path in Path().iterdir()} == {"in.jsonl", "in.csv"}


def test_options_of_bulk_hide_no_setting() -> None:
    """Except --api-key, here the key for the server of --url, and --model, which names one model in both."""
    own = {flag for parameter in parameters() for flag in parameter.opts if flag.startswith("-")}
    settings = {flag for setting in SETTINGS for flag in setting.flags}
    assert own & settings == {"--api-key", "--model"}


def test_a_model_that_is_not_opened_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """--model chooses among the models after OUT, and opens none; without it, one of them must make the vectors."""
    minilm_folder(Path("other"))
    assert run(["bulk", "in.jsonl", "out.jsonl", "./other", "--model", "./mine", "--backend", "openvino"]) == 1
    where = "of this process (named after OUT)"
    assert f"--model: ./mine is none of the models {where}: other\n" in capsys.readouterr().err
    assert run(["bulk", "in.jsonl", "out.jsonl", "./other", "--outputs", "colbert", "--backend", "openvino"]) == 1
    assert f"--outputs: no model {where} makes colbert vectors; other makes dense\n" in capsys.readouterr().err


def test_a_failed_row_gives_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    """The finished parts stay."""
    write_input(Path("in.jsonl"), [{"text": "good"}, {"text": None}])
    assert run(["bulk", "in.jsonl", "out.jsonl", "--part-rows", "1", "--backend", "fake"]) == 1
    assert "Row 1, counted from 0: `text` is null" in capsys.readouterr().err
    assert Path("out.jsonl.parts/part-000000.jsonl").exists()


def test_a_model_that_cannot_be_loaded_ends_the_job_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Once, in the last line; exit code 1."""
    folder = minilm_folder(Path("cut"))
    os.truncate(folder / "model.safetensors", 1000)
    assert run(["bulk", "in.jsonl", "out.jsonl", "./cut", "--backend", "openvino"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("vectord: cut could not be loaded: cut/model.safetensors: ") for line in lines][-1]
    assert sum("model.safetensors" in line for line in lines) == 1


@pytest.mark.parametrize("chosen", [["--model", "whole"], []], ids=["by name", "as the only one left"])
def test_another_model_that_cannot_be_loaded_is_logged(chosen: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The job runs on the chosen one."""
    folder = minilm_folder(Path("cut"))
    minilm_folder(Path("whole"))
    os.truncate(folder / "model.safetensors", 1000)
    words = ["./cut", "./whole", *chosen, "--backend", "openvino"]
    assert run(["bulk", "in.jsonl", "out.jsonl", *words]) == 0
    assert "cut could not be loaded: cut/model.safetensors: " in capsys.readouterr().err
