"""Commands on a terminal have colours and a progress bar; in a pipe they print plain lines."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.checkpoints.folders import write_sentence_model
from tests.checkpoints.small_hub import MODEL, small_hub

ESCAPE = "\x1b["


def on_a_terminal(words: Sequence[str], folder: Path, columns: int = 100, code: int = 0, **variables: str) -> str:
    """The command's output on a terminal. code: the expected exit code."""
    ours, theirs = pty.openpty()
    environ = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns)} | variables
    environ.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "vectord", *words], cwd=folder, env=environ, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while more := os.read(ours, 65_536):
                seen += more
        except OSError:  # on Linux: the other end is closed
            pass
        os.close(ours)
    assert process.returncode == code, seen.decode()
    return seen.decode()


def in_a_pipe(words: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "vectord", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout + done.stderr


def test_a_job_has_a_progress_bar_only_on_a_terminal(tmp_path: Path) -> None:
    """The bar has the rate and the remaining time. A pipe gets no escape sequence."""
    words = ["bulk", "in.jsonl", "out.npy", "--restart", "--backend", "fake"]
    rows = [json.dumps({"text": f"number {i} " + "word " * 20}) + "\n" for i in range(20_000)]
    (tmp_path / "in.jsonl").write_text("".join(rows))  # long enough for an estimate of the remaining time
    seen = on_a_terminal(words, tmp_path)
    assert re.search(r"rows, [\d,]+ tokens/s", seen)
    assert re.search(r"\d:\d\d left", seen)
    assert ESCAPE in seen
    (tmp_path / "in.jsonl").write_text("".join(rows[:100]))
    assert ESCAPE not in in_a_pipe(words, tmp_path)


def test_a_bar_on_a_terminal_in_ascii_has_its_signs_only(tmp_path: Path) -> None:
    """Also on a narrow one: no ellipsis, and no escaped sign such as those of spinners."""
    (tmp_path / "in.jsonl").write_text('{"text": "a word"}\n' * 20_000)
    words = ["bulk", "in.jsonl", "out.npy", "--backend", "fake"]
    seen = on_a_terminal(words, tmp_path, columns=40, PYTHONIOENCODING="ascii")
    assert re.search(r"[\d,]+ rows, [\d,]+ ", seen)
    assert "\\u" not in seen


def test_a_pull_on_a_terminal_has_a_line_for_each_model(tmp_path: Path) -> None:
    """Above it, the bar of the log. No line of the table ends in spaces."""
    with small_hub(write_sentence_model(tmp_path / "repository")) as hub:
        environ = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "PYTHONIOENCODING": "ascii"}
        seen = on_a_terminal(["pull", MODEL], tmp_path, **environ)
    assert "\x1b[?25l" in seen  # a bar hides the cursor
    assert "\\u" not in seen
    table = seen[seen.index("commit") :]
    assert "some/model" in table
    assert not re.search(r" (\x1b\[0m)?\r?$", table, re.MULTILINE)


def test_the_error_of_an_unfinished_download_has_a_line_of_its_own(tmp_path: Path) -> None:
    """The bar is erased before it."""
    with small_hub(write_sentence_model(tmp_path / "repository")) as hub:
        hub.sizes["config.json"] = 3
        seen = on_a_terminal(["serve", MODEL], tmp_path, code=2, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "hf"))
    assert "config.json" in seen
    assert f"\x1b[2K\x1b[?25h\rvectord: model {MODEL} is neither a folder with a config.json nor in " in seen


def test_tables_have_colours_only_on_a_terminal(tmp_path: Path) -> None:
    """A pipe gets every line of them."""
    assert ESCAPE in on_a_terminal(["models"], tmp_path)
    piped = in_a_pipe(["models"], tmp_path)
    assert not re.search(r" $", piped, re.MULTILINE)
    assert ESCAPE not in piped
    assert "sentence-transformers/all-MiniLM-L6-v2" in piped


def test_print_config_fits_the_terminal(tmp_path: Path) -> None:
    """Its values fold, and its names do not."""
    seen = on_a_terminal(["serve", "--print-config", "--profile", "smart-embedder"], tmp_path, columns=80)
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in seen.splitlines()]
    assert len(lines) > 20
    assert max(map(len, lines)) <= 80
    assert re.search(r"^engine.max_concurrent_requests +200 +profile$", "\n".join(lines), re.MULTILINE)


def test_a_narrow_terminal_breaks_no_cell(tmp_path: Path) -> None:
    """A name can be copied: the terminal wraps the line, and the table does not."""
    assert "sentence-transformers/all-MiniLM-L6-v2" in on_a_terminal(["models"], tmp_path, columns=40)
