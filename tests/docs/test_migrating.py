"""Runs every command of docs/migrating/ and compares its tables of names with the settings.

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

import httpx
import pytest
from tests.config.start import load
from tests.docs.examples import BLOCK, check_alike, examples
from tests.models import MINILM
from tests.real_server import running
from tests.reference.reference_models import write_bge_m3, write_bge_reranker

from vectord.config.profiles import make_profile
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
    """A folder with model folders, each named after the last part of a hub id."""
    folder = tmp_path_factory.mktemp("models")
    for name in STAND_INS:
        (folder / name).symlink_to(MINILM)
    write_bge_m3(folder / "bge-m3")
    for name in ("bge-reranker-base", "bge-reranker-v2-m3"):
        write_bge_reranker(folder / name)
    return folder


@pytest.fixture
def working_folder(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a user's catalogue, and an environment without downloads."""
    catalogue = tmp_path / "configs" / "model_config.yaml"
    catalogue.parent.mkdir()
    catalogue.write_text(CATALOGUE)
    monkeypatch.chdir(tmp_path)
    for name, value in {"MODEL_PATH": str(models), "OFFLINE": "1", "DTYPE": "float32", "NUM_THREADS": "1"}.items():
        monkeypatch.setenv(f"VECTORD_{name}", value)
    return tmp_path


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_work(name: str, working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server starts as documented, on another port, and responds as documented."""
    start, asked = start_of(PAGES[name]), list(examples(PAGES[name]))
    for variable, value in start.environment.items():
        monkeypatch.setenv(variable, value)
    with running(working_folder / "log", *start.options, "--host", "127.0.0.1") as (url, _), httpx.Client() as client:
        for example in asked:
            answer = client.request(
                example.method, url + example.path, headers=example.headers, content=example.body, timeout=60
            )
            assert answer.is_error == ("error" in example.answer), answer.text
            check_alike(example.answer, answer.json(), example.path)
    assert asked
    assert PAGES[name].count("$ curl ") == len(asked)


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_use_the_port_of_the_profile(name: str, working_folder: Path) -> None:
    """No page uses another port."""
    start = start_of(PAGES[name])
    port = load(start.options, start.environment, working_folder).config.server.port
    assert {example.port for example in examples(PAGES[name])} == {port}


def test_the_comparison_of_two_servers_runs(working_folder: Path) -> None:
    """Comparing a server with itself succeeds."""
    [command] = [line for block in BLOCK.findall(INDEX) for line in block.splitlines()]
    with running(working_folder / "log", "all-MiniLM-L6-v2", "--backend", "fake") as (url, _):
        words = shlex.split(re.sub(r"http://\w+:\d+", url, command.removeprefix("$ vectord ")))
        result = subprocess.run(
            [sys.executable, "-m", "vectord", *words], capture_output=True, text=True, timeout=300, check=False
        )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_profile_has_a_page() -> None:
    """Profiles of hosted APIs share a page."""
    named = "\n".join((INDEX, *PAGES.values()))
    assert [profile for profile in profiles() if profile != "default" and f"`{profile}`" not in named] == []
    assert [page for page in PAGES if f"({page}.md)" not in INDEX] == []


# --- the tables of names --------------------------------------------------------------------------------------


def rows() -> Iterator[tuple[str, str, str]]:
    """The page, the product's name, and the setting in the table."""
    for page, text in PAGES.items():
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            for name in re.findall(r"`([A-Z][A-Z0-9_]+|-{1,2}[a-z][a-z-]*)`", cells[0] if line.startswith("|") else ""):
                yield page, name, cells[1]


ROWS = list(rows())


def test_a_name_in_a_table_has_the_stated_effect() -> None:
    """Under the profile of the page, a name is a setting, has no effect, or is refused with what replaces it."""
    for page, name, ours in ROWS:
        profile = make_profile(page, profiles())
        settings = [one.name for one in profile.settings if name in (one.bare, *one.env, *one.flags)]
        ignored = {*profile.without_effect, *profile.ignored_options}
        if ours == "no effect":
            assert name in ignored, (page, name)
        elif ours == "not accepted" or ours.startswith("only for "):
            assert not settings, (page, name)
            assert name not in ignored, (page, name)
            assert name in profile.instead or not name.startswith("-"), (page, name)
        elif ours == "the setting of this name":
            assert settings == [name.lstrip("-").lower().replace("-", "_")], (page, name)
        else:
            assert ", ".join(f"`{setting}`" for setting in settings) == ours, (page, name)


def test_every_page_except_hosted_apis_has_a_table() -> None:
    """The parser above finds a table on every page."""
    assert {page for page, _, _ in ROWS} == PAGES.keys() - {"paid-apis"}
