"""modules.json: of which modules a sentence-transformers folder is made, in order, and the Dense ones among them.

model_folder.py and hub.py call `read_modules(folder)`, the files of the single kinds `read_dense(module)`, at start.
Only what is named here is interpreted; a module nobody here knows stops the start, since leaving it out would give
vectors that look right and are not. Class paths in the files are compared by their last word and never imported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vectord.checkpoints.checkpoint import find_weights
from vectord.checkpoints.files.json_file import read_json, read_json_object
from vectord.checkpoints.spec import DenseActivation, DenseModule
from vectord.errors import ModelUnavailable

MODULES_LIMIT = 32
WIDTH_LIMIT = 2**20

# The last words of the class paths, the same in sentence-transformers 2 to 6 and in pylate.
_KINDS = (
    "Transformer",
    "MLMTransformer",  # Transformer, before version 6, with the masked-language head
    "Pooling",
    "Dense",
    "Normalize",
    "SpladePooling",
    "MultiVectorMask",
    "LogitScore",
)
_IDLE = frozenset({"Dropout"})  # does something in training alone
_ROUTERS = frozenset({"Router", "Asym"})

_ACTIVATIONS: Mapping[str, DenseActivation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
}


@dataclass(frozen=True, slots=True)
class Module:
    kind: str  # one of _KINDS, MLMTransformer being a Transformer
    folder: Path


def read_modules(folder: Path) -> tuple[Module, ...]:
    """The modules of the folder's modules.json, the first of them a Transformer; () if there is no such file.

    Raises ModelUnavailable: a module of an unknown kind or outside the folder, no Transformer at the start.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return ()
    listed = read_json(path)
    if not isinstance(listed, list) or not 0 < len(listed) <= MODULES_LIMIT:
        raise ModelUnavailable(f"{path}: expected a list of 1 to {MODULES_LIMIT} modules")
    modules = [_module(path, fields) for fields in listed]
    modules = [module for module in modules if module.kind not in _IDLE]
    for module in modules:
        _check_kind(path, module.kind)
    modules = [Module(module.kind.removeprefix("MLM"), module.folder) for module in modules]
    if not modules or modules[0].kind != "Transformer":
        raise wrong_order(folder, modules, supported="Transformer first")
    return tuple(modules)


def wrong_order(folder: Path, modules: Collection[Module], *, supported: str) -> ModelUnavailable:
    """The error of modules that are known one by one and not in this order."""
    kinds = ", ".join(module.kind for module in modules)
    return ModelUnavailable(f"{folder / 'modules.json'}: modules in the order {kinds}; supported is {supported}")


def _module(path: Path, fields: Any) -> Module:
    match fields:
        case {"type": str(kind), "path": str(place)}:
            inside = PurePosixPath(place)
        case _:
            raise ModelUnavailable(f"{path}: a module without type or path")
    if inside.is_absolute() or ".." in inside.parts or any(character in place for character in "\\:\0"):
        raise ModelUnavailable(f"{path}: a module's path leads out of the folder")
    return Module(kind.rpartition(".")[2], path.parent / inside)


def _check_kind(path: Path, kind: str) -> None:
    if kind in _ROUTERS:
        raise ModelUnavailable(
            f"{path}: {kind} sends queries and documents through different modules (as inference-free SPLADE does), "
            "which is not supported"
        )
    if kind not in _KINDS:
        raise ModelUnavailable(f"{path}: module {kind[:60]!r} is not supported; supported are {', '.join(_KINDS)}")


# --- Dense ----------------------------------------------------------------------------------------------------


def read_dense(module: Module, *, over: str) -> DenseModule:
    """A linear layer and where its weights are. over: what it must work on, "sentence_embedding" or "token_embeddings";
    a folder of before version 5.4 does not say, and means its only possible one.

    Raises ModelUnavailable: widths, names or files that are missing or not supported.
    """
    path = module.folder / "config.json"
    fields = read_json_object(path)
    names = {fields.get("module_input_name"), fields.get("module_output_name")} - {None}
    if names - {over}:
        raise ModelUnavailable(f"{path}: a Dense module over anything but {over} is not supported in this place")
    if fields.get("use_residual"):
        raise ModelUnavailable(f"{path}: use_residual is not supported")
    return DenseModule(
        folder=module.folder,
        weights=_only_file(module.folder),
        in_features=_width(path, fields, "in_features"),
        out_features=_width(path, fields, "out_features"),
        bias=fields.get("bias") is not False,
        activation=_activation(path, fields),
    )


def chain_width(width: int, modules: Collection[DenseModule]) -> int:
    """How wide a vector of `width` leaves the modules. Raises ModelUnavailable if one takes another width."""
    for module in modules:
        if module.in_features != width:
            raise ModelUnavailable(f"{module.folder}: takes {module.in_features} numbers where {width} come in")
        width = module.out_features
    return width


def _width(path: Path, fields: Mapping[str, Any], key: str) -> int:
    width = fields.get(key)
    if type(width) is not int or not 0 < width <= WIDTH_LIMIT:
        raise ModelUnavailable(f"{path}: {key} must be a whole number from 1 to {WIDTH_LIMIT:,}")
    return width


def _only_file(folder: Path) -> Path:
    files = find_weights(folder)
    if len(files) > 1:
        raise ModelUnavailable(f"{folder}: the weights of a Dense module must be in one file, not {len(files)}")
    return files[0]


def _activation(path: Path, fields: Mapping[str, Any]) -> DenseActivation:
    name = str(fields.get("activation_function", "Tanh")).rpartition(".")[2]  # Tanh: sentence-transformers' default
    if name not in _ACTIVATIONS:
        raise ModelUnavailable(f"{path}: activation {name[:60]!r}; supported are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]
