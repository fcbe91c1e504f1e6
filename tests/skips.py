"""The permitted skips. With CI=true, a test that is skipped for any other reason fails.

A test of a program or package that is missing on every machine of ours would rot unnoticed. So CI has all of them, and
only the machine itself may lack something. Each conftest.py of a test environment imports both hooks.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping

import pytest

# The beginning of the reason that the test gives: what the machine lacks.
PERMITTED: Mapping[str, str] = {
    "needs a GPU": "a GPU",
    "needs compute capability 8.9": "a GPU with fp8",
    "Triton": "a platform with Triton: Linux on x86-64",
    "bfloat16 is emulated on this processor": "instructions for bfloat16",
    "this processor does not compute in bfloat16": "instructions for bfloat16",
    "the runtime packs weights on processors with AVX2": "AVX2",
    "the runtime rounds inputs with int8 instructions of x86": "instructions for int8",
    "threads have priorities of their own on Linux only": "Linux",
    "elsewhere 127.0.0.2 is no address of the machine": "Linux",
    "open files are listed in /proc": "Linux",
    "tokie is used on Linux only": "Linux",
    "reads /proc": "Linux",
    "not glibc": "glibc",
    "no IPv6 here": "IPv6",
    "needs root": "root",
    "only root can mount a disk that is full": "root, or a container that may mount",
    "cannot change the user here": "a container whose root may change its user",
    "the sandbox forbids it": "a container that may mount",
    "no network namespaces here": "a container that may have namespaces",
    "there is no Docker Compose": "Docker Compose, which is no package of Debian 12",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_other_skips(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A whole module may be skipped, too."""
    report = yield
    _refuse_other_skips(report)
    return report


def _refuse_other_skips(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") != "true" or not isinstance(report.longrepr, tuple):  # a tuple: of a skip
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not reason.startswith(tuple(PERMITTED)):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} is skipped, which tests/skips.py does not permit: {reason}"
