"""Read untrusted files within limits: bytes, memory maps, and JSON of bounded size and depth.

Called while a model is opened and loaded. Each error names the file; it is a ModelUnavailable, and for files of the
operator a ConfigError.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from vectord.errors import ConfigError, ModelUnavailable

OPTION = "--allow-unknown-config"  # of allow_unknown_config in config/declared.py
_POINTER = b"version https://git-lfs.github.com/spec/"  # what `git clone` writes without Git LFS
JSON_LIMIT_BYTES = 8 * 2**20  # the longest known config.json (21,000 labels) has 1.6 MB


class Settings(Mapping[str, Any]):
    """The JSON object of one configuration file. It records the keys that are read, by `get` or by index.

    path: for messages; fields: {} if an optional file is missing; allowed: keys that the operator allows to be unread.
    """

    __slots__ = ("_read", "allowed", "fields", "path")

    def __init__(self, path: Path, fields: Mapping[str, Any], allowed: Iterable[str] = ()) -> None:
        self.path = path
        self.fields = fields
        self.allowed = frozenset(allowed)
        self._read = set(allowed)

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return self.fields[key]

    def __contains__(self, key: object) -> bool:
        return key in self.fields

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def items(self) -> ItemsView[str, Any]:
        """Return all entries without recording them: for code that treats all keys alike."""
        return self.fields.items()

    def value(self, key: str, kind: Any, default: Any = None) -> Any:
        """Return the value at `key`, or `default` without one. kind: its type, as msgspec checks it."""
        value = self.get(key)
        try:
            return default if value is None else msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise ModelUnavailable(f"{self.path}: {key} {repr(value)[:80]} is not supported: {error}") from None

    def section(self, key: str, defaults: Mapping[str, Any] = MappingProxyType({})) -> Settings:
        """Return the object at `key`, with the default of each entry that it lacks."""
        return self.of({**defaults, **self.value(key, dict[str, Any], {})})

    def of(self, fields: Mapping[str, Any]) -> Settings:
        """Return other entries for the same file, of which none is read yet."""
        return Settings(self.path, fields, self.allowed)

    def flag(self, key: str, default: bool) -> bool:
        """Return the boolean at `key`, or `default` without one."""
        return bool(self.value(key, bool, default))

    def one_of(self, key: str, supported: Collection[Any], default: Any = None) -> Any:
        """Return the value at `key`, which must be `supported`, or `default` without the key or if it is allowed."""
        value = self.get(key, default)
        if value in supported:
            return value
        if key not in self.allowed:
            names = " or ".join(str(each) for each in supported if each is not None)
            raise ModelUnavailable(
                f"{self.path}: {key} {repr(value)[:80]} is not supported; supported is {names}; {OPTION} {key} "
                "ignores it"
            )
        return default

    def whole(self, key: str, default: int | None = None, *, least: int = 1, most: int) -> int:
        """Return the whole number at `key`, or `default` without one."""
        value = self.get(key, default)
        if type(value) is not int or not least <= value <= most:
            found = "nothing" if value is None else repr(value)[:80]
            raise ModelUnavailable(
                f"{self.path}: {key} must be a whole number from {least:,} to {most:,}; found {found}"
            )
        return value

    def unread(self) -> dict[str, Any]:
        """Return the entries that no code has read so far."""
        return {key: value for key, value in self.fields.items() if key not in self._read}


def unread_settings(path: Path, fields: Mapping[str, Any]) -> Settings:
    """Return the same settings with no key read yet, for another reader; `path` if `fields` are not from a file."""
    if isinstance(fields, Settings):
        return fields.of(fields.fields)
    return Settings(path, fields)


def read_settings(path: Path, *, optional: bool = False, allowed: Collection[str] = ()) -> Settings:
    """Return the settings in the file; empty ones if it is `optional` and missing. Raises as `read_json_object`."""
    return Settings(path, {} if optional and not path.exists() else read_json_object(path), allowed)


def read_bytes(path: Path, limit_bytes: int) -> bytes:
    """Return the whole file."""
    if path.exists() and not path.is_file():
        raise ModelUnavailable(f"{path}: not a regular file")
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise ModelUnavailable(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > limit_bytes:
        raise ModelUnavailable(f"{path}: more than {limit_bytes:,} bytes")
    _refuse_pointer(path, data[: len(_POINTER)])
    return data


def read_operators_file(setting: str, value: str, limit_bytes: int) -> bytes:
    """Return the file that a setting names."""
    try:
        return read_bytes(Path(value).expanduser(), limit_bytes)
    except ModelUnavailable as error:
        raise ConfigError(f"{setting}: {error.message}") from error


def map_file(path: Path) -> mmap.mmap:
    """Return the file as a private map."""
    try:
        with path.open("rb") as file:
            # Copy on write: arrays over the map are writable, which some libraries require, and the file cannot change.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ModelUnavailable(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelUnavailable(f"{path}: the file is empty") from error
    _refuse_pointer(path, mapped[: len(_POINTER)])
    return mapped


def _refuse_pointer(path: Path, start: bytes) -> None:
    if start == _POINTER:
        raise ModelUnavailable(
            f"{path}: a pointer of Git LFS, not the file itself; `git lfs pull` in its folder gets it"
        )


def read_json_object(path: Path, *, limit_bytes: int = JSON_LIMIT_BYTES) -> dict[str, Any]:
    """Return the JSON object in the file."""
    value = read_json(path, limit_bytes=limit_bytes)
    if not isinstance(value, dict):
        raise ModelUnavailable(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_json(path: Path, *, limit_bytes: int = JSON_LIMIT_BYTES) -> Any:
    """Return the JSON value in the file."""
    return parse_json(read_bytes(path, limit_bytes), path)


def parse_json(data: bytes, path: Path) -> Any:
    """Return the JSON value of `data`, which comes from `path`."""
    try:
        value = json.loads(data)
        if b"\\ud" in data.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise ModelUnavailable(f"{path}: JSON nested too deeply") from None
    except UnicodeEncodeError:  # no tokenizer accepts such a text, and no response can contain it
        raise ModelUnavailable(f"{path}: a text with half a surrogate pair") from None
    except ValueError as error:  # json.JSONDecodeError, UnicodeDecodeError
        raise ModelUnavailable(f"{path}: not valid JSON ({error})") from error
