"""The secret with which replicas sign shared answers. Read at start; never printed or logged."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from vectord.config import EngineConfig
from vectord.errors import ConfigError

MIN_BYTES = 16
MAX_BYTES = 4096


def shared_secret(config: EngineConfig) -> bytes:
    """From the setting or its file, without surrounding blanks; b"" if neither is set.

    Raises ConfigError if both are set, or if the file cannot be read, is writable by others than its owner, or has an
    invalid length.
    """
    path = config.shared_cache_secret_file
    if path is None:
        return (config.shared_cache_secret or "").encode()
    if config.shared_cache_secret is not None:
        raise ConfigError("shared_cache_secret and shared_cache_secret_file: set one of them")
    try:
        with Path(path).open("rb") as file:
            secret, mode = file.read(MAX_BYTES + 2).strip(), os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as problem:  # ValueError: not a valid path
        raise _invalid(path, f"cannot be read: {type(problem).__name__}") from None
    if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _invalid(path, "is writable by others than its owner (fix: chmod go-w)")
    if not MIN_BYTES <= len(secret) <= MAX_BYTES:
        raise _invalid(path, f"must hold {MIN_BYTES} to {MAX_BYTES} bytes")
    return secret


def _invalid(path: str, what: str) -> ConfigError:
    return ConfigError(f"shared_cache_secret_file: {path!r} {what}")
