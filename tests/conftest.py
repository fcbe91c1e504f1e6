"""Settings of every test process and of the servers that it starts."""

import os
import signal

from tests.programs import add_to_path
from tests.skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks

# Idle threads of OpenMP, and any second thread of OpenBLAS, would keep the cores from the other test process.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

add_to_path()

# A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Ubuntu's umask lets the group write the key files of tests, which the server refuses.
os.umask(0o022)
