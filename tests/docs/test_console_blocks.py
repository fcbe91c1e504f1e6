"""Every command in a console block of the documentation runs in a test.

Those of docs/cli.md, docs/bulk.md and docs/own-models.md run here. Bash runs docs/cli.md literally, except for ports,
and the output has the lines of the page. The other pages have tests of their own in this folder.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.checkpoints.small_hub import small_hub
from tests.docs.examples import BLOCK
from tests.opening import minilm_folder
from tests.real_server import running

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for place in ("*.md", "docs/**/*.md", "deploy/*.md", "examples/*.md") for path in ROOT.glob(place))
ELSEWHERE = {
    "README.md": "test_readme.py",
    "docs/api.md": "test_api_examples.py",
    "docs/migrating": "test_migrating.py",
}
HERE = ("docs/cli.md", "docs/bulk.md", "docs/own-models.md")
COMMAND = re.compile(r"^\$ (.+?)\n(.*?)(?=^\$ |\Z)", re.DOTALL | re.MULTILINE)
MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def commands(page: str) -> list[tuple[str, str]]:
    """Each command with the output that the page shows."""
    blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
    return [command for block in blocks for command in COMMAND.findall(block)]


def cells(line: str) -> list[str]:
    """The cells of a table's line, with # for each number."""
    return [re.sub(r"[\d.,]*\d", "#", cell) for cell in re.split(r"\s{2,}", line.strip()) if cell]


def check_output(shown: str, printed: str) -> None:
    """The printed lines contain the first cells of the shown lines, in their order."""
    lines = iter([cells(line) for line in printed.splitlines() if line.strip()])
    for line in filter(str.strip, shown.splitlines()):
        if line not in ("...", "none"):  # advice depends on the machine
            want = cells(line)
            assert any(got[0] == want[0] for got in lines), f"{line!r} is not, or not in this place, in\n{printed}"


CLI = commands("docs/cli.md")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the command `vectord`, and the folders in which shells look for completions."""
    home = tmp_path_factory.mktemp("home")
    for folder in ("bin", ".zfunc", ".config/fish/completions"):
        (home / folder).mkdir(parents=True)
    (home / "bin" / "vectord").write_text(f'#!/bin/sh\nexec {sys.executable} -m vectord "$@"\n')
    (home / "bin" / "vectord").chmod(0o755)
    return home


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running(log, "--admin-key", "boss", "--dtype", "float32", "--rate-limit-requests-per-minute", "0") as (url, _):
        yield url


def bash(command: str, home: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG", "VECTORD_NUM_THREADS") if name in os.environ}
    whole = kept | {"HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"} | environ
    return subprocess.run(
        ["bash", "-c", command],
        check=False,
        cwd=home,
        env=whole,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(("command", "shown"), CLI, ids=[command for command, _ in CLI])
def test_a_command_prints_what_the_page_shows(command: str, shown: str, home: Path, server: str) -> None:
    """Its exit code is 0, and its lines begin as on the page."""
    port = server.rpartition(":")[2]
    command = command.replace("http://127.0.0.1:8977", server).replace("--port 8000", f"--port {port}")
    if " bench " in command:
        with running(home / "log", "--backend", "fake", "--rate-limit-requests-per-minute", "0") as (url, _):
            ended = bash(command.replace(server, url), home, {})
    elif " pull " in command:
        with small_hub(minilm_folder(home / f"repository{len(command)}"), MODEL) as hub:
            ended = bash(command, home, {"HF_ENDPOINT": hub.url, "HF_HOME": str(home / "pulled")})
    else:
        ended = bash(command, home, {})
    assert ended.returncode == 0, ended.stdout
    check_output(shown, ended.stdout)


def test_the_first_command_of_bulk_embeds_the_file(home: Path) -> None:
    """The output has the rows of the input, and a column of vectors."""
    (command, _), *_, (serve, _) = commands("docs/bulk.md")
    (home / "docs.csv").write_text("id,text\n1,a happy person\n2,a rainy day\n")
    ended = bash(command, home, {})
    assert ended.returncode == 0, ended.stdout
    rows = [json.loads(line) for line in (home / "vectors.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["1", "2"]
    assert len(rows[0]["dense"]) == 384
    assert shlex.split(serve)[:3] == ["vectord", "serve", "--batch-dir"]
    with running(home / "log", "--backend", "fake", "--batch-dir", str(home / "batches")) as (url, _):
        assert url


def test_the_commands_of_own_models_serve_gguf_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, and a model that Ollama has downloaded; the default model stands in for both."""
    from tests.checkpoints.gguf.gguf_files import add_vocabulary, write_gguf
    from tests.checkpoints.gguf.test_ollama import download

    (install, _), *serves = commands("docs/own-models.md")
    (file, ollama) = (shlex.split(command) for command, _ in serves)
    assert install == "pip install -e '.[gguf]'"
    folder = minilm_folder(home / "stand-in")
    write_gguf(folder, home / file[-1], add=partial(add_vocabulary, tokenizer=folder / "tokenizer.json"))
    content = (home / file[-1]).read_bytes()
    name = ollama[-1].removeprefix("ollama:")
    download(home / "ollama", f"registry.ollama.ai/library/{name}/latest", blob=content)
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "ollama"))
    monkeypatch.chdir(home)
    for words in (file, ollama):
        assert words[:2] == ["vectord", "serve"]
        with running(home / "log", *words[2:]) as (url, _):
            answer = httpx.post(f"{url}/v1/embeddings", json={"input": "a"}, timeout=60)
        assert len(answer.json()["data"][0]["embedding"]) == 384


def test_every_console_block_is_run() -> None:
    """A page with a console block is named above, and its test reads it."""
    pages = [path.relative_to(ROOT).as_posix() for path in PAGES if BLOCK.search(path.read_text("utf-8"))]
    tested = {page: _test_of(page) for page in pages if page not in HERE}
    assert [page for page, test in tested.items() if test is None] == []
    for page, test in tested.items():
        source = (ROOT / "tests" / "docs" / str(test)).read_text()
        assert Path(page).name in source or Path(page).parent.name in source, page


def _test_of(page: str) -> str | None:
    return ELSEWHERE.get(page) or ELSEWHERE.get(Path(page).parent.as_posix())


def test_readme_starts_with_the_targets_of_make() -> None:
    """`make install` makes the environment that the next line activates; test_readme.py runs the rest."""
    first = re.search(r"^```sh\n(.+?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert first is not None
    clone, install, serve = first[1].splitlines()
    assert clone.startswith("git clone https://")
    assert (install, serve) == ("make install && source .venv/bin/activate", "vectord serve")
    words: Sequence[str] = ["make", "--dry-run", "--always-make", "install"]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert " -m venv .venv\n" in printed
    assert "--require-hashes --requirement requirements.lock\n" in printed
    assert "--editable .\n" in printed
