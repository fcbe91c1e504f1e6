"""What goes before a text, by the model's own config and the catalogue. reader.py calls `read_prompts`, at start.

A model's own prompts outrank the catalogue's, which has those that stand in a model card alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.checkpoints.model_folder import ModelFolder
from vectord.errors import ConfigError, ModelUnavailable

PROMPTS_LIMIT = 1000
PROMPT_LIMIT_CHARACTERS = 20_000


def read_prompts(folder: ModelFolder) -> Mapping[str, str]:
    """By name. sentence-transformers writes empty ones for queries and documents where a model has none: then the
    catalogue's. Raises ModelUnavailable for prompts that are no texts, or too long."""
    prompts = _own_prompts(folder)
    if not any(prompts.values()) and folder.entry is not None:
        return {**prompts, **folder.entry.prompts}
    return prompts


def choose_default(folder: ModelFolder, prompts: Mapping[str, str], wanted: str | None) -> str | None:
    """The name of the prompt for texts that ask for none: `wanted` by the operator, else the model's own.

    Raises ConfigError if the operator, ModelUnavailable if the model names one that is not there.
    """
    if wanted is not None:
        if wanted not in prompts:
            names = ", ".join(prompts) or "none"
            raise ConfigError(f"default_prompt_name {wanted!r}: the model has no such prompt; it has {names}")
        return wanted
    default = folder.sentence.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise ModelUnavailable(f"{folder.sentence_path}: default_prompt_name is not one of its prompts")
    return default


def _own_prompts(folder: ModelFolder) -> dict[str, str]:
    prompts: Any = folder.sentence.get("prompts")
    if prompts is None:
        return {}
    if not isinstance(prompts, dict) or len(prompts) > PROMPTS_LIMIT:
        raise ModelUnavailable(f"{folder.sentence_path}: prompts must be an object of at most {PROMPTS_LIMIT} texts")
    if not all(isinstance(text, str) and len(text) <= PROMPT_LIMIT_CHARACTERS for text in prompts.values()):
        raise ModelUnavailable(
            f"{folder.sentence_path}: each prompt must be a text of at most {PROMPT_LIMIT_CHARACTERS:,} characters"
        )
    return prompts
