"""The examples of docs/frameworks.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def test_the_programs_of_the_page_run():
    """One after another, with the default model. Each framework finds the same text."""
    page = (Path(__file__).parents[3] / "docs/frameworks.md").read_text("utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    (best,) = names["best"]
    (node,) = names["nodes"]
    found = names["collection"].query(query_texts=[names["query"]], n_results=1)["documents"]
    assert names["texts"][1] == best.page_content == node.text == found[0][0] == names["answer"].content
