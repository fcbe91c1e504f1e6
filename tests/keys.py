"""Files of keys for the setting api_keys_file."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path


def entry(name: str, key: str = "", **rights: object) -> str:
    """The file's entry for `key`, by default a key equal to its name. rights: in TOML."""
    lines = [f'name = "{name}"', f'sha256 = "{sha256((key or name).encode()).hexdigest()}"']
    return "\n".join(["[[keys]]", *lines, *(f"{field} = {value}" for field, value in rights.items()), ""])


def keys_file(folder: Path, *entries: str) -> str:
    """Replaces the file, as editors do, so that its inode differs even if its time does not."""
    fresh = folder / "keys.new"
    fresh.touch(0o600)
    fresh.write_text("\n".join(entries) or "keys = []")
    return str(fresh.replace(folder / "keys.toml"))
