"""How many values a JSON body holds, counted before they are made. Called by handler.py, on the event loop.

Bytes alone do not bound a body: 32 kB of gzip become 33 MB of `[1],[1],...`, which take a parser six seconds and
850 MB. Quotes, and separators outside strings, are its values; they are counted at 1 GB/s.
"""

from __future__ import annotations

import re

from vectord.errors import PayloadTooLarge

FREE_BYTES = 262_144  # what so few bytes can hold is made in 20 ms
MAX_STRINGS = 250_000  # texts and keys; also what bounds the look outside strings, half a microsecond each
MAX_CONTAINERS = 200_000  # lists and objects, which also cost the garbage collector
MAX_VALUES = 1_000_000  # of any kind; token ids are the smallest

# A string, or what begins as one and has no end: without that, each quote in it would be tried as another beginning.
_string = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def check_shape(body: bytes) -> None:
    """Raises PayloadTooLarge above one of the limits. What is no JSON passes: the parser refuses it."""
    if len(body) <= FREE_BYTES:
        return
    # Inside a string a quote is escaped. A string that ends in a backslash is missed, and with it half of its quotes.
    strings = (body.count(b'"') - body.count(b'\\"')) // 2
    if strings > MAX_STRINGS:
        raise PayloadTooLarge(f"The body holds some {strings} strings; the limit is {MAX_STRINGS}.")
    if _is_small(body):
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
