"""A virtual environment for each peer, since their required versions conflict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.child import REPOSITORY

REQUIREMENTS = Path(__file__).parent / "requirements"
TOOLS = REPOSITORY / ".venv-tools/bin"


def peer_environment(peer: str, install: bool = True) -> Path:
    """The `bin` folder of `.venv-peer-PEER` with requirements/PEER.txt; created if missing or out of date.

    Takes minutes the first time. Raises CalledProcessError, whose stderr has the reason, if it cannot be installed, and
    RuntimeError if it is missing and `install` is false.
    """
    requirements = REQUIREMENTS / f"{peer}.txt"
    environment = REPOSITORY / f".venv-peer-{peer}"
    stamp = environment / "installed.txt"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        if not install:
            raise RuntimeError(f"{environment.name} is not installed, and --no-install is set")
        print(f"installing {peer} into {environment.name} (once; some minutes)", file=sys.stderr)
        python = environment / "bin/python"
        _run(TOOLS / "uv", "venv", "--quiet", "--clear", "--python", sys.executable, environment)
        for pin in pins(peer):
            if pin.startswith("torch=="):  # by pip, whose configuration may name a local index, as in the Makefile
                pip = (TOOLS / "python", "-m", "pip", "--quiet", "--python", python)
                _run(*pip, "install", "--no-compile", pin)
        _run(TOOLS / "uv", "pip", "install", "--quiet", "--python", python, "--requirement", requirements)
        stamp.write_text(requirements.read_text())
    return environment / "bin"


def pins(peer: str) -> list[str]:
    """The peer's packages with their versions."""
    lines = (REQUIREMENTS / f"{peer}.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _run(*command: str | Path) -> None:
    subprocess.run(list(map(str, command)), check=True, stderr=subprocess.PIPE, text=True)
