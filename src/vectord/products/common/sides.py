"""The end of a text that is cut off, in the words of TEI and embedding_server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from vectord.errors import InvalidField
from vectord.schema import Side

Direction = Annotated[str, msgspec.Meta(description='"Right" or "Left": the end that is cut off')]

_SIDES: Mapping[str, Side] = {"right": "right", "left": "left"}


def read_side(direction: str | None, field: str = "truncation_direction") -> Side:
    """In capitals or not; null is "Right". Raises InvalidField for any other word."""
    side = _SIDES.get("right" if direction is None else direction.lower())
    if side is None:
        raise InvalidField(f"`{field}` must be 'Right' or 'Left'", field=field)
    return side
