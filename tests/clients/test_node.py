"""npm packages, in node/: each file runs in Node's test runner against the same server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "node"
NODE = shutil.which("node") if shutil.which("npm") else None


@pytest.mark.skipif(NODE is None, reason="there is no Node with npm on this machine")
@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.test.mjs")), ids=lambda file: file.name.partition(".")[0])
def test_npm_package(server, file):
    """Every test of the file passes; the failure shows Node's output."""
    assert NODE is not None
    environment = {**os.environ, "VECTORD_URL": server}
    command = [NODE, "--test", "--test-reporter=spec", file.name]
    run = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
