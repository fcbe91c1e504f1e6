"""The chat template of a model's folder: where it is found, and what limits it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.checkpoints.folders import write_json, write_transformer
from tests.checkpoints.reading import refusal, spec_of

from vectord.checkpoints.folder import TEMPLATE_LIMIT_BYTES
from vectord.checkpoints.spec import ChatTemplate

CONFIG = {
    "cls_token": {"content": "[CLS]", "lstrip": False},
    "pad_token": "[PAD]",
    "chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "one of several"}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_transformer(tmp_path)


def test_the_template_is_found_where_transformers_writes_it(folder: Path) -> None:
    """In its own file, else in tokenizer_config.json, with the special tokens; the operator's replaces it."""
    assert spec_of(folder).chat_template is None
    write_json(folder / "special_tokens_map.json", {"sep_token": "[SEP]", "pad_token": "old"})
    write_json(folder / "tokenizer_config.json", CONFIG)
    tokens = {"cls_token": "[CLS]", "pad_token": "[PAD]", "sep_token": "[SEP]"}
    assert spec_of(folder).chat_template == ChatTemplate("one of several", tokens)
    write_json(folder / "tokenizer_config.json", {**CONFIG, "chat_template": "the only one"})
    assert spec_of(folder).chat_template == ChatTemplate("the only one", tokens)
    (folder / "chat_template.jinja").write_text("the file's")
    assert spec_of(folder).chat_template == ChatTemplate("the file's", tokens)
    assert spec_of(folder, chat_template="the operator's").chat_template == ChatTemplate("the operator's", tokens)


def test_the_template_does_not_change_the_vector_space(folder: Path) -> None:
    """An index stays valid when a template is added or changed."""
    before = spec_of(folder).fingerprint
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert spec_of(folder).fingerprint == before


def test_a_template_without_end_is_refused(folder: Path) -> None:
    """Before it fills memory."""
    (folder / "chat_template.jinja").write_bytes(b"a" * (TEMPLATE_LIMIT_BYTES + 1))
    assert "chat_template.jinja: more than 1,048,576 bytes" in refusal(folder)
