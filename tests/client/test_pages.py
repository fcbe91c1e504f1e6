"""The programs of docs/client.md and examples/client.py work with a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from inspect import signature
from pathlib import Path

from tests.client.conftest import API_KEY

import vectord
from vectord import client

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
# What the page calls as a user would, and this test's server does not.
NAMES = {
    '"http://127.0.0.1:8000"': "SERVER, api_key=API_KEY",
    'model="bge-m3"': 'model="tiny-bge-m3"',
    'model="reranker"': 'model="tiny-reranker"',
}


def test_the_programs_of_the_page_run(server):
    """One after another, in one session."""
    names = {"SERVER": server, "API_KEY": API_KEY}
    assert len(BLOCKS) == 7
    for block in BLOCKS:
        program = block
        for shown, meant in NAMES.items():
            program = program.replace(shown, meant)
        exec(program, names)
    names["client"].close()
    assert names["best"] == "The bridge was closed by noon."


def test_the_page_lists_every_error_and_setting():
    """With the default."""
    errors = [name for name in client.__all__ if name in vars(client.errors)]
    assert len(errors) == 11
    assert [name for name in errors if f"`{name}`" not in PAGE and f"`vectord.client.{name}`" not in PAGE] == []
    for name, parameter in signature(vectord.Client).parameters.items():
        default = {None: "none", 300.0: "300", 100_000: "100,000", 2**30: "1,073,741,824"}.get(
            parameter.default, str(parameter.default)
        )
        assert f"| `{name}` | {default} |" in PAGE.replace(f"`{default}` |", f"{default} |"), name


def test_the_example_finds_the_line(server, tmp_path):
    """By its meaning: it shares no word with the question."""
    notes = tmp_path / "notes.txt"
    notes.write_text("The cat sleeps on the sofa.\n\nIt poured all Tuesday.\nBread costs three coins.\n")
    command = [sys.executable, str(ROOT / "examples" / "client.py"), str(notes), "when did it rain?"]
    options = ["--url", server, "--key", API_KEY, "--top", "1"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r" +-?[\d.]+  It poured all Tuesday\.\n", done.stdout)
