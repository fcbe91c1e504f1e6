"""The log handlers of the process, which `logs.configure` replaces, return after each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in {*root.handlers} - {*handlers}:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
