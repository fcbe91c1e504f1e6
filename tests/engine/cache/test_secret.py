"""The secret that signs shared answers, from a setting or a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from vectord.config import EngineConfig
from vectord.config.sources import CommandLine, load
from vectord.engine.cache.secret import MAX_BYTES, shared_secret
from vectord.errors import ConfigError

SECRET = "sixteen letters!"


def file_of(path: Path, content: bytes, mode: int = 0o640) -> EngineConfig:
    path.write_bytes(content)
    path.chmod(mode)
    return EngineConfig(shared_cache_secret_file=str(path))


def test_the_secret_comes_from_the_setting_or_a_file(tmp_path: Path) -> None:
    """A line break at the end of the file does not count. Without a secret nothing is signed."""
    assert shared_secret(EngineConfig(shared_cache_secret=SECRET)) == SECRET.encode()
    assert shared_secret(file_of(tmp_path / "secret", f"{SECRET}\n".encode())) == SECRET.encode()
    assert shared_secret(EngineConfig()) == b""


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"short", 0o600, "must hold 16 to 4096 bytes"),
        (b"x" * (MAX_BYTES + 1), 0o600, "must hold 16 to 4096 bytes"),
        (SECRET.encode(), 0o666, "is writable by others"),
    ],
    ids=["short", "long", "writable by others"],
)
def test_an_invalid_secret_file_stops_the_start(tmp_path: Path, content: bytes, mode: int, why: str) -> None:
    """The error names the file and does not show its content."""
    with pytest.raises(ConfigError, match=why) as refused:
        shared_secret(file_of(tmp_path / "secret", content, mode))
    assert content.decode() not in str(refused.value)


def test_a_missing_secret_file_stops_the_start(tmp_path: Path) -> None:
    """So does setting both options."""
    with pytest.raises(ConfigError, match="cannot be read: FileNotFoundError"):
        shared_secret(EngineConfig(shared_cache_secret_file=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="set one of them"):
        shared_secret(EngineConfig(shared_cache_secret=SECRET, shared_cache_secret_file="x"))


def test_the_secret_is_not_shown(tmp_path: Path) -> None:
    """Neither in the settings nor in the error for a secret that is too short."""
    config = load(CommandLine(), {"SHARED_CACHE_SECRET": SECRET}, tmp_path).config
    assert config.engine.shared_cache_secret == SECRET
    assert SECRET not in repr(config)
    with pytest.raises(ConfigError) as refused:
        load(CommandLine(), {"SHARED_CACHE_SECRET": "too short"}, tmp_path)
    assert "too short" not in str(refused.value)
