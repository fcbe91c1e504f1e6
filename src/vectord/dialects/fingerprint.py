"""The name of a vector space as clients send it back. Called by dialects, and by the server for its header."""

from __future__ import annotations

import re

from vectord.errors import InvalidField

_fingerprint = re.compile(r"[0-9a-f:]{1,40}")


def read_fingerprint(value: str | None, field: str) -> str | None:
    """`value` as it is; raises InvalidField for what no fingerprint of ours looks like."""
    if value is not None and not _fingerprint.fullmatch(value):
        raise InvalidField(f"`{field}` must be 1 to 40 of the characters 0-9, a-f and colon.", field=field)
    return value
