"""Settings of every test process and of the servers that it starts."""

import logging
import os
import signal
import ssl
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import certifi
import pytest
from tests.programs import add_to_path
from tests.skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks

# Idle threads of OpenMP, and any second thread of OpenBLAS, would keep the cores from the other test process.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# What a developer's shell sets for other programs, and what vectord or its libraries would obey.
for name in [*os.environ]:
    if name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "SSL_CERT_DIR", "SSL_CERT_FILE") or name.startswith(
        ("HF_", "OTEL_", "TRANSFORMERS_", "VECTORD_")
    ):
        del os.environ[name]

add_to_path()

with suppress(ImportError):  # the environments of the clients have no hypothesis
    from hypothesis import settings

    # With CI=true its examples are the same ones each time.
    settings.register_profile("vectord", deadline=None, max_examples=60)
    settings.load_profile("vectord")

# httpx reads all authorities anew for each client and each single request: 40 ms of computation.
_create_context = ssl.create_default_context
_usual_authorities = cache(lambda: _create_context(cafile=certifi.where()))
ssl.create_default_context = lambda *purpose, **options: (
    _usual_authorities() if options == {"cafile": certifi.where()} else _create_context(*purpose, **options)
)

# A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Ubuntu's umask lets the group write the key files of tests, which the server refuses.
os.umask(0o022)


@pytest.fixture
def same_log() -> Iterator[None]:
    """Restores the logging configuration afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in {*root.handlers} - {*handlers}:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads make tiny models many times slower on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
