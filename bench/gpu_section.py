"""One section of bench/gpu.py in its own process, with a line for each finding. Standard library only.

Parent: `run_section`. Child: `found = speaker()`, then `found("rate", model=..., tokens_per_s=...)` for each finding.
A section that hangs is ended with all its processes; its findings are kept.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent
ERROR_CHARACTERS = 2000

Finding = dict[str, Any]
Say = Callable[..., None]


@dataclass
class Section:
    """error: the reason for an early end, or empty."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""


def run_section(name: str, argv: Sequence[str], limit_s: float, on_finding: Callable[[Finding], None]) -> Section:
    """Run `python argv`, as `argv` names it, until it ends or `limit_s` is over. Blocks."""
    section, began_s, late = Section(name), time.perf_counter(), threading.Event()
    paths = [str(REPOSITORY), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            argv, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=log, text=True, env=environ, start_new_session=True
        ) as process,
    ):

        def stop() -> None:
            late.set()
            _end(process.pid)

        timer = threading.Timer(limit_s, stop)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                section.findings.append(json.loads(line))
                on_finding(section.findings[-1])
            status = process.wait()
        finally:
            timer.cancel()
            _end(process.pid)  # a server that it left running
        if late.is_set():
            section.error = f"not done after {limit_s:.0f} s"
        elif status:
            log.seek(0)
            section.error = f"exit code {status}: {log.read()[-ERROR_CHARACTERS:].strip()}"
    section.seconds = time.perf_counter() - began_s
    return section


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def speaker() -> Say:
    """`found(kind, **figures)` for the child. Other output goes to stderr from now on."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def found(kind: str, **figures: Any) -> None:
        lines.write(json.dumps({"kind": kind, **figures}) + "\n")
        lines.flush()

    return found


@contextmanager
def attempt(found: Say, what: str) -> Iterator[None]:
    """Run one of several measurements: a failure is a finding, and the next one runs."""
    try:
        yield
    except Exception as error:
        found("failed", what=what, error=f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS])
        print(f"{what}: {error!r}", file=sys.stderr)
