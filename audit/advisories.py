"""Known vulnerabilities of the locked packages, by pip-audit, where the database of OSV can be reached."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

DATABASE = ("api.osv.dev", 443)
REACH_S = 2.0


def can_reach() -> bool:
    try:
        socket.create_connection(DATABASE, REACH_S).close()
    except OSError:
        return False
    return True


def faults(pip_audit: Path, lock: Path) -> list[str]:
    """What pip-audit found, a line each. The lock has every package, so nothing is resolved or installed for it."""
    command = [str(pip_audit), "--requirement", str(lock), "--require-hashes", "--disable-pip"]
    command += ["--vulnerability-service", "osv", "--progress-spinner", "off", "--timeout", "10"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return [] if ran.returncode == 0 else (ran.stdout + ran.stderr).strip().splitlines()
