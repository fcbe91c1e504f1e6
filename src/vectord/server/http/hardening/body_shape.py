"""How many values a JSON body holds, counted before they are made. Called by handler.py, for large bodies in a thread.

Bytes alone do not bound a body: 32 kB of gzip become 33 MB of `[1],[1],...`, which take a parser six seconds and
850 MB. Quotes, and separators outside strings, are its values; they are counted at 1 GB/s.
"""

from __future__ import annotations

import re

from vectord.errors import PayloadTooLarge

FREE_BYTES = 65_536  # what so few bytes can hold is made in 10 ms
MAX_STRINGS = 250_000  # texts and keys; also what bounds the look outside strings, half a microsecond each
MAX_CONTAINERS = 200_000  # lists and objects, which also cost the garbage collector: 137 ms in which nothing else runs
CONTAINERS_PER_INPUT = 16  # {"content": [{"type": "text"}]} are three
MAX_VALUES = 1_000_000  # of any kind; token ids are the smallest

# A string, or what begins as one and has no end: without that, each quote in it would be tried as another beginning.
_string = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def check_shape(body: bytes, max_inputs: int | None = None) -> None:
    """Raises PayloadTooLarge above one of the limits. What is no JSON passes: the parser refuses it.

    max_inputs: that a request may have, so that fewer containers do; None: any number.
    """
    if len(body) <= FREE_BYTES:
        return
    # Inside a string a quote is escaped. A string that ends in a backslash is missed, and with it half of its quotes.
    strings = (body.count(b'"') - body.count(b'\\"')) // 2
    if strings > MAX_STRINGS:
        raise PayloadTooLarge(f"The body holds some {strings} strings; the limit is {MAX_STRINGS}.")
    max_containers = MAX_CONTAINERS if max_inputs is None else min(MAX_CONTAINERS, CONTAINERS_PER_INPUT * max_inputs)
    if _is_small(body, max_containers):
        return
    bare = _string.sub(b"", body)  # prose and code are full of commas and brackets
    if not _is_small(bare, max_containers):
        raise PayloadTooLarge(
            f"The body holds {bare.count(b',') + 1} values in {_containers(bare)} lists and objects; "
            f"the limits are {MAX_VALUES} and {max_containers}."
        )


def _is_small(body: bytes, max_containers: int) -> bool:
    return body.count(b",") < MAX_VALUES and _containers(body) <= max_containers


def _containers(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")
