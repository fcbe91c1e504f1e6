"""Return freed memory from the C library's heap to the system. Called in any thread, after freeing much memory."""

from __future__ import annotations

import ctypes


def trim_heap() -> None:
    """Return the heap's free pages to the system, if the platform supports it.

    Without it, 600 MB stay allocated after 80 results of 10 MB.
    """
    if hasattr(ctypes.pythonapi, "malloc_trim"):  # glibc
        ctypes.pythonapi.malloc_trim(0)
