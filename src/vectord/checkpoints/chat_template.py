"""The chat template of a model's folder, and the special tokens that it may name. It is read here and never run."""

from __future__ import annotations

from typing import Any

from vectord.checkpoints.files.read import read_bytes, read_settings
from vectord.checkpoints.folder import ModelFolder
from vectord.checkpoints.spec import ChatTemplate

LIMIT_BYTES = 2**20  # the longest known template has 25 kB

_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_chat_template(folder: ModelFolder, operators: str | None = None) -> ChatTemplate | None:
    """The operator's template, else that of chat_template.jinja, else that of tokenizer_config.json, where one of
    several is called default.

    Raises ModelUnavailable for a file that is unreadable or has more than LIMIT_BYTES.
    """
    text = operators if operators is not None else _text(folder)
    if text is None:
        return None
    files = read_settings(folder.transformer / "special_tokens_map.json", optional=True), folder.tokenizer_config
    tokens = {name: content for file in files for name in _TOKENS if (content := _content(file.fields.get(name)))}
    return ChatTemplate(text, tokens)


def _text(folder: ModelFolder) -> str | None:
    path = folder.transformer / "chat_template.jinja"
    if path.exists():
        return read_bytes(path, LIMIT_BYTES).decode("utf-8", "replace")
    match folder.tokenizer_config.fields.get("chat_template"):
        case str(text):
            return text
        case list(named):
            return next(filter(None, map(_named_default, named)), None)
    return None


def _named_default(entry: Any) -> str | None:
    match entry:
        case {"name": "default", "template": str(text)}:
            return text
    return None


def _content(token: Any) -> str:
    """The text of a token, which is a string or an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
