"""The chat template of a model's folder, and the special tokens that it may name. It is read here and never run."""

from __future__ import annotations

from vectord.checkpoints.files.read import read_bytes, read_settings
from vectord.checkpoints.folder import ModelFolder
from vectord.checkpoints.spec import ChatTemplate
from vectord.checkpoints.vocabulary import token_text

LIMIT_BYTES = 2**20  # the longest known template has 25 kB

_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_chat_template(folder: ModelFolder, operators: str | None = None) -> ChatTemplate | None:
    """The operator's template, else that of chat_template.jinja, else that of tokenizer_config.json, where one of
    several is called default."""
    text = operators if operators is not None else _text(folder)
    if text is None:
        return None
    files = read_settings(folder.tokenizer / "special_tokens_map.json", optional=True), folder.tokenizer_config
    tokens = {name: content for file in files for name in _TOKENS if (content := token_text(file.fields.get(name)))}
    return ChatTemplate(text, tokens)


def _text(folder: ModelFolder) -> str | None:
    path = folder.tokenizer / "chat_template.jinja"
    if path.exists():
        return read_bytes(path, LIMIT_BYTES).decode("utf-8", "replace")
    text = folder.tokenizer_config.fields.get("chat_template")
    if isinstance(text, list):
        text = next(
            (each.get("template") for each in text if isinstance(each, dict) and each.get("name") == "default"), None
        )
    return text if isinstance(text, str) else None
