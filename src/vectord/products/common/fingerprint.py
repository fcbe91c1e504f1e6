"""The name of a vector space as clients send it back. Called by dialects, and by the server for its header."""

from __future__ import annotations

import re

from vectord.errors import InvalidField

PATTERN = r"[0-9a-f]{1,32}(:\d{1,7})?(:raw)?"

_fingerprint = re.compile(PATTERN)


def read_fingerprint(value: str | None, field: str) -> str | None:
    """`value` as it is; raises InvalidField for what no fingerprint of ours looks like."""
    if value is not None and not _fingerprint.fullmatch(value):
        raise InvalidField(
            f"`{field}` must be as an answer has it: 16 of 0-9 and a-f, then the width if that was cut, then raw.",
            field=field,
        )
    return value
