"""A model's folder with the JSON files that say what kind of model it is, each read once: `open_folder(located)`.

reader.py opens it at start; kind.py, the files of the single kinds, lengths.py and prompts.py look things up in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vectord.checkpoints import catalogue
from vectord.checkpoints.files.json_file import read_json_object, read_optional_json_object
from vectord.checkpoints.hub import Located
from vectord.checkpoints.modules import Module, read_modules
from vectord.errors import ModelUnavailable

_MODEL_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ARCHITECTURES_LIMIT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    root: Path
    name: str  # the last part of the model's id, in lower case
    entry: catalogue.Entry | None  # what the catalogue knows of a model of that id
    modules: tuple[Module, ...]  # of modules.json; () without one
    transformer: Path  # the folder of config.json, tokenizer and weights; usually `root`
    model_type: str
    architectures: tuple[str, ...]  # classes of transformers; the first says what the model was saved as
    config: Mapping[str, Any]  # config.json, with the is_causal that the catalogue knows where it says none
    sentence: Mapping[str, Any]  # config_sentence_transformers.json; {} without one, as those below
    transformer_module: Mapping[str, Any]  # sentence_bert_config.json
    tokenizer_config: Mapping[str, Any]

    @property
    def config_path(self) -> Path:
        return self.transformer / "config.json"

    @property
    def sentence_path(self) -> Path:
        return self.root / "config_sentence_transformers.json"

    def is_saved_as(self, suffix: str) -> bool:
        """Whether the model was saved by a class of transformers whose name ends so: ForMaskedLM ..."""
        return any(architecture.endswith(suffix) for architecture in self.architectures)


def open_folder(located: Located) -> ModelFolder:
    """Raises ModelUnavailable, naming the file: missing or broken, a module outside the folder or of no known kind."""
    modules = read_modules(located.folder)
    transformer = modules[0].folder if modules else located.folder
    entry = catalogue.find(located.model_id)
    config = _with_direction(read_json_object(transformer / "config.json"), entry)
    return ModelFolder(
        root=located.folder,
        name=located.model_id.rpartition("/")[2].lower(),
        entry=entry,
        modules=modules,
        transformer=transformer,
        model_type=_model_type(transformer / "config.json", config),
        architectures=_architectures(config),
        config=config,
        sentence=read_optional_json_object(located.folder / "config_sentence_transformers.json"),
        transformer_module=_transformer_module(transformer),
        tokenizer_config=read_optional_json_object(transformer / "tokenizer_config.json"),
    )


def _with_direction(config: Mapping[str, Any], entry: catalogue.Entry | None) -> Mapping[str, Any]:
    """Some models read both ways by their own code, which is never run, and their config.json may not say so."""
    if entry is None or entry.is_causal is None:
        return config
    return {"is_causal": entry.is_causal, **config}


def _model_type(path: Path, config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not _MODEL_TYPE.fullmatch(model_type):
        raise ModelUnavailable(f"{path}: model_type is missing or not a name")
    return model_type


def _architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("architectures")
    listed = names[:_ARCHITECTURES_LIMIT] if isinstance(names, list) else []
    return tuple(name for name in listed if isinstance(name, str))


def _transformer_module(folder: Path) -> Mapping[str, Any]:
    """sentence_bert_config.json, which was named after the architecture once: roberta, xlm-roberta, distilbert ..."""
    paths = sorted(
        folder.glob("sentence_*_config.json"), key=lambda path: (path.name != "sentence_bert_config.json", path)
    )
    return read_json_object(paths[0]) if paths else {}
