"""Runs every file of examples/ against a real server that requires a key.

They need packages that the main suite's environment lacks: Python files run in .venv-clients, JavaScript beside the
packages of tests/clients/node. client.py has its tests in tests/client/test_pages.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.quiet import QUIET
from tests.ports import free_port
from tests.real_postgres import postgres_at, programs_in
from tests.real_server import running
from tests.reference.reference_models import write_bge_m3

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CLIENTS = ROOT / ".venv-clients"
PYTHON = CLIENTS / "bin" / "python"
NODE = shutil.which("node")
NODE_PACKAGES = ROOT / "tests" / "clients" / "node" / "node_modules"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
KEY = "examples-key"
PATIENCE_S = 300

POSTGRES, HYBRID = "postgres_pgvector.py", "qdrant_hybrid.py"
PYTHON_EXAMPLES = {path.name for path in EXAMPLES.glob("*.py")} - {"client.py"}
NODE_EXAMPLES = {path.name for path in EXAMPLES.glob("*.mjs")}
MEANT = "A ticket for the night bus costs three euros."
RAIN = "Rain is expected in the north on Sunday."

needs_clients = pytest.mark.skipif(not PYTHON.exists(), reason="there is no .venv-clients: `make clients`")
needs_node = pytest.mark.skipif(
    NODE is None or not NODE_PACKAGES.exists(), reason="there is no Node with its packages: `make clients`"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serves the default model, and a random model with BGE-M3's shape and name."""
    tiny = write_bge_m3(tmp_path_factory.mktemp("models") / "tiny-bge-m3", weights="safetensors")
    options = (MODEL, str(tiny), "--model-aliases", "BAAI/bge-m3=tiny-bge-m3", "--api-key", KEY)
    with running(tmp_path_factory.mktemp("server") / "log", *options) as (url, _):
        yield url


def run(command: list[str | Path], server: str, folder: Path, **environment: str) -> list[tuple[float, str]]:
    """The printed scores and passages."""
    variables = {**os.environ, **QUIET, "VECTORD_URL": server, "VECTORD_API_KEY": KEY, **environment}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [re.fullmatch(r"(-?\d+\.\d{3})  (.+)", line) for line in done.stdout.splitlines()]
    assert all(lines), done.stdout
    return [(float(line[1]), line[2]) for line in lines if line]


def assert_three_best_first(printed: list[tuple[float, str]], best: str) -> None:
    scores = [score for score, _ in printed]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert printed[0][1] == best


@needs_clients
@pytest.mark.parametrize("name", sorted(PYTHON_EXAMPLES - {POSTGRES, HYBRID}))
def test_a_python_example_ranks_the_right_passage_first(server: str, tmp_path: Path, name: str) -> None:
    """It prints three of eight passages, the right one first."""
    assert_three_best_first(run([PYTHON, EXAMPLES / name], server, tmp_path), MEANT)


@needs_clients
@pytest.mark.skipif(
    programs_in(CLIENTS) is None, reason="no PostgreSQL can run here: it is in .venv-clients, root needs setpriv"
)
def test_pgvector_ranks_the_right_passage_first(server: str, tmp_path: Path) -> None:
    """Uses a real PostgreSQL with an index."""
    programs = programs_in(CLIENTS)
    assert programs is not None
    database = tmp_path / "database"
    database.mkdir()
    with postgres_at(free_port(), database, programs) as url:
        printed = run([PYTHON, EXAMPLES / POSTGRES], server, tmp_path, DATABASE_URL=url)
    assert_three_best_first(printed, MEANT)


@needs_clients
@pytest.mark.parametrize("passage", [MEANT, RAIN])
def test_the_hybrid_search_finds_an_identical_passage(server: str, tmp_path: Path, passage: str) -> None:
    """With a random model, only an identical text is certain to be the nearest, for every kind of vector."""
    assert_three_best_first(run([PYTHON, EXAMPLES / HYBRID, passage], server, tmp_path), passage)


@needs_node
@pytest.mark.parametrize("name", sorted(NODE_EXAMPLES))
@pytest.mark.parametrize(
    ("asked", "best"), [((), MEANT), (("When will it be wet outside?",), RAIN)], ids=["its own", "another"]
)
def test_a_javascript_example_ranks_the_right_passage_first(
    server: str, tmp_path: Path, name: str, asked: tuple[str, ...], best: str
) -> None:
    """Checked for the default question and for another one."""
    (tmp_path / "node_modules").symlink_to(NODE_PACKAGES)
    shutil.copy(EXAMPLES / name, tmp_path)
    assert NODE is not None
    assert_three_best_first(run([NODE, name, *asked], server, tmp_path), best)


@needs_clients
def test_an_example_answers_another_question(server: str, tmp_path: Path) -> None:
    """The command line may contain another question."""
    printed = run([PYTHON, EXAMPLES / "openai_sdk.py", "When will it be wet outside?"], server, tmp_path)
    assert_three_best_first(printed, RAIN)


def test_every_example_is_in_the_list() -> None:
    """examples/README.md lists exactly the files of the folder."""
    named = re.findall(r"\[([a-z_]+\.(?:py|mjs))\]\(\1\)", (EXAMPLES / "README.md").read_text("utf-8"))
    assert sorted(named) == sorted(PYTHON_EXAMPLES | NODE_EXAMPLES | {"client.py"})
