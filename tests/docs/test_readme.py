"""Sends the commands of README.md to a real server, and compares its responses to the printed digits.

test_console_blocks.py runs those that install and start it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.docs.examples import BLOCK
from tests.real_server import running

from vectord.checkpoints.catalogue import CATALOGUE

PAGE = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
CURL = re.compile(r"^\$ curl localhost:8000(\S+) -d '(.+?)'\n(.+?)(?=^\$ |\Z)", re.DOTALL | re.MULTILINE)
EXAMPLES = [example for block in BLOCK.findall(PAGE) for example in CURL.findall(block)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("server") / "log", "--dtype", "float32") as (url, _):
        yield url


@pytest.mark.parametrize(("path", "body", "shown"), EXAMPLES, ids=[path for path, _, _ in EXAMPLES])
def test_a_response_has_the_printed_digits(url: str, path: str, body: str, shown: str) -> None:
    """Character by character, except where the page has "..."."""
    compact = re.sub(r"\n ?", "", shown)
    pattern = ".*?".join(re.escape(piece) for piece in compact.split("..."))
    answer = httpx.post(url + path, content=body)
    assert re.fullmatch(pattern, answer.text), answer.text[:200]


def test_the_page_has_two_examples() -> None:
    assert [path for path, _, _ in EXAMPLES] == ["/v1/embeddings", "/rerank"]


def test_the_models_of_the_page_are_in_the_catalogue() -> None:
    """Their names have the facts of docs/models.md."""
    table = PAGE.partition("\n## Models\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\|[^|]*\| `([^`]+)`", table, re.MULTILINE)
    assert len(named) > 10
    assert set(named) <= {entry.hub_id for entry in CATALOGUE}
