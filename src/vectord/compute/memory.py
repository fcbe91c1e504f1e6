"""Memory that returns to the system: computed constants in a temporary file, and the heap of the C library (glibc)."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import tempfile
from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 2**27  # of the file: each map holds a file descriptor
LARGE_BYTES = 2**20  # a buffer of this size has pages of its own, which return to the system when it is freed
KEPT_BYTES = 8 * 2**20  # of free memory at the end of each thread's heap
_ALIGNMENT = 64  # bytes: a runtime may require it
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # parameters of mallopt


def limit_freed_memory() -> None:
    """Return freed memory to the system early. Called once per process, before its threads start.

    By default glibc raises both limits with the largest buffer that was freed, and each thread then keeps up to 64 MB.
    OpenVINO replaces a buffer by a larger one when a larger batch comes, and the outgrown ones would stay in the heap.
    """
    if hasattr(ctypes.pythonapi, "mallopt"):
        ctypes.pythonapi.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        ctypes.pythonapi.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


def trim_heap() -> None:
    """Return the heap's free pages to the system. Called in any thread, after freeing much memory."""
    if hasattr(ctypes.pythonapi, "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)  # without the interpreter's lock


class Scratch:
    """Writable arrays in a temporary file without a name, which live as long as this object: a graph's constants that
    are computed from a checkpoint. The runtime copies matrices and rarely reads the constants after that."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []
        self._arrays: list[npt.NDArray[np.generic]] = []
        self._at = 0  # the first free byte of the last map
        self._has_file = True  # False after a failure

    def array(self, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
        """Return an array of zeros. In memory if the folder of temporary files has no room, which is logged."""
        size = prod(shape) * np.dtype(dtype).itemsize
        array: npt.NDArray[np.generic]
        if size and self._has_room(size):
            array = np.frombuffer(self._maps[-1], dtype, prod(shape), self._at).reshape(shape)
            self._at += -(-size // _ALIGNMENT) * _ALIGNMENT
        else:
            array = np.zeros(shape, dtype)
        self._arrays.append(array)
        return array

    def release(self) -> None:
        """Return the pages to the system. The arrays stay valid: their pages are read again on use."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    def _has_room(self, size: int) -> bool:
        if self._maps and self._at + size <= len(self._maps[-1]):
            return True
        if self._has_file and hasattr(os, "posix_fallocate"):
            try:
                segment = max(size, SEGMENT_BYTES)
                with tempfile.TemporaryFile() as file:
                    # Reserved first: a write to a page that the disk has no room for ends the process.
                    os.posix_fallocate(file.fileno(), 0, segment)
                    self._maps.append(mmap.mmap(file.fileno(), segment))
                self._at = 0
                return True
            except OSError as error:
                logger.warning(
                    "%s has no room for %d bytes of weights (%s): they stay in memory",
                    tempfile.gettempdir(),
                    size,
                    error.strerror,
                )
        self._has_file = False
        return False
