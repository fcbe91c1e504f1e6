"""A child process for a measurement, with JSON lines in and out. Standard library only.

Parent: `Child(python, "bench.ceiling")`, then `ask` once a round. Child: `answer(handle)` from its __main__. The
environments of peers import this file too, without vectord.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

REPOSITORY = Path(__file__).parent.parent


class Child:
    """Runs `python -m module *arguments` until closed. Blocks in `ask`; use from one thread."""

    def __init__(self, python: str | Path, module: str, *arguments: str) -> None:
        self.module = module
        self.process = subprocess.Popen(
            [str(python), "-m", module, *arguments],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **question: Any) -> Any:
        """The child's answer. Raises RuntimeError if it died; its stderr has the reason."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died earlier: the empty answer below shows it
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.module} ended with exit code {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def answer(handle: Callable[..., Any]) -> None:
    """Call `handle(**question)` for each line of stdin until it closes. Other output goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(handle(**json.loads(line))) + "\n")
        answers.flush()
