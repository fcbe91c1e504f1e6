"""How a job ends that does not end well. What is written by then stays, and the same command continues it."""

from __future__ import annotations


class BulkFailed(Exception):
    """It cannot go on. The message says what of the input, the output or the model is at fault, in one sentence."""


class Stopped(Exception):
    """It was told to stop; what had been answered is written."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class Later(Exception):
    """The model cannot answer now: asked again after `retry_after_s`, it may."""

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
