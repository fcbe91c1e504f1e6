"""Named keys in a file of the operator's: whose each is, and what it may. Read at start and whenever it changes.

    [[keys]]
    name = "search"
    sha256 = "5e88..."             # of the key; `vectord key search` prints both
    admin = false                  # whether it may load and unload models
    models = ["bge-m3"]            # names it may use; without this line all
    requests_per_minute = 600      # without this line any number, as
    tokens_per_minute = 1_000_000
    lane = "bulk"                  # whatever its requests say; without this line theirs

auth.py looks keys up, on the event loop; the file is looked at once a second at most.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from vectord.errors import ConfigError
from vectord.schema import Lane

LOOK_EVERY_S = 1.0
MAX_FILE_BYTES = 4 * 2**20

Stamp: TypeAlias = tuple[int, int, int] | None  # None: the file is not there

_log = logging.getLogger("vectord.keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a key may. `shared`: it has many users, whom only their addresses tell apart."""

    name: str
    digest: bytes = field(repr=False)  # SHA-256 of the key itself, which nobody here has
    admin: bool = False
    models: frozenset[str] | None = None  # None: all
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    lane: Lane | None = None
    shared: bool = False


# A letter first, so that no name is an address: both are clients.
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z][A-Za-z0-9._-]{0,63}\Z")]
Quota: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10**12)]


class _Stanza(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Fa-f]{64}\Z")]
    admin: bool = False
    models: list[str] | None = None
    requests_per_minute: Quota | None = None
    tokens_per_minute: Quota | None = None
    lane: Literal["interactive", "bulk"] | None = None

    def key(self) -> Key:
        return Key(
            name=self.name,
            digest=bytes.fromhex(self.sha256),
            admin=self.admin,
            models=None if self.models is None else frozenset(self.models),
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            lane=self.lane,
        )


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[_Stanza]


class KeysFile:
    """The keys of a file as it is now. Of a broken one the log tells, and the keys of before stay."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError, in one line, if the file cannot be used."""
        self._path = Path(path)
        self._clock = clock
        self._stamp = _stamp(self._path)
        self._keys = read_keys(self._path)
        self._looked_s = clock()

    def current(self) -> Sequence[Key]:
        """The same object for as long as nothing changed."""
        now_s = self._clock()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._look()
        return self._keys

    def _look(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp  # of before the reading: what is written meanwhile is seen at the next look
        try:
            self._keys = read_keys(self._path)
        except ConfigError as problem:
            _log.error("%s; the keys of before stay in force", problem.message)
        else:
            _log.info("keys read anew", extra={"fields": {"keys": len(self._keys)}})


def read_keys(path: Path) -> Sequence[Key]:
    """The keys of a file; none if it says `keys = []`. Raises ConfigError, in one line that holds no digest."""
    try:
        stanzas = msgspec.convert(tomllib.loads(_text(path)), _File).keys
    except tomllib.TOMLDecodeError as problem:
        raise _broken(path, f"is not TOML: {problem}") from None
    except RecursionError:
        raise _broken(path, "is nested too deeply") from None
    except msgspec.ValidationError as problem:
        raise _broken(path, f"holds something else than keys: {problem}") from None
    keys = tuple(stanza.key() for stanza in stanzas)
    if len({key.name for key in keys}) < len(keys) or len({key.digest for key in keys}) < len(keys):
        raise _broken(path, "names a key twice")
    return keys


def new_key(name: str) -> tuple[str, str]:
    """(a new random key, what stands in the file for it). Raises ConfigError for what is no name."""
    key = f"vectord-{secrets.token_urlsafe(32)}"
    digest = sha256(key.encode()).hexdigest()
    try:
        msgspec.convert({"name": name, "sha256": digest}, _Stanza)
    except msgspec.ValidationError:
        raise ConfigError(
            f"{name[:80]!r} is no name for a key: expected a letter, and up to 63 letters, digits or ._- behind it"
        ) from None
    return key, f'[[keys]]\nname = "{name}"\nsha256 = "{digest}"\n'


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_FILE_BYTES + 1)
        text = content.decode()
    except (OSError, ValueError) as problem:  # ValueError: not UTF-8, or no path at all
        raise _broken(path, f"cannot be read: {type(problem).__name__}") from None
    if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _broken(path, "may be written by others than its owner (chmod go-w mends that)")
    if len(content) > MAX_FILE_BYTES:
        raise _broken(path, f"is larger than {MAX_FILE_BYTES} bytes")
    return text


def _broken(path: Path, what: str) -> ConfigError:
    return ConfigError(f"--api-keys-file: {str(path)!r} {what}")


def _stamp(path: Path) -> Stamp:
    try:
        facts = path.stat()
    except (OSError, ValueError):
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
