"""The operator's own list of models, in the form of Simple Inference Server's configs/model_config.yaml.

    models:
      - name: "bge-m3"                                   what clients call it; hf_repo_id where it is left out
        hf_repo_id: "BAAI/bge-m3"                        a hub id, or a folder as hub.py takes one
        handler: "app.models.bge_m3.BgeM3Embedding"      may be left out
        pooling: "mean"                                  may be left out; mean or last_token there, cls here too

models.py reads it at start, on the main thread, if MODEL_CONFIG names one; it imports this module only then, as yaml
takes 15 ms. The file says which models there are, not which are served. A handler is the dotted path of a class: that
server's own embedding classes mean models which are served here without any, so they come back as None; any other is
the operator's class. Here it is looked at and not imported.

The file is read event by event, every value as text. yaml.safe_load would follow aliases, which multiply, recurse as
deep as the file says, and keep the last of two equal keys without a word.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from vectord.checkpoints.spec import Pooling
from vectord.errors import ConfigError

log = logging.getLogger("vectord.checkpoints")

FILE_LIMIT_BYTES = 2**16  # the longest published has 4 kB; the slowest file of this size takes 0.5 s
DEPTH_LIMIT = 8  # the published ones have 4
TEXT_LIMIT_CHARACTERS = 1000  # of a name, a path, a handler

NATIVE_HANDLERS = frozenset(
    {
        "app.models.bge_m3.BgeM3Embedding",
        "app.models.embedding_gemma.EmbeddingGemmaEmbedding",
        "app.models.hf_embedding.HFEmbeddingModel",  # in the place of both, in its later versions
    }
)

_KEYS = ("name", "hf_repo_id", "handler", "pooling")
_DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
_NAME = re.compile(r"[^\s,;]+")  # commas and semicolons part the names of MODELS
_POOLINGS: Mapping[str, Pooling] = {"mean": "mean", "last_token": "last", "cls": "cls"}

Value: TypeAlias = "str | list[Value] | dict[str, Value] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    name: str
    model: str  # for hub.resolve
    handler: str | None  # module.Class of the operator's own; None: served natively
    pooling: Pooling | None  # None: the model's own


def read_catalogue_file(path: Path) -> tuple[FileEntry, ...]:
    """The models of the file, in order; no two have the same name, whatever its case.

    Keys that nobody here reads are logged, once. Raises ConfigError naming file, entry and key: no such file, too
    large, not YAML, anchors or tags in it, a key twice, a value of the wrong kind, a name twice.
    """
    document = _parse(_read(path), path)
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected `models:` with a list of models, got {_kind(document)}")
    tables = _tables(document.get("models"), path)
    entries = tuple(_entry(table, f"{path}: models[{index}]") for index, table in enumerate(tables))
    _check_names(entries, path)
    _log_unread(
        [*(document.keys() - {"models"}), *(key for table in tables for key in table if key not in _KEYS)], path
    )
    return entries


# --- entries --------------------------------------------------------------------------------------------------


def _tables(listed: Value, path: Path) -> list[dict[str, Value]]:
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{path}: models: expected a list of at least one model, got {_kind(listed)}")
    tables = []
    for index, item in enumerate(listed):
        if not isinstance(item, dict):
            raise ConfigError(f"{path}: models[{index}]: expected the keys {', '.join(_KEYS)}, got {_kind(item)}")
        tables.append(item)
    return tables


def _entry(table: Mapping[str, Value], where: str) -> FileEntry:
    model = _text(table, "hf_repo_id", where)
    if model is None:
        raise ConfigError(f"{where}: no hf_repo_id; expected a hub id such as BAAI/bge-m3, or a folder")
    name = _text(table, "name", where) or model
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: name: expected no spaces, commas or semicolons, got {_shown(name)}")
    return FileEntry(name=name, model=model, handler=_handler(table, where), pooling=_pooling(table, where))


def _handler(table: Mapping[str, Value], where: str) -> str | None:
    handler = _text(table, "handler", where)
    if handler is None or handler in NATIVE_HANDLERS:
        return None
    if not _DOTTED_PATH.fullmatch(handler):
        raise ConfigError(f"{where}: handler: expected a path such as package.module.Class, got {_shown(handler)}")
    return handler


def _pooling(table: Mapping[str, Value], where: str) -> Pooling | None:
    text = _text(table, "pooling", where)
    if text is None:
        return None
    if text.lower() not in _POOLINGS:
        raise ConfigError(f"{where}: pooling: expected one of {', '.join(_POOLINGS)}, got {_shown(text)}")
    return _POOLINGS[text.lower()]


def _text(table: Mapping[str, Value], key: str, where: str) -> str | None:
    """The text under `key`; None if it is missing, null or empty."""
    value = table.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {key}: expected a text, got {_kind(value)}")
    if len(value) > TEXT_LIMIT_CHARACTERS:
        raise ConfigError(f"{where}: {key}: at most {TEXT_LIMIT_CHARACTERS} characters, got {len(value):,}")
    if not value.isprintable():
        raise ConfigError(f"{where}: {key}: expected printable characters on one line, got {_shown(value)}")
    return value


def _check_names(entries: Sequence[FileEntry], path: Path) -> None:
    first: dict[str, int] = {}
    for index, entry in enumerate(entries):
        before = first.setdefault(entry.name.lower(), index)
        if before != index:
            raise ConfigError(f"{path}: models[{index}]: name: {_shown(entry.name)} is that of models[{before}] too")


def _log_unread(keys: Sequence[str], path: Path) -> None:
    if keys:
        counted = (f"{_shown(key)} ({count} times)" for key, count in Counter(keys).most_common(8))
        log.warning("%s: keys that are not read here: %s", path, ", ".join(counted))


def _kind(value: Value) -> str:
    if not value:
        return "nothing"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "keys and values"


def _shown(text: str) -> str:
    """The operator's own text, on one line and no longer than one."""
    shown = repr(text)
    return shown if len(shown) <= 80 else shown[:77] + "..."


# --- YAML -----------------------------------------------------------------------------------------------------


def _read(path: Path) -> bytes:
    if not path.is_file():  # nor a pipe, which would block
        raise ConfigError(f"{path}: no such file")
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > FILE_LIMIT_BYTES:
        raise ConfigError(f"{path}: more than {FILE_LIMIT_BYTES:,} bytes")
    return data


def _parse(data: bytes, path: Path) -> Value:
    """The one document of the file. The parser reads as it is asked, so that a refusal costs no further reading."""
    try:
        return _document(yaml.parse(data, Loader=yaml.SafeLoader), path)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML ({' '.join(str(error).split())[:200]})") from None


def _document(events: Iterator[Any], path: Path) -> Value:
    next(events)  # the stream's start
    if isinstance(next(events), yaml.StreamEndEvent):
        return None
    value = _value(next(events), events, path, depth=0)
    next(events)  # the document's end
    if not isinstance(next(events), yaml.StreamEndEvent):
        raise ConfigError(f"{path}: expected one YAML document, found a second")
    return value


def _value(event: Any, events: Iterator[Any], path: Path, depth: int) -> Value:
    where = f"{path}: line {event.start_mark.line + 1}"
    if event.anchor is not None:  # an alias carries the name of its anchor there
        raise ConfigError(f"{where}: anchors and aliases are not read; write the value out")
    if event.tag is not None:
        raise ConfigError(f"{where}: tags such as !!str are not read; write the value alone")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if depth == DEPTH_LIMIT:
        raise ConfigError(f"{where}: nested deeper than {DEPTH_LIMIT} levels")
    if isinstance(event, yaml.MappingStartEvent):
        return _mapping(events, path, depth + 1)
    items = []
    while not isinstance(item := next(events), yaml.SequenceEndEvent):
        items.append(_value(item, events, path, depth + 1))
    return items


def _scalar(event: Any) -> str | None:
    """A text as it stands; None for YAML's null, which is only null without quotes."""
    text: str = event.value
    plain = event.implicit[0]
    return None if plain and text in ("", "~", "null", "Null", "NULL") else text


def _mapping(events: Iterator[Any], path: Path, depth: int) -> dict[str, Value]:
    mapping: dict[str, Value] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        where = f"{path}: line {event.start_mark.line + 1}"
        key = _value(event, events, path, depth)
        if not isinstance(key, str):
            raise ConfigError(f"{where}: expected a text as key, got {_kind(key)}")
        if key in mapping:
            raise ConfigError(f"{where}: key {_shown(key)} occurs twice")
        mapping[key] = _value(next(events), events, path, depth)
    return mapping
