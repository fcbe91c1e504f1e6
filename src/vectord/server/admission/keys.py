"""API keys: those of the settings, and named ones with rights and limits in a file that may change while it is used.

    [[keys]]
    name = "search"
    sha256 = "5e88..."             # of the key; `vectord key search` prints both
    admin = false                  # whether it may load and unload models
    models = ["bge-m3"]            # names it may use; default: all
    requests_per_minute = 600      # default: unlimited
    tokens_per_minute = 1_000_000  # default: unlimited
    lane = "bulk"                  # overrides the lane of its requests

Called on the event loop, through gate.py.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from vectord.errors import ConfigError, Forbidden, MalformedHead, NoSuchRoute, Unauthorized, plain_reason
from vectord.schema import Lane

CHECK_INTERVAL_S = 1.0  # how often a file is checked for changes

KEY_REQUIRED = "A key is required: send it as Authorization: Bearer KEY, x-api-key or api-key."
KEY_UNKNOWN = "The key is not one of this server's."
NOT_THE_ADMIN_KEY = "The key is not this server's admin key."
BARE_KEY_HEADERS = ("x-api-key", "api-key", "x-goog-api-key")
KEY_HEADERS = frozenset({"authorization", *BARE_KEY_HEADERS})
NO_SUCH_PATH = "Nothing is served at this path; /docs lists what is."

_log = logging.getLogger("vectord.keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The rights of one key. shared: several clients use it, and only their addresses distinguish them."""

    name: str
    digest: bytes = field(repr=False)  # SHA-256 of the key; the key itself is never stored
    admin: bool = False
    models: frozenset[str] | None = None  # None: all
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    lane: Lane | None = None
    shared: bool = False


class Keys:
    """Accepts the keys of the settings and of the file; without any of them the server is open to everyone.

    The admin routes exist only if some key has that right: `admin_key`, or a key of the file.
    """

    def __init__(
        self,
        accepted: Mapping[str, str],
        admin_key: str | None = None,
        file: KeysFile | None = None,
        *,
        requires_scheme: bool = False,
    ) -> None:
        """accepted: keys of the settings by name. A single one is shared by all clients; of two, each is one client.
        requires_scheme: refuse a key that `Authorization` has without the word Bearer."""
        self.is_open = not accepted and file is None  # requests need no key
        self._requires_scheme = requires_scheme
        self._file = file
        shared = len(accepted) == 1
        # The names differ from all names in a file, which have no slash: a name identifies the owner of files.
        self._configured = [
            Key(name=f"settings/{name}", digest=_digest(key), shared=shared) for name, key in accepted.items()
        ]
        if admin_key:
            self._configured.append(Key(name="settings/admin_key", digest=_digest(admin_key), admin=True, shared=True))
        self.anyone_operates = self.is_open and not self._configured  # also without a key
        self._from_file: Sequence[Key] = ()
        self._index = self._build_index()

    def lookup(self, headers: Mapping[str, str]) -> Key | None:
        """The key in the request, if it is one of this server's. headers: names in lower case, values as latin-1.

        Compares digests, of which a client can choose no part. Raises MalformedHead for different keys in two headers.
        """
        presented = presented_key(headers)
        if presented is None or (self._requires_scheme and presented == headers.get("authorization")):
            return None
        if not self.is_open and any(headers.get(name, presented) != presented for name in BARE_KEY_HEADERS):
            raise MalformedHead("The request has different keys in several headers; send one of them.")
        if self._file is not None and (current := self._file.current()) is not self._from_file:
            self._from_file = current
            self._index = self._build_index()
        return self._index.get(sha256(presented.encode("latin-1")).digest())

    def named(self, name: str) -> Key | None:
        """The key with this name, if it has not been removed."""
        current = () if self._file is None else self._file.current()
        return next((key for key in (*self._configured, *current) if key.name == name), None)

    def names(self) -> Sequence[str]:
        """The names of the keys that the file has now."""
        return [] if self._file is None else [key.name for key in self._file.current()]

    def require(self, key: Key | None, headers: Mapping[str, str]) -> None:
        """key: the result of `lookup`. Raises Unauthorized if the server requires a key and this is none."""
        if key is None and not self.is_open:
            raise Unauthorized(KEY_REQUIRED if presented_key(headers) is None else KEY_UNKNOWN)

    def require_admin(self, key: Key | None, headers: Mapping[str, str]) -> None:
        """As `require`, for the admin routes. Also raises Forbidden for an ordinary key, and NoSuchRoute if no key has
        the admin right."""
        if key is not None and key.admin:
            return
        if not any(known.admin for known in self._index.values()):
            self.require(key, headers)
            raise NoSuchRoute(NO_SUCH_PATH)
        if key is not None:
            raise Forbidden("This key may not load, unload, pull or remove models; that takes the admin key.")
        raise Unauthorized(KEY_REQUIRED if presented_key(headers) is None else NOT_THE_ADMIN_KEY)

    def _build_index(self) -> dict[bytes, Key]:
        """Keys by digest. A configured key overrides the same key in the file, and the admin key both."""
        return {key.digest: key for key in (*self._from_file, *self._configured)}


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key as sent: `Authorization: Bearer KEY`, `Authorization: KEY`, or KEY in one of BARE_KEY_HEADERS."""
    authorization = headers.get("authorization")
    if authorization is None:
        return next((headers[name] for name in BARE_KEY_HEADERS if headers.get(name)), None)
    scheme, _, value = authorization.partition(" ")
    return value.strip() if scheme.lower() == "bearer" and value else authorization.strip()


# --- the keys file --------------------------------------------------------------------------------------------

# A name begins with a letter, so that it never equals an address: both identify clients.
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z][A-Za-z0-9._-]{0,63}\Z")]
Quota: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10**12)]


class _KeyEntry(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Fa-f]{64}\Z")]
    admin: bool = False
    models: list[str] | None = None
    requests_per_minute: Quota | None = None
    tokens_per_minute: Quota | None = None
    lane: Literal["interactive", "bulk"] | None = None


class _KeysDocument(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[_KeyEntry]


class KeysFile:
    """The current keys of a file. If a changed file is invalid, the previous keys stay and the log has the error; a
    deleted file has no keys."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError, in one line, if the file is invalid."""
        self._path = Path(path)
        self._clock = clock
        self._version = _version(self._path)
        self._keys = read_keys(self._path)
        self._checked_s = clock()

    def current(self) -> Sequence[Key]:
        """The keys of the file; the same object until they change."""
        now_s = self._clock()
        if now_s - self._checked_s < CHECK_INTERVAL_S:
            return self._keys
        self._checked_s = now_s
        version = _version(self._path)
        if version == self._version:
            return self._keys
        self._version = version  # from before the file is read: a later write is seen by the next check
        if version is None:
            self._keys = ()
            _log.error("--api-keys-file: %r was deleted; its keys are no longer valid", str(self._path))
            return self._keys
        try:
            self._keys = read_keys(self._path)
        except ConfigError as problem:
            _log.error("%s; the previous keys stay in force", problem.message)
        else:
            _log.info("keys reloaded", extra={"fields": {"keys": len(self._keys)}})
        return self._keys


def read_keys(path: Path) -> Sequence[Key]:
    """The keys of a file; none for `keys = []`. Raises ConfigError, in one line without digests."""
    try:
        entries = msgspec.convert(tomllib.loads(_read_text(path)), _KeysDocument).keys
    except tomllib.TOMLDecodeError as problem:
        raise _invalid(path, f"is not TOML: {problem}") from None
    except RecursionError:
        raise _invalid(path, "is nested too deeply") from None
    except msgspec.ValidationError as problem:
        raise _invalid(path, f"does not contain valid keys: {problem}") from None
    keys = []
    for entry in entries:
        rights = msgspec.structs.asdict(entry)  # they have the same names
        digest = bytes.fromhex(rights.pop("sha256"))
        rights["models"] = None if entry.models is None else frozenset(entry.models)
        keys.append(Key(digest=digest, **rights))
    if len({key.name for key in keys}) < len(keys) or len({key.digest for key in keys}) < len(keys):
        raise _invalid(path, "contains a key twice")
    return keys


def new_key(name: str) -> tuple[str, str]:
    """(a new random key, its entry for the file). Raises ConfigError for an invalid name."""
    key = f"vectord-{secrets.token_urlsafe(32)}"
    digest = sha256(key.encode()).hexdigest()
    try:
        msgspec.convert({"name": name, "sha256": digest}, _KeyEntry)
    except msgspec.ValidationError:
        raise ConfigError(
            f"{name[:80]!r} is not a valid key name: expected a letter, then up to 63 letters, digits or ._-"
        ) from None
    return key, f'[[keys]]\nname = "{name}"\nsha256 = "{digest}"\n'


def _read_text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would block
            raise _invalid(path, "is not a regular file")
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read().decode("utf-8-sig")
    except (OSError, ValueError) as problem:  # ValueError: not UTF-8, or an invalid path
        raise _invalid(path, f"cannot be read: {plain_reason(problem)}") from None
    if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _invalid(path, "is writable by other users; run chmod go-w on it")
    return text


def _invalid(path: Path, what: str) -> ConfigError:
    return ConfigError(f"--api-keys-file: {str(path)!r} {what}")


def _version(path: Path) -> tuple[int, ...] | None:
    """Changes whenever the file is written; None if there is no file, () if the file system does not answer."""
    try:
        facts = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        return ()
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
