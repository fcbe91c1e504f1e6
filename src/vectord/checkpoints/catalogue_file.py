"""Read the operator's own list of models, a YAML file.

    models:
      - name: "bge-m3"                                   the name for clients; default: hf_repo_id
        hf_repo_id: "BAAI/bge-m3"                        a hub id, or a folder as hub.py accepts it
        handler: "app.models.bge_m3.BgeM3Embedding"      optional
        pooling: "mean"                                  optional: mean, last_token or cls

engine/models reads the file at start if MODEL_CONFIG names one, and imports this module only then, because yaml takes
15 ms. A handler is the dotted path of a class, which is checked here but not imported. The classes in
NATIVE_HANDLERS stand for models that vectord serves itself; their handler becomes None.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from vectord.checkpoints.spec import Pooling, RequestedModel
from vectord.errors import ConfigError

log = logging.getLogger("vectord.checkpoints")

FILE_LIMIT_BYTES = 2**16  # the longest published file has 4 kB
TEXT_LIMIT_CHARACTERS = 1000  # of a name, a path, a handler

NATIVE_HANDLERS = frozenset(
    {
        "app.models.bge_m3.BgeM3Embedding",
        "app.models.embedding_gemma.EmbeddingGemmaEmbedding",
        "app.models.hf_embedding.HFEmbeddingModel",  # replaces both in later versions
    }
)

_DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
_NAME = re.compile(r"[^\s,;]+")  # commas and semicolons separate the names in MODELS
_POOLINGS: Mapping[str, Pooling] = {"mean": "mean", "last_token": "last", "cls": "cls"}

_Text = Annotated[str, msgspec.Meta(max_length=TEXT_LIMIT_CHARACTERS)]


class _CatalogueModel(msgspec.Struct):
    hf_repo_id: _Text | None = None
    name: _Text | None = None
    handler: _Text | None = None
    pooling: _Text | None = None


class _File(msgspec.Struct):
    models: Annotated[list[_CatalogueModel], msgspec.Meta(min_length=1)]


def read_catalogue_file(path: Path) -> tuple[RequestedModel, ...]:
    """Return the models of the file, in order. Each has a name, and no two names are equal, whatever their case.

    Logs unknown keys.
    """
    document = _load(path)
    try:
        models = msgspec.convert(document, _File).models
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    entries: dict[str, RequestedModel] = {}
    for index, model in enumerate(models):
        entry = _entry(model, f"{path}: models[{index}]")
        name = entry.name or entry.model
        if entries.setdefault(name.lower(), entry) is not entry:
            raise ConfigError(f"{path}: models[{index}].name: {_shown(name)} is the name of an earlier model too")
    tables = document["models"]
    unread = [
        *(document.keys() - {"models"}),
        *(k for t in tables for k in t if k not in _CatalogueModel.__struct_fields__),
    ]
    if unread:
        counted = (f"{_shown(key)} ({count} times)" for key, count in Counter(unread).most_common(8))
        log.warning("%s: unknown keys, ignored: %s", path, ", ".join(counted))
    return tuple(entries.values())


def _entry(model: _CatalogueModel, where: str) -> RequestedModel:
    for key in _CatalogueModel.__struct_fields__:
        if not (value := getattr(model, key) or "").isprintable():
            raise ConfigError(f"{where}.{key}: expected printable characters on one line, got {_shown(value)}")
    if not model.hf_repo_id:
        raise ConfigError(f"{where}: no hf_repo_id; expected a hub id such as BAAI/bge-m3, or a folder")
    name, pooling = model.name or model.hf_repo_id, (model.pooling or "").lower()
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}.name: expected no spaces, commas or semicolons, got {_shown(name)}")
    handler = None if model.handler in NATIVE_HANDLERS else model.handler or None
    if handler is not None and not _DOTTED_PATH.fullmatch(handler):
        raise ConfigError(f"{where}.handler: expected a path such as package.module.Class, got {_shown(handler)}")
    if pooling and pooling not in _POOLINGS:
        raise ConfigError(f"{where}.pooling: expected one of {', '.join(_POOLINGS)}, got {_shown(pooling)}")
    return RequestedModel(model.hf_repo_id, name, handler, _POOLINGS.get(pooling))


def _shown(text: str) -> str:
    """The operator's own text, on one line of at most 80 characters."""
    shown = repr(text)
    return shown if len(shown) <= 80 else shown[:77] + "..."


# --- YAML -----------------------------------------------------------------------------------------------------


class _Loader(yaml.BaseLoader):
    """Reads every scalar as a text, except for a null without quotes."""

    def construct_scalar(self, node: Any) -> Any:
        return None if node.style is None and node.value in ("", "~", "null", "Null", "NULL") else node.value


def _load(path: Path) -> Any:
    """The one document of the file."""
    if not path.is_file():  # nor a pipe, which would block
        raise ConfigError(f"{path}: there is no such regular file")
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
        if len(data) > FILE_LIMIT_BYTES:
            raise ConfigError(f"{path}: more than {FILE_LIMIT_BYTES:,} bytes")
        return yaml.load(data, _Loader)  # noqa: S506  a loader that makes only texts, lists and dicts
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML ({' '.join(str(error).split())[:200]})") from None
