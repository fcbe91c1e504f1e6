"""Memory for constants that are computed from a checkpoint: arrays in a temporary file without a name.

A backend makes one for each graph, in the loading thread. The runtime copies matrices into its own layout and rarely
reads the constants after that. In a file, their pages can be released, as those of a checkpoint.
"""

from __future__ import annotations

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
_ALIGNMENT = 64  # bytes: a runtime may require it


class Scratch:
    """Writable arrays, which live as long as this object."""

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
                self._maps.append(_map_file(max(size, SEGMENT_BYTES)))
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


def _map_file(size: int) -> mmap.mmap:
    """Raises OSError: no room, or no folder for temporary files."""
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a write to a page that the disk has no room for ends the process
        return mmap.mmap(file.fileno(), size)
