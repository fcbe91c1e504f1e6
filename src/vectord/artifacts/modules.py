"""What a sentence-transformers folder says comes after the network: pooling, Dense layers, normalising.

spec.py calls `read_pipeline(folder)` at start. Only what is named here is interpreted; a module nobody here knows
stops the start, since leaving it out would give vectors that look right and are not. Class paths in the files are
compared by their last word and never imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from vectord.artifacts.json_file import read_json, read_json_object, read_optional_json_object
from vectord.errors import ModelUnavailable

Pooling = Literal["cls", "mean", "last"]
DenseActivation = Literal["identity", "tanh"]

# sentence-transformers' names: booleans `pooling_mode_*` before version 6, one `pooling_mode` since.
_POOLINGS: Mapping[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_POOLING_FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS: Mapping[str, DenseActivation] = {"Identity": "identity", "Tanh": "tanh"}
_SENTENCE_NAMES = frozenset({"sentence_embedding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseModule:
    """A linear layer after pooling (sentence-transformers `Dense`)."""

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: DenseActivation


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingModule:
    mode: Pooling
    include_prompt: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Transformer, Pooling, Dense ..., Normalize: the only order served."""

    transformer: Path  # the folder of config.json, tokenizer.json and the weights
    pooling: PoolingModule | None  # None: the folder does not say
    dense: tuple[DenseModule, ...] = ()
    normalizes: bool = False


@dataclass(frozen=True, slots=True)
class _Module:
    kind: str  # last word of the class path
    folder: Path


def read_pipeline(folder: Path) -> Pipeline:
    """The pipeline of modules.json; of a folder without one, the pooling in 1_Pooling/ if it is there.

    Raises ModelUnavailable: a module of an unknown kind, modules in another order, a config that does not add up.
    """
    path = folder / "modules.json"
    if not path.is_file():
        pooling = folder / "1_Pooling" / "config.json"
        return Pipeline(transformer=folder, pooling=_pooling(pooling) if pooling.is_file() else None)
    modules = _modules(path)
    kinds = [module.kind for module in modules]
    _check_kinds(path, kinds)
    return Pipeline(
        transformer=modules[0].folder,
        pooling=_pooling(modules[1].folder / "config.json"),
        dense=tuple(_dense(module.folder) for module in modules if module.kind == "Dense"),
        normalizes=kinds[-1] == "Normalize",
    )


def _modules(path: Path) -> list[_Module]:
    listed = read_json(path)
    if not isinstance(listed, list) or not 0 < len(listed) <= 32:
        raise ModelUnavailable(f"{path}: expected a list of modules")
    return [_module(path, fields) for fields in listed]


def _module(path: Path, fields: Any) -> _Module:
    match fields:
        case {"type": str(kind), "path": str(place)}:
            inside = PurePosixPath(place)
        case _:
            raise ModelUnavailable(f"{path}: a module without type or path")
    if inside.is_absolute() or ".." in inside.parts or any(character in place for character in "\\:\0"):
        raise ModelUnavailable(f"{path}: a module's path leads out of the folder")
    return _Module(kind.rpartition(".")[2], path.parent / inside)


def _check_kinds(path: Path, kinds: Sequence[str]) -> None:
    known = ("Transformer", "Pooling", "Dense", "Normalize")
    for kind in kinds:
        if kind not in known:
            raise ModelUnavailable(f"{path}: module {kind[:60]!r} is not supported; supported are {', '.join(known)}")
    middle = kinds[2:-1] if kinds[-1] == "Normalize" else kinds[2:]
    if list(kinds[:2]) != ["Transformer", "Pooling"] or any(kind != "Dense" for kind in middle):
        raise ModelUnavailable(
            f"{path}: modules in the order {', '.join(kinds)}; supported is Transformer, Pooling, Dense ..., Normalize"
        )


def _pooling(path: Path) -> PoolingModule:
    fields = read_json_object(path)
    modes = _pooling_modes(fields)
    mode = _POOLINGS.get(modes[0]) if len(modes) == 1 else None
    if mode is None:
        found = " and ".join(modes) or "none"
        raise ModelUnavailable(f"{path}: pooling {found} is not supported; supported is one of {', '.join(_POOLINGS)}")
    return PoolingModule(mode=mode, include_prompt=fields.get("include_prompt") is not False)


def _pooling_modes(fields: Mapping[str, Any]) -> list[str]:
    modes = fields.get("pooling_mode")
    if modes is None:
        return [mode for flag, mode in _POOLING_FLAGS.items() if fields.get(flag)]
    listed = modes if isinstance(modes, list) else [modes]
    return [str(mode)[:40] for mode in listed[:8]]


def _dense(folder: Path) -> DenseModule:
    path = folder / "config.json"
    fields = read_json_object(path)
    in_features, out_features = fields.get("in_features"), fields.get("out_features")
    if type(in_features) is not int or type(out_features) is not int or min(in_features, out_features) < 1:
        raise ModelUnavailable(f"{path}: in_features and out_features must be positive whole numbers")
    names = {fields.get("module_input_name"), fields.get("module_output_name")} - {None}
    if names - _SENTENCE_NAMES:
        raise ModelUnavailable(f"{path}: a Dense module over tokens is not supported")
    if not (folder / "model.safetensors").is_file():
        raise ModelUnavailable(f"{folder}: no model.safetensors, the one format read for Dense modules")
    return DenseModule(
        folder=folder,
        in_features=in_features,
        out_features=out_features,
        bias=fields.get("bias") is not False,
        activation=_activation(path, fields),
    )


def _activation(path: Path, fields: Mapping[str, Any]) -> DenseActivation:
    name = str(fields.get("activation_function", "Tanh")).rpartition(".")[2]  # Tanh: sentence-transformers' default
    if name not in _ACTIVATIONS:
        raise ModelUnavailable(f"{path}: activation {name[:60]!r}; supported are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceConfig:
    """Beside the modules: how long a text may be, what happens to it, and what goes before it."""

    max_seq_length: int | None
    lowercase: bool
    prompts: Mapping[str, str]
    default_prompt_name: str | None


PROMPTS_LIMIT = 1000
PROMPT_LIMIT_CHARACTERS = 20_000


def read_sentence_config(folder: Path, transformer: Path) -> SentenceConfig:
    """sentence_bert_config.json (or _roberta_ and its like) and config_sentence_transformers.json, if they are there.

    Raises ModelUnavailable: prompts that are no strings, or a default prompt that is not among them.
    """
    path = folder / "config_sentence_transformers.json"
    fields = read_optional_json_object(path)
    prompts = {} if fields.get("prompts") is None else fields["prompts"]
    if not isinstance(prompts, dict) or len(prompts) > PROMPTS_LIMIT:
        raise ModelUnavailable(f"{path}: prompts must be an object of at most {PROMPTS_LIMIT} texts")
    if not all(isinstance(text, str) and len(text) <= PROMPT_LIMIT_CHARACTERS for text in prompts.values()):
        raise ModelUnavailable(f"{path}: each prompt must be a text of at most {PROMPT_LIMIT_CHARACTERS} characters")
    default = fields.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise ModelUnavailable(f"{path}: default_prompt_name is not one of its prompts")
    transformer_fields = _transformer_fields(transformer)
    max_seq_length = transformer_fields.get("max_seq_length")
    return SentenceConfig(
        max_seq_length=max_seq_length if type(max_seq_length) is int and max_seq_length > 0 else None,
        lowercase=transformer_fields.get("do_lower_case") is True,
        prompts=prompts,
        default_prompt_name=default,
    )


def _transformer_fields(folder: Path) -> Mapping[str, Any]:
    """sentence_bert_config.json, which was named after the architecture once: roberta, xlm-roberta, distilbert ..."""
    paths = sorted(
        folder.glob("sentence_*_config.json"), key=lambda path: (path.name != "sentence_bert_config.json", path)
    )
    return read_json_object(paths[0]) if paths else {}
