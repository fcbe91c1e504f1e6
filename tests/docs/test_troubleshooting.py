"""docs/troubleshooting.md: whoever looks for a message finds it as the code has it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
QUOTED = re.findall(r"^> (.+)$", PAGE, re.MULTILINE)
LEAST_LETTERS = 5  # a part of a message that is shorter might stand anywhere
VARYING = re.compile(r"\.\.\.|%[sdrg]|%\.\d+f|\x00")


def texts() -> Iterator[str]:
    """Every text of the source, those with values in them with \\0 in their place."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)


SAID = ["".join(VARYING.split(text)) for text in texts()]


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_one_of_the_code(message: str) -> None:
    """Its fixed parts stand in one text of the source, in their order; what is quoted may be a part of it."""
    parts = [re.escape(part) for part in message.split("...")]
    assert any(len(part.strip()) >= LEAST_LETTERS for part in parts)
    pattern = re.compile(".*?".join(parts), re.DOTALL)
    assert any(pattern.search(text) for text in SAID)


def test_messages_are_quoted() -> None:
    """In the form that is read above, and each once."""
    assert len(QUOTED) > 40
    assert len(set(QUOTED)) == len(QUOTED)
