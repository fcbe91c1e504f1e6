"""kill -9 of a real process at random moments: no row is lost, duplicated or mixed up."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from tests.real_server import running

ROWS = 20_000
KILLS = 3
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Different texts of various lengths."""
    path = tmp_path_factory.mktemp("bulk") / "in.jsonl"
    lengths = random.Random(0)
    with path.open("w") as file:
        for i in range(ROWS):
            text = f"number {i} " + "word " * lengths.randrange(30)
            file.write(json.dumps({"id": i, "text": text}) + "\n")
    return path


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("server") / "log", "--backend", "fake", "--dialects", "vectord") as (url, _):
        yield url


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The vectors of an uninterrupted job."""
    out = tmp_path_factory.mktemp("whole") / "out.npy"
    subprocess.run(command(source, out, ["--backend", "fake"]), check=True, capture_output=True, timeout=PATIENCE_S)
    return np.load(out)


def command(source: Path, out: Path, options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "vectord", "bulk", str(source), str(out), "--part-rows", "500", "--json", *options]


@pytest.mark.parametrize(("where", "out"), [("in process", "out.jsonl"), ("server", "out.parquet")])
def test_no_row_is_lost_or_duplicated(
    request: pytest.FixtureRequest, tmp_path: Path, source: Path, expected: np.ndarray, where: str, out: str
) -> None:
    """The process is killed after a random number of parts, within a part or between two."""
    options = ["--backend", "fake"] if where == "in process" else ["--url", request.getfixturevalue("url")]
    words = command(source, tmp_path / out, options)
    folder = tmp_path / f"{out}.parts"
    chance = random.Random(f"{where} {out}")
    for _ in range(KILLS):
        kill_after(words, folder, chance.randrange(1, 10))
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    summary = json.loads(done.stdout)
    assert summary["rows"] == ROWS
    assert summary["resumed_from"] > 0
    ids, vectors = read(tmp_path / out)
    assert ids == list(range(ROWS))
    np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-7)
    assert sorted(path.name for path in tmp_path.iterdir()) == [out]


def read(out: Path) -> tuple[list[int], np.ndarray]:
    """The ids and the vectors: pyarrow's lists of numbers and the json module would take seconds."""
    if out.suffix == ".jsonl":
        rows = [orjson.loads(line) for line in out.read_bytes().splitlines()]
        return [row["id"] for row in rows], np.array([row["dense"] for row in rows], np.float32)
    table = pq.read_table(out)
    return table["id"].to_pylist(), table["dense"].combine_chunks().flatten().to_numpy().reshape(ROWS, -1)


def kill_after(words: Sequence[str], folder: Path, parts: int) -> None:
    """Start the job and kill it when it has written this many more parts."""
    expected = parts_in(folder) + parts
    deadline_s = time.monotonic() + PATIENCE_S
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and time.monotonic() < deadline_s and parts_in(folder) < expected:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the job ended before it was killed"


def parts_in(folder: Path) -> int:
    return len(list(folder.glob("part-*")))


def test_sigterm_keeps_the_finished_parts(tmp_path: Path, source: Path, expected: np.ndarray) -> None:
    """The exit code is 143; the message says how to resume, and that works."""
    words = command(source, tmp_path / "out.npy", ["--backend", "fake"])
    folder = tmp_path / "out.npy.parts"
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not parts_in(folder):
            time.sleep(0.001)
        process.terminate()
        assert process.stderr is not None
        printed = process.stderr.read()
        assert process.wait() == 128 + signal.SIGTERM, printed
    assert "continue with the same command" in printed
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert json.loads(done.stdout)["resumed_from"] > 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]
