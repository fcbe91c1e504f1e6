"""The secret that shared answers are signed with, from a setting or a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from vectord.config import EngineConfig
from vectord.config.sources import CommandLine, load
from vectord.engine.cache.stores.secret import MOST_BYTES, shared_secret
from vectord.errors import ConfigError

SECRET = "sixteen letters!"


def file_of(path: Path, content: bytes, mode: int = 0o640) -> EngineConfig:
    path.write_bytes(content)
    path.chmod(mode)
    return EngineConfig(shared_cache_secret_file=str(path))


def test_it_comes_from_the_setting_or_from_a_file(tmp_path: Path) -> None:
    """The same either way: an editor's line break at the end does not count. Without one nothing is signed."""
    assert shared_secret(EngineConfig(shared_cache_secret=SECRET)) == SECRET.encode()
    assert shared_secret(file_of(tmp_path / "secret", f"{SECRET}\n".encode())) == SECRET.encode()
    assert shared_secret(EngineConfig()) == b""


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"short", 0o600, "must hold 16 to 4096 bytes"),
        (b"x" * (MOST_BYTES + 1), 0o600, "must hold 16 to 4096 bytes"),
        (SECRET.encode(), 0o666, "may be written by others"),
    ],
    ids=["short", "long", "written by others"],
)
def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path, content: bytes, mode: int, why: str) -> None:
    """In one line that names the file and nothing of what it holds."""
    with pytest.raises(ConfigError, match=why) as refused:
        shared_secret(file_of(tmp_path / "secret", content, mode))
    assert content.decode() not in str(refused.value)


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    """As does being told twice."""
    with pytest.raises(ConfigError, match="cannot be read: FileNotFoundError"):
        shared_secret(EngineConfig(shared_cache_secret_file=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="set one of them"):
        shared_secret(EngineConfig(shared_cache_secret=SECRET, shared_cache_secret_file="x"))


def test_the_secret_is_never_shown(tmp_path: Path) -> None:
    """Neither as a setting nor in the error for one that is too short."""
    config = load(CommandLine(), {"SHARED_CACHE_SECRET": SECRET}, tmp_path).config
    assert config.engine.shared_cache_secret == SECRET
    assert SECRET not in repr(config)
    with pytest.raises(ConfigError) as refused:
        load(CommandLine(), {"SHARED_CACHE_SECRET": "too short"}, tmp_path)
    assert "too short" not in str(refused.value)
