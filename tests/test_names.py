"""A class name has one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src/vectord"

# The client imports nothing of the server, so that it repeats these public names with the same meaning.
REPEATED = {
    *("ChunkOptions", "Embeddings", "InputPage", "Label", "Muvera", "Overloaded", "Ranked", "Span"),
    *("TextOptions", "Token", "Unauthorized", "Unavailable"),
}
WIRE = {"Usage"}  # of a product's wire types: its body calls the object so


def _classes(*folders: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for folder in folders:
        for path in sorted(folder.rglob("*.py") if folder.is_dir() else [folder]):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(path.relative_to(SOURCE).as_posix())
    return found


def test_no_two_classes_share_a_name() -> None:
    """Of public classes. Wire types of products are compared with the other classes only: each product has its own."""
    inner = _classes(*(place for place in SOURCE.iterdir() if place.name not in ("products", "__pycache__")))
    shared = {name: places for name, places in inner.items() if len(places) > 1}
    assert shared.keys() == REPEATED, shared
    assert all(any(place.startswith("client/") for place in places) for places in shared.values())
    core = {name for name, places in inner.items() if not all(place.startswith("client/") for place in places)}
    assert _classes(SOURCE / "products").keys() & core - REPEATED == WIRE
