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
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from vectord.checkpoints.files.read import read_operators_file
from vectord.checkpoints.spec import Pooling, RequestedModel
from vectord.errors import ConfigError

log = logging.getLogger("vectord.checkpoints")

FILE_LIMIT_BYTES = 2**16  # the longest published file has 4 kB

NATIVE_HANDLERS = frozenset(
    {
        "app.models.bge_m3.BgeM3Embedding",
        "app.models.embedding_gemma.EmbeddingGemmaEmbedding",
        "app.models.hf_embedding.HFEmbeddingModel",  # replaces both in later versions
    }
)
_POOLINGS: Mapping[str, Pooling] = {"mean": "mean", "last_token": "last", "cls": "cls"}


class _CatalogueModel(msgspec.Struct):
    hf_repo_id: Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]+\Z")]
    name: Annotated[str, Meta(pattern=r"^[^\s,;\x00]*\Z")] | None = None  # commas and semicolons separate MODELS
    handler: Annotated[str, Meta(pattern=r"^([A-Za-z_]\w*(\.[A-Za-z_]\w*)+)?\Z")] | None = None
    pooling: Annotated[str, Meta(pattern=rf"(?i)^({'|'.join(_POOLINGS)})?\Z")] | None = None

    def requested(self) -> RequestedModel:
        handler = None if self.handler in NATIVE_HANDLERS else self.handler or None
        pooling = _POOLINGS.get((self.pooling or "").lower())
        return RequestedModel(self.hf_repo_id, self.name or self.hf_repo_id, handler, pooling)


class _File(msgspec.Struct):
    models: Annotated[list[_CatalogueModel], Meta(min_length=1)]


def read_catalogue_file(path: Path) -> tuple[RequestedModel, ...]:
    """Return the models of the file, in order. Each has a name, and no two names are equal, whatever their case.

    Logs unknown keys.
    """
    data = read_operators_file("model_catalogue", str(path), FILE_LIMIT_BYTES)
    try:
        document = yaml.load(data, _Loader)  # noqa: S506  a loader that makes only texts, lists and dicts
        entries = [model.requested() for model in msgspec.convert(document, _File).models]
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML ({' '.join(str(error).split())[:200]})") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    names: set[str] = set()
    for index, entry in enumerate(entries):
        name = (entry.name or "").lower()
        if name in names:
            raise ConfigError(f"{path}: models[{index}].name: {entry.name!r} is the name of an earlier model too")
        names.add(name)
    keys = {*(document.keys() - {"models"}), *(key for table in document["models"] for key in table)}
    if unread := sorted(keys - {*_CatalogueModel.__struct_fields__}):
        log.warning("%s: unknown keys, ignored: %s", path, ", ".join(map(repr, unread)))
    return tuple(entries)


class _Loader(yaml.BaseLoader):
    """Reads every scalar as a text, except for a null without quotes."""

    def construct_scalar(self, node: Any) -> Any:
        return None if node.style is None and node.value in ("", "~", "null", "Null", "NULL") else node.value
