"""Whether every locked package has a licence that lets vectord be passed on. Read from what is installed, offline."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata

from audit.lock import Pin

# Permissive ones; MPL 2.0 asks for changes to its own files only. Anything else is for a person to judge.
ALLOWED = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|Unlicense|Zlib|0BSD|MPL[- ]2\.0|"
    r"Mozilla Public License 2\.0)\b",
    re.IGNORECASE,
)
REFUSED = re.compile(r"\b(A?GPL|SSPL|BUSL|Commons Clause|Proprietary|Non-?Commercial)\b", re.IGNORECASE)


def faults(pins: Sequence[Pin]) -> Iterator[str]:
    """Packages without a licence known to be fine, a line each; those that are not installed here say nothing."""
    for pin in pins:
        said = licence(pin.name)
        if said is None:
            continue
        if REFUSED.search(said.replace("LGPL", "")) or not ALLOWED.search(said):
            yield f"{pin.name}: licence {said[:80] or 'unknown'!r}"


def licence(name: str) -> str | None:
    """What the installed package says of its licence; None if it is not installed."""
    try:
        facts = metadata(name)
    except PackageNotFoundError:
        return None
    said = [facts.get("License-Expression"), *_classified(facts), (facts.get("License") or "")[:200]]
    return next((text for text in said if text), "")


def _classified(facts: PackageMetadata) -> list[str]:
    classifiers = facts.get_all("Classifier") or []
    return [text.rpartition("::")[2].strip() for text in classifiers if text.startswith("License ::")]
