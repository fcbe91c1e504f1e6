"""What replicas sign shared answers with. Called by compose.py at the start; never printed, never logged."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from vectord.config import EngineConfig
from vectord.errors import ConfigError

LEAST_BYTES = 16
MOST_BYTES = 4096


def shared_secret(config: EngineConfig) -> bytes:
    """Of the setting or of its file, without blanks around it; b"" where there is none.

    Raises ConfigError for both at once, and for a file that cannot be read, may be written by others than its owner, or
    holds something too short or too long.
    """
    path = config.shared_cache_secret_file
    if path is None:
        return (config.shared_cache_secret or "").encode()
    if config.shared_cache_secret is not None:
        raise ConfigError("shared_cache_secret and shared_cache_secret_file: set one of them")
    secret, mode = _read(path)
    if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _broken(path, "may be written by others than its owner (chmod go-w mends that)")
    if not LEAST_BYTES <= len(secret) <= MOST_BYTES:
        raise _broken(path, f"must hold {LEAST_BYTES} to {MOST_BYTES} bytes")
    return secret


def _read(path: str) -> tuple[bytes, int]:
    """What stands there, and who may write it."""
    try:
        with Path(path).open("rb") as file:
            return file.read(MOST_BYTES + 2).strip(), os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as problem:  # ValueError: no path at all
        raise _broken(path, f"cannot be read: {type(problem).__name__}") from None


def _broken(path: str, what: str) -> ConfigError:
    return ConfigError(f"shared_cache_secret_file: {path!r} {what}")
