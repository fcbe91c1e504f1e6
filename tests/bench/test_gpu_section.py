from __future__ import annotations

import sys
from pathlib import Path

import psutil
from bench.gpu_section import Finding, Section, run_section

HEAD = "from bench.gpu_section import attempt, speaker; found = speaker(); "
PATIENCE_S = 120.0


def run(code: str, limit_s: float = PATIENCE_S) -> tuple[Section, list[Finding]]:
    heard: list[Finding] = []
    return run_section("a section", [sys.executable, "-c", HEAD + code], limit_s, heard.append), heard


def test_a_section_that_fails_keeps_what_it_found() -> None:
    """With the reason of the failure."""
    section, _ = run("found('rate', tokens_per_s=1.5); raise SystemExit('the device is gone')")
    assert section.findings
    assert section.error == "exit code 1: the device is gone"


def test_a_measurement_that_fails_is_not_the_end() -> None:
    """The next one runs."""
    section, _ = run("\nwith attempt(found, 'first'): 1 / 0\nfound('rate')")
    assert [finding["kind"] for finding in section.findings] == ["failed", "rate"]
    assert section.findings[0]["error"] == "ZeroDivisionError: division by zero"
    assert section.error == ""


def test_a_section_that_hangs_is_ended_with_its_processes(tmp_path: Path) -> None:
    """A server must not run during the next section's measurement."""
    hangs = "[sys.executable, '-c', 'import time; time.sleep(1000)']"
    code = f"""
import subprocess, sys, time
process = subprocess.Popen({hangs})
found('started', pid=process.pid)
time.sleep(1000)
"""
    section, _ = run(code, limit_s=5.0)
    assert section.error == "not done after 5 s"
    assert not _runs(section.findings[0]["pid"])


def _runs(pid: int) -> bool:
    """Waits a moment for the process to end."""
    try:
        psutil.Process(pid).wait(PATIENCE_S)
    except psutil.NoSuchProcess:
        return False
    except psutil.TimeoutExpired:
        return True
    return False
