"""The log handlers of the process, which `logs.configure` replaces, return after each test."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def restored_logging(same_log: None) -> None: ...
