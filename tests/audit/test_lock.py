"""requirements.lock matches pyproject.toml, and `python -m audit` reports faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from audit.lock import LOCK, MODEL_LOCK, Pin, faults, read_lock, wanted
from packaging.requirements import Requirement
from packaging.version import Version

from audit import licences

HASH = "--hash=sha256:" + "0" * 64


def test_the_lock_matches_pyproject() -> None:
    """It pins every dependency of a core installation to an allowed version, with hashes."""
    assert list(faults(read_lock(LOCK), wanted())) == []
    assert all(pin.hashes for pin in read_lock(MODEL_LOCK))


def test_licences_are_known() -> None:
    """No licence in it forbids redistribution."""
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
def test_an_outdated_lock_is_reported(lock: str, says: str, tmp_path: Path) -> None:
    """One line states the remedy."""
    (tmp_path / "lock").write_text(lock)
    assert any(says in fault for fault in faults(read_lock(tmp_path / "lock"), [Requirement("a<2")]))


@pytest.mark.parametrize("line", ["a", "a>=1", "a==1.*", "a @ https://example.org/a.whl"])
def test_unpinned_requirements_are_rejected(line: str, tmp_path: Path) -> None:
    """A lock has one version per package, from the index."""
    (tmp_path / "lock").write_text(line)
    with pytest.raises(ValueError, match="not pinned"):
        read_lock(tmp_path / "lock")


def test_versions_per_python_are_allowed(tmp_path: Path) -> None:
    """Two pins are allowed if their markers exclude each other, as for numpy."""
    old, new = 'python_full_version < "3.12"', 'python_full_version >= "3.12"'
    (tmp_path / "lock").write_text(f"a==1.0 ; {old} {HASH}\na==1.1 ; {new} {HASH}\n")
    assert list(faults(read_lock(tmp_path / "lock"), [Requirement("a<2")])) == []


def test_an_unreviewed_licence_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown licences are faults; packages that are not installed are skipped."""
    said = {"a": "MIT", "b": "AGPL-3.0-only", "c": "", "d": None}
    monkeypatch.setattr(licences, "licence", said.get)
    assert [fault[0] for fault in licences.faults([Pin(name, Version("1"), 1) for name in said])] == ["b", "c"]
