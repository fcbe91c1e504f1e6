"""How many values a JSON body holds, counted before they are made. Called by handler.py, on the event loop.

Bytes alone do not bound a body: 32 kB of gzip become 33 MB of `[1],[1],...`, which take a parser six seconds and
850 MB. Separators outside strings are its values, counted here at 1 GB/s.
"""

from __future__ import annotations

import re

from vectord.errors import PayloadTooLarge

FREE_BYTES = 262_144  # what so few bytes can hold is made in 20 ms
MAX_VALUES = 1_000_000  # texts, token ids, keys: 75 ms of strings, 30 of numbers
MAX_CONTAINERS = 200_000  # lists and objects, which also cost the garbage collector

_string = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def check_shape(body: bytes) -> None:
    """Raises PayloadTooLarge above MAX_VALUES or MAX_CONTAINERS. What is no JSON passes: the parser refuses it."""
    if len(body) <= FREE_BYTES or _is_small(body):
        return
    bare = _string.sub(b"", body)  # prose and code are full of commas and brackets
    if not _is_small(bare):
        raise PayloadTooLarge(
            f"The body holds {bare.count(b',') + 1} values in {_containers(bare)} lists and objects; "
            f"the limits are {MAX_VALUES} and {MAX_CONTAINERS}."
        )


def _is_small(body: bytes) -> bool:
    return body.count(b",") < MAX_VALUES and _containers(body) <= MAX_CONTAINERS


def _containers(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")
