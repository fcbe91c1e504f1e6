"""The name of one request, in its answer's headers and in the log. Called by handler.py for every request."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

HEADER = "x-request-id"

_harmless = re.compile(r"[A-Za-z0-9._:/+=@~-]{1,128}")


def request_id(headers: Mapping[str, str]) -> str:
    """The client's own, if it is 1 to 128 letters, digits or ._:/+=@~- ; else 32 random hexadecimal ones."""
    given = headers.get(HEADER)
    if given is not None and _harmless.fullmatch(given):
        return given
    return os.urandom(16).hex()
