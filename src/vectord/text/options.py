"""What a request may ask of how its texts become tokens, checked against the model. Pure; called by the encoders."""

from __future__ import annotations

from vectord.errors import InvalidField
from vectord.schema import TextOptions


def max_tokens_of(options: TextOptions, most: int, least: int) -> int:
    """Tokens an input may have: `most`, which the model reads, or fewer where the request says so.

    least: the specials and a token of each text. Raises InvalidField below that.
    """
    if options.max_tokens is None:
        return most
    if options.max_tokens < least:
        message = f"`max_tokens` must be at least {least} here, special tokens included; got {options.max_tokens}"
        raise InvalidField(message, field="max_tokens", limit=least, given=options.max_tokens)
    return min(options.max_tokens, most)


def require_specials(options: TextOptions, what: str) -> None:
    """Raises InvalidField if the request leaves out special tokens without which the model knows no `what`."""
    if not options.add_special_tokens:
        raise InvalidField(f"`add_special_tokens` cannot be off for {what}", field="add_special_tokens")
