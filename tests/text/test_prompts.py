"""Which prompt goes before a text."""

from __future__ import annotations

import pytest

from vectord.errors import InvalidField
from vectord.text.prompts import prompt_prefix

PROMPTS = {"query": "query: ", "document": ""}


@pytest.mark.parametrize(
    ("name", "default_name", "prefix"),
    [
        (None, None, ""),
        (None, "query", "query: "),
        ("query", None, "query: "),
        ("document", "query", ""),
    ],
)
def test_the_request_s_prompt_comes_before_the_model_s(name: str | None, default_name: str | None, prefix: str) -> None:
    """No name means the default; an empty prompt, asked for by name, switches the default off."""
    assert prompt_prefix(PROMPTS, name, default_name) == prefix


def test_an_unknown_prompt_is_refused_with_the_names_there_are() -> None:
    """The model's names are ours to show; what the client sent is not repeated."""
    with pytest.raises(InvalidField) as caught:
        prompt_prefix(PROMPTS, "pass<script>age", None)
    assert caught.value.field == "prompt_name"
    assert "query, document" in caught.value.message
    assert "script" not in caught.value.message


def test_a_model_without_prompts_says_so() -> None:
    """Naming a prompt of a model that has none is an error, not a vector without it."""
    with pytest.raises(InvalidField, match="no prompts"):
        prompt_prefix({}, "query", None)
