"""A file of tests that need a GPU, in parallel where pytest-xdist is installed. A section of gpu.py."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from importlib.util import find_spec

from bench.child import REPOSITORY
from bench.gpu_options import Options, read_options
from bench.gpu_section import Say, speaker

PYTEST = ["-m", "pytest", "-c", "/dev/null", "--rootdir", ".", "--import-mode=importlib", "-p", "no:cacheprovider"]
WORKERS = 6
REPORT_S = 5  # of the section's time
OUTCOME = re.compile(r"^(?:\[gw|tests/).* (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)


def measure(tests: str, options: Options, found: Say) -> None:
    parallel = ["-n", str(WORKERS)] if find_spec("xdist") else []
    argv = [sys.executable, *PYTEST, "-v", "-rfE", "--tb=short", *parallel, tests]
    status = None
    with tempfile.TemporaryFile("w+") as log:
        with suppress(subprocess.TimeoutExpired):
            status = subprocess.run(
                argv, cwd=REPOSITORY, stdout=log, stderr=log, timeout=options.seconds - REPORT_S, check=False
            ).returncode
        log.seek(0)
        printed = log.read()
    lines = printed.splitlines()
    failed = [line[:300] for line in lines if re.search(r"\b(FAILED|ERROR)\b", line)]
    found(
        "tests",
        tests=tests,
        counts=Counter(OUTCOME.findall(printed)),
        exit=status,
        failed=failed,
        end=lines[-40:],
    )


if __name__ == "__main__":
    measure(sys.argv[1], read_options(), speaker())
