"""Booleans as clients write them. RAGFlow, for one, sends "true"."""

from __future__ import annotations

from vectord.errors import InvalidField

Switch = bool | str | None


def read_switch(value: Switch, field: str) -> bool | None:
    """True, False, or None for what was not said. Raises InvalidField for any other word."""
    if value is None or isinstance(value, bool):
        return value
    word = value.lower()
    if word not in ("true", "false"):
        raise InvalidField(f"`{field}` must be true or false.", field=field)
    return word == "true"
