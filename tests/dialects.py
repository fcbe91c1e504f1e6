"""Every product at once, whatever a server's settings enable."""

from __future__ import annotations

from functools import cache

from vectord.products import ORDER
from vectord.products.common.dialect import Dialect, load_dialects


@cache
def all_dialects() -> tuple[Dialect, ...]:
    """Sorted by name."""
    return tuple(load_dialects(sorted(ORDER)))
