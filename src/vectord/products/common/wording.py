"""Errors that name fields as the engine does, in the words of the body that was sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy

from vectord.errors import VectordError

_QUOTED = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)")  # the word of `inputs`, of `inputs[3]`, of `chunk.max_tokens`


def worded(error: VectordError, fields: Mapping[str, str]) -> VectordError:
    """`error` with every word of `fields` replaced, in `field` and wherever the message quotes it.

    Another object if anything differs: one failure may be the answer to several requests.
    """
    message = _QUOTED.sub(lambda quoted: f"`{fields.get(quoted[1], quoted[1])}", error.message)
    field = error.field if error.field is None else fields.get(error.field, error.field)
    if (message, field) == (error.message, error.field):
        return error
    other = copy(error)
    other.message, other.field = message, field
    return other
