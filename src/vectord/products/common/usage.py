"""Tokens in the words of OpenAI's `usage`: those that were run, specials included, whatever the dialect."""

from __future__ import annotations

from typing import Any

import msgspec

from vectord.schema import Usage


class TokenUsage(msgspec.Struct):
    """Tokens that were run."""

    prompt_tokens: int
    total_tokens: int  # the same: nothing is generated
    truncated_inputs: list[int] | msgspec.UnsetType = msgspec.UNSET  # only when something was cut


class EmbeddingsUsage(msgspec.Struct):
    """The same with the key that OpenAI's and Simple Inference Server's answers have beside them."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: None
    truncated_inputs: list[int] | msgspec.UnsetType = msgspec.UNSET  # only when something was cut


def token_usage(usage: Usage) -> dict[str, Any]:
    """`prompt_tokens` and `total_tokens`, and the places of truncated inputs if any was cut."""
    tokens = usage.tokens
    shown: dict[str, Any] = {"prompt_tokens": tokens, "total_tokens": tokens}
    truncated = [index for index, length in enumerate(usage.lengths) if length.truncated]
    if truncated:
        shown["truncated_inputs"] = truncated
    return shown
