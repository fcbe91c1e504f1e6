"""Sends the commands of README.md to a real server, and compares its responses to the printed digits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.docs.examples import BLOCK
from tests.real_server import running

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


def test_the_page_has_three_examples() -> None:
    assert [path for path, _, _ in EXAMPLES] == ["/v1/embeddings", "/rerank", "/tokenize"]
