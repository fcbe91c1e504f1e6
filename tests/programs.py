"""Programs that the tests run, and how they come onto a machine: `python -m tests.programs` fetches Debian's packages.

The packages are unpacked in .venv-tools/programs, so that no service starts and any user can do it. conftest.py adds
its folder `bin` to the end of PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".venv-tools" / "programs"
UNPACKED, BIN = FOLDER / "root", FOLDER / "bin"
PACKAGES = {
    "chromium": "chromium",
    "fish": "fish",
    "kubectl": "kubernetes-client",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "redis-server": "redis-server",
    "strip": "binutils",
    "systemd-analyze": "systemd",
    "zsh": "zsh",
}
PLACES = ("usr/lib/{name}/{name}", "usr/bin/{name}", "bin/{name}")  # of a program in its package; the first one counts
WRAPPER = """#!/bin/sh
LD_LIBRARY_PATH={libraries} exec {program} "$@"
"""


def add_to_path() -> None:
    """Makes the fetched programs available to this process and its children; those of the system come first."""
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(BIN)])


def fetch(missing: list[str]) -> None:
    """Unpacks each program's package and those that it needs and the machine lacks. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        # Lists of its own: only root may update those of the system, which a container image may lack.
        Path(folder, "lists", "partial").mkdir(parents=True)
        own = {"Dir::State::lists": f"{folder}/lists", "Dir::Cache": folder, "APT::Sandbox::User": "root"}
        apt = ["apt-get", "-qq", *(f"--option={name}={value}" for name, value in own.items())]
        subprocess.run([*apt, "update"], check=True)
        install = [*apt, "--simulate", "--no-install-recommends", "install", *{PACKAGES[name] for name in missing}]
        plan = subprocess.run(install, check=True, capture_output=True, text=True).stdout.splitlines()
        needed = [line.split()[1] for line in plan if line.startswith("Inst ")]
        subprocess.run([*apt, "download", *needed], cwd=folder, check=True)
        BIN.mkdir(parents=True, exist_ok=True)
        for archive in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "--extract", archive, UNPACKED], check=True)
    libraries = ":".join(str(path) for path in UNPACKED.glob("**/lib/*-linux-gnu*"))
    for name in missing:
        program = next(path for place in PLACES if (path := UNPACKED / place.format(name=name)).exists())
        wrapper = BIN / name
        wrapper.write_text(WRAPPER.format(libraries=libraries, program=program))
        wrapper.chmod(0o755)


def main() -> None:
    add_to_path()
    missing = [name for name in PACKAGES if shutil.which(name) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        print(f"The tests that need {', '.join(missing)} are skipped: there is no apt-get to fetch them.")
        return
    print(f"Fetching {', '.join(missing)} for the tests (once; a minute) ...", flush=True)
    try:
        fetch(missing)
    except subprocess.CalledProcessError as problem:
        print(f"The tests that need them are skipped: {problem}")


if __name__ == "__main__":
    main()
