"""Booleans as Smart Embedder reads them, in words and numbers, too: by pydantic 2, which is lax unless told to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec

from vectord.errors import WrongType

Flag: TypeAlias = Annotated[bool | float | str | None, msgspec.Meta(description='also in words and numbers: "yes", 1')]

_MEANINGS: Mapping[object, bool] = {
    **dict.fromkeys((1, "1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys((0, "0", "off", "f", "false", "n", "no"), False),
}


def read_flag(value: bool | float | str | None, field: str) -> bool | None:
    """True, False, or None for what was not said. Raises WrongType for what is neither."""
    if value is None or isinstance(value, bool):
        return value
    meaning = _MEANINGS.get(value.lower() if isinstance(value, str) else value)
    if meaning is None:
        raise WrongType(f"`{field}` must be a boolean.", field=field)
    return meaning
