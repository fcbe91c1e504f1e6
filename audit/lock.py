"""requirements.lock: every package of a core install, pinned, with the hashes of its files. `make lock` writes it.

Whether it is what uv would write today only the index can tell; whether it answers pyproject.toml can be told offline.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
MODEL_LOCK = ROOT / "requirements-model.lock"  # the default model's package, of which only the files are wanted

_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Pin:
    name: str
    version: Version
    hashes: int
    marker: Marker | None = None  # where it is installed; None: everywhere


def read_lock(path: Path = LOCK) -> list[Pin]:
    """The pins of the file. Raises ValueError, naming the line, for anything but a name, a version and hashes."""
    text = path.read_text("utf-8").replace("\\\n", " ")
    lines = (line.strip() for line in text.splitlines())
    return [_pin(line) for line in lines if line and not line.startswith("#")]


def _pin(line: str) -> Pin:
    hashes = len(_HASH.findall(line))
    requirement = Requirement(line.partition("--hash")[0].strip())
    (specifier, *others) = requirement.specifier or [None]
    if specifier is None or others or specifier.operator != "==" or "*" in specifier.version or requirement.url:
        raise ValueError(f"{line[:60]}: not pinned to one version")
    return Pin(canonicalize_name(requirement.name), Version(specifier.version), hashes, requirement.marker)


def wanted(pyproject: Path = ROOT / "pyproject.toml") -> list[Requirement]:
    """What the core install needs."""
    return [Requirement(text) for text in tomllib.loads(pyproject.read_text("utf-8"))["project"]["dependencies"]]


def faults(pins: Sequence[Pin], requirements: Sequence[Requirement]) -> Iterator[str]:
    """What is wrong with the lock, a line each."""
    by_name: dict[str, list[Pin]] = {}
    for pin in pins:
        by_name.setdefault(pin.name, []).append(pin)
        if not pin.hashes:
            yield f"{pin.name}: pinned without a hash"
    for requirement in requirements:
        found = by_name.get(canonicalize_name(requirement.name), [])
        if not found:
            yield f"{requirement.name}: in pyproject.toml, not in the lock (make lock)"
        for pin in found:
            if not requirement.specifier.contains(pin.version, prereleases=True):
                yield f"{pin.name}: locked at {pin.version}; pyproject.toml wants {requirement.specifier} (make lock)"
    for name, several in by_name.items():
        for place in _PLACES:
            here = [pin for pin in several if pin.marker is None or pin.marker.evaluate(dict(place))]
            if len(here) > 1:
                yield f"{name}: two versions for {place}"


_PLACES: Sequence[Mapping[str, str]] = tuple(
    {"python_version": version, "python_full_version": f"{version}.0", "sys_platform": system}
    for version in ("3.11", "3.12", "3.13", "3.14")
    for system in ("linux", "darwin", "win32")
)
