"""The guard of characters on OpenAI's and Simple Inference Server's routes: it counts what tokens would be made of."""

from __future__ import annotations

from collections.abc import Sequence

from vectord.errors import TooManyCharacters
from vectord.schema import Input


def check_characters(inputs: Sequence[Input], limit: int | None, field: str) -> None:
    """Raises TooManyCharacters, in Simple Inference Server's words, for the first text of more than `limit`.

    limit: None for no such limit.
    """
    if limit is None:
        return
    for index, one in enumerate(inputs):
        if isinstance(one, str) and len(one) > limit:
            raise TooManyCharacters(
                f"Input at index {index} exceeds max length {limit} chars",
                field=field,
                index=index,
                limit=limit,
                given=len(one),
            )
