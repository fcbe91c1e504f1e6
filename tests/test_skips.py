"""CI fails on a skipped test, except for the reasons in skips.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.skips import PERMITTED

TESTS = Path(__file__).parent
KINDS = {
    "mark": "import pytest\n@pytest.mark.skipif(True, reason='{0}')\ndef test_it(): pass\n",
    "call": "import pytest\ndef test_it(): pytest.skip('{0}')\n",
    "fixture": "import pytest\n@pytest.fixture\ndef it(): pytest.skip('{0}')\ndef test_it(it): pass\n",
    "module": "import pytest\npytest.skip('{0}', allow_module_level=True)\n",
    "expected_failure": "import pytest\n@pytest.mark.xfail(reason='{0}')\ndef test_it(): assert False\n",
}


@pytest.mark.parametrize(
    ("ci", "options"),
    [("true", ()), ("true", ("--numprocesses", "1")), ("", ())],
    ids=["CI", "workers in CI", "elsewhere"],
)
def test_ci_permits_a_skip_for_a_listed_reason_only(ci: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """The failure shows the reason. A test that is expected to fail is no skip."""
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS.parent}\n")
    hooks = "from tests.skips import pytest_make_collect_report, pytest_runtest_makereport\n"
    (tmp_path / "conftest.py").write_text(hooks)
    for kind, content in KINDS.items():
        (tmp_path / f"test_permitted_{kind}.py").write_text(content.format("needs a GPU, today"))
        (tmp_path / f"test_{kind}.py").write_text(content.format("there is no program"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    ran = subprocess.run(
        [*command, *options], cwd=tmp_path, env={"CI": ci}, capture_output=True, text=True, timeout=120, check=False
    )
    failed = set(re.findall(r"^(\S+) is skipped, .* does not permit: there is no program$", ran.stdout, re.MULTILINE))
    if ci:
        assert failed == {
            "test_mark.py::test_it",
            "test_call.py::test_it",
            "test_fixture.py::test_it",
            "test_module.py",
        }
    assert ran.returncode == (1 if ci else 0), ran.stdout
    assert ci or not failed


def test_each_permitted_reason_is_given_by_a_test() -> None:
    """A reason without a test is removed."""
    sources = "".join(path.read_text("utf-8") for path in TESTS.rglob("test_*.py"))
    assert [reason for reason in PERMITTED if f'"{reason}' not in sources] == []
