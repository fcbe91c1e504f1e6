"""requirements.lock against pyproject.toml, and the faults that `python -m audit` must tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from audit.lock import LOCK, MODEL_LOCK, Pin, faults, read_lock, wanted
from packaging.requirements import Requirement
from packaging.version import Version

from audit import licences

HASH = "--hash=sha256:" + "0" * 64


def test_the_lock_answers_pyproject() -> None:
    """Every dependency of a core install is in it, at a version that pyproject.toml allows, with hashes."""
    assert list(faults(read_lock(LOCK), wanted())) == []
    assert all(pin.hashes for pin in read_lock(MODEL_LOCK))


def test_licences_are_known() -> None:
    """Nothing in it forbids passing vectord on."""
    assert list(licences.faults(read_lock(LOCK))) == []


@pytest.mark.parametrize(
    ("lock", "says"),
    [
        ("", "in pyproject.toml, not in the lock"),
        ("a==1.0", "pinned without a hash"),
        (f"a==3.0 {HASH}", "wants <2"),
        (f"a==1.0 {HASH}\na==1.1 {HASH}", "two versions"),
    ],
    ids=["missing", "no hash", "another version", "twice"],
)
def test_a_lock_that_is_not_current_is_told(lock: str, says: str, tmp_path: Path) -> None:
    """In a line that says what to do."""
    (tmp_path / "lock").write_text(lock)
    assert any(says in fault for fault in faults(read_lock(tmp_path / "lock"), [Requirement("a<2")]))


@pytest.mark.parametrize("line", ["a", "a>=1", "a==1.*", "a @ https://example.org/a.whl"])
def test_what_is_not_pinned_is_no_lock(line: str, tmp_path: Path) -> None:
    """One version, from the index."""
    (tmp_path / "lock").write_text(line)
    with pytest.raises(ValueError, match="not pinned"):
        read_lock(tmp_path / "lock")


def test_other_versions_elsewhere_are_no_fault(tmp_path: Path) -> None:
    """numpy drops old Pythons: two pins whose markers exclude each other."""
    old, new = 'python_full_version < "3.12"', 'python_full_version >= "3.12"'
    (tmp_path / "lock").write_text(f"a==1.0 ; {old} {HASH}\na==1.1 ; {new} {HASH}\n")
    assert list(faults(read_lock(tmp_path / "lock"), [Requirement("a<2")])) == []


def test_a_licence_nobody_judged_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown ones too; what is not installed here says nothing."""
    said = {"a": "MIT", "b": "AGPL-3.0-only", "c": "", "d": None}
    monkeypatch.setattr(licences, "licence", said.get)
    assert [fault[0] for fault in licences.faults([Pin(name, Version("1"), 1) for name in said])] == ["b", "c"]
