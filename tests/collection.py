"""The garbage collector, switched off: only what has no reference left is freed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Earlier garbage is collected before the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
