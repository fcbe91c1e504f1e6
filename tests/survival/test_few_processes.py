"""A user who may start few processes and threads: the server starts and answers, or says in one line why not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.real_server import wait_for

from vectord.cli.commands.serve import THREADS, THREADS_PER_CPU

USER = 42_424  # without other processes
FEW = 10
NEEDED = THREADS + THREADS_PER_CPU * (os.cpu_count() or 1)
OTHERS = 1 + (os.cpu_count() or 1)  # threads before the check: the main one, and OpenBLAS's


def limited(threads: int, *options: str) -> list[str]:
    """The command of a server whose user may have `threads` threads. It may read all files, as root's Python needs."""
    caps = "+dac_override,+dac_read_search"
    serve = [sys.executable, "-m", "vectord", "serve", "--port", "0", *options]
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", f"--inh-caps={caps}"]
    return [*user, f"--ambient-caps={caps}", "prlimit", f"--nproc={threads}:{threads}", *serve]


def cannot() -> str | None:
    """The reason why this machine cannot run the tests, or None."""
    if sys.platform != "linux" or os.geteuid() != 0 or None in (shutil.which("setpriv"), shutil.which("prlimit")):
        return "needs root, setpriv and prlimit"
    tried = subprocess.run([*limited(500)[:-6], "true"], capture_output=True, text=True, check=False)
    return f"cannot change the user here: {tried.stderr.strip()}" if tried.returncode else None


needs_other_user = pytest.mark.skipif(cannot() is not None, reason=cannot() or "")


@needs_other_user
def test_too_few_threads_stop_the_start_with_one_line() -> None:
    """Instead of a traceback from the first library that cannot start a thread."""
    ran = subprocess.run(limited(FEW), capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert re.fullmatch(
        rf"vectord: .* only \d more threads, and serving needs {NEEDED}: .*`ulimit -u`.*", ran.stderr.splitlines()[-1]
    )
    assert ran.stdout == ""


@needs_other_user
def test_the_threads_that_the_start_demands_are_enough(tmp_path: Path) -> None:
    """Under load every request is answered, and the log has no error."""
    log = tmp_path / "log"
    with log.open("w") as out:
        command = limited(NEEDED + OTHERS, "--cache-bytes", "0", "--grpc-port", "0")
        with subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | {"HOME": str(tmp_path)}) as process:
            try:
                url = wait_for(lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), process)[0]
                wait_for(lambda: httpx.get(f"{url}/health/ready").status_code == 200, process)

                def ask(number: int) -> int:
                    texts = [f"{number} of {size} " + "words " * size for size in range(16)]
                    return httpx.post(f"{url}/v1/embeddings", json={"input": texts}, timeout=120).status_code

                with ThreadPoolExecutor(8) as clients:
                    assert set(clients.map(ask, range(16))) <= {200, 429}
            finally:
                process.terminate()
            assert process.wait(timeout=30) == 0, log.read_text()
    assert not re.search(r"Traceback|error ", log.read_text()), log.read_text()
