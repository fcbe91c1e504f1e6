"""Every message quoted in docs/troubleshooting.md exists in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
QUOTED = re.findall(r"^> (.+)$", PAGE, re.MULTILINE)
LEAST_LETTERS = 5  # a shorter fragment could match by accident
FIELD = re.compile(r"\{(field|body\.[a-z_.]+)\}")  # in a template of an error, quoted in its message
PLACEHOLDER = re.compile(r"\{[a-z_]+\}")
VARYING = re.compile(r"\.\.\.|%[sdrg]|%\.\d+f|\x00")


def texts() -> Iterator[str]:
    """Every string of the source, and its text as an error's template; formatted values become \\0."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
                yield PLACEHOLDER.sub("\0", FIELD.sub("`\0`", node.value))
            elif isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)


SOURCE_TEXTS = ["".join(VARYING.split(text)) for text in texts()]


def test_a_quoted_message_exists_in_the_code() -> None:
    """One string of the source contains the fixed parts in order; the quote may be a part of it."""
    for message in QUOTED:
        parts = [re.escape(part) for part in message.split("...")]
        assert any(len(part.strip()) >= LEAST_LETTERS for part in parts), message
        pattern = re.compile(".*?".join(parts), re.DOTALL)
        assert any(pattern.search(text) for text in SOURCE_TEXTS), message


def test_the_page_quotes_many_distinct_messages() -> None:
    """The parser finds them, and none is repeated."""
    assert len(QUOTED) > 20
    assert len(set(QUOTED)) == len(QUOTED)
