"""Which words go before a text: the model's own prompts, by name. Pure; called by tokenizer.py for each request."""

from __future__ import annotations

from collections.abc import Mapping

from vectord.errors import InvalidField


def prompt_prefix(prompts: Mapping[str, str], name: str | None, default_name: str | None) -> str:
    """The text to put before an input, "" for none. name: what the request says; None: the model's default.

    Raises InvalidField listing the model's prompts if it has none of that name.
    """
    if name is None:
        return prompts[default_name] if default_name is not None else ""
    if name not in prompts:
        known = (
            f"must be one of this model's prompts: {', '.join(prompts)}"
            if prompts
            else "is set, but this model has no prompts"
        )
        raise InvalidField(f"`prompt_name` {known}", field="prompt_name")
    return prompts[name]
