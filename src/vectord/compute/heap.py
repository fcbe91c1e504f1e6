"""Memory that the C library keeps of what was freed. Called in threads, by whoever has just freed much of it."""

from __future__ import annotations

import ctypes


def trim_heap() -> None:
    """Give the pages that the heap has free back to the system, where the system's heap can.

    600 MB after 80 answers of 10 MB, without this.
    """
    if hasattr(ctypes.pythonapi, "malloc_trim"):  # glibc
        ctypes.pythonapi.malloc_trim(0)
