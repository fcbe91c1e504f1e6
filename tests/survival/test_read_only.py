"""The server runs as in a container: without root, a writable file system or a home."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from tests.real_server import wait_for

from vectord.cluster.processes.supervisor import SHARED_MEMORY

NOBODY = 65534
BARE = {"HOME": "/nonexistent"} | {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
# Remounts everything read-only in a separate mount namespace, then drops root.
ALONE = r"""
mount --make-rprivate /
awk '{print $5}' /proc/self/mountinfo | sort -r | while read -r at; do
    case "$at" in /proc|/proc/*|/dev|/dev/*|/sys|/sys/*) ;; *) mount -o remount,bind,ro "$at" 2>/dev/null ;; esac
done
exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs "$@"
"""
PROBE = "import os, sys; sys.exit(os.geteuid() != 65534 or any(os.access(p, os.W_OK) for p in sys.argv[1:]))"


def alone(*command: str) -> list[str]:
    return ["unshare", "--mount", "--", "sh", "-c", ALONE, "sh", *command]


def read_only(*command: str) -> list[str]:
    """As root, whom a read-only file system stops too."""
    return ["unshare", "--mount", "--", "sh", "-c", ALONE.rpartition("exec")[0] + 'exec "$@"', "sh", *command]


def cannot() -> str | None:
    """The reason why this machine cannot run the test, or None."""
    if os.name != "posix" or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "needs root, to give it up"
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return "needs unshare and setpriv"
    places = [str(Path.cwd()), "/tmp", "/var/tmp", sys.prefix]
    tried = subprocess.run(alone(sys.executable, "-c", PROBE, *places), capture_output=True, text=True, check=False)
    return (
        None if tried.returncode == 0 else f"the sandbox forbids it: {tried.stderr.strip()[-200:] or 'still writable'}"
    )


@contextmanager
def serving(log: Path, command: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Response]]:
    """The process of a server that is ready, and its answer with a vector. Skips where the machine cannot run it."""
    if (reason := cannot()) is not None:
        pytest.skip(reason)
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=BARE) as process:
        try:
            url = wait_for(lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), process)[0]
            wait_for(lambda: httpx.get(f"{url}/health/ready").status_code == 200, process)
            yield process, httpx.post(f"{url}/v1/embeddings", json={"input": ["a happy person"]}, timeout=60)
        finally:
            process.terminate()
        assert process.wait(timeout=30) == 0, log.read_text()
    assert "Read-only" not in log.read_text()


def test_it_serves_without_root_home_or_writable_folders(tmp_path: Path) -> None:
    """It serves vectors and writes only to its output."""
    command = alone(sys.executable, "-B", "-m", "vectord", "serve", "--port", "0")
    with serving(tmp_path / "log", command) as (process, answer):
        status = Path(f"/proc/{process.pid}/status").read_text()
        files = []
        for link in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since it was listed
                files.append(str(link.readlink()))
    assert re.search(rf"Uid:\s+{NOBODY}\s+{NOBODY}\s+{NOBODY}", status)
    assert len(answer.json()["data"][0]["embedding"]) == 384
    assert not [path for path in files if "(deleted)" in path and "memfd" not in path], "a file that was written"


def test_front_ends_serve_on_a_read_only_file_system(tmp_path: Path) -> None:
    """The socket of their engine lies in shared memory, and is removed at the end."""
    before = set(Path(SHARED_MEMORY).glob("vectord-*"))
    command = read_only(sys.executable, "-B", "-m", "vectord", "serve", "--port", "0", "--front-ends", "2")
    with serving(tmp_path / "log", command) as (_, answer):
        assert len(answer.json()["data"][0]["embedding"]) == 384
    assert set(Path(SHARED_MEMORY).glob("vectord-*")) <= before
