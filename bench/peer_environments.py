"""A virtual environment for each peer, since their required versions conflict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.child import REPOSITORY

REQUIREMENTS = Path(__file__).parent / "requirements"


def peer_environment(peer: str, folder: str) -> Path:
    """The `bin` folder of an environment with requirements/`peer`.txt; created if missing or out of date.

    Takes minutes the first time, since each peer installs its own torch. Raises CalledProcessError if pip fails.
    """
    requirements = REQUIREMENTS / f"{peer}.txt"
    environment = REPOSITORY / folder
    stamp = environment / "installed.txt"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        print(f"installing {peer} into {folder} (once; some minutes)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        pip: list[str | Path] = [
            environment / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, "--requirement", requirements], check=True)
        stamp.write_text(requirements.read_text())
    return environment / "bin"
