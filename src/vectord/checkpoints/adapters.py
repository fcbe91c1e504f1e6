"""The adapters (LoRA) of a model: their list, and their tensors by layer.

`read_tasks` finds those that an xlm-roberta-flash checkpoint has among its own tensors, and `read_adapter` reads a
folder of peft's. Both run at start; compute/ calls `split_adapters` and `merge_adapter` when the model loads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from vectord.checkpoints.checkpoint import Weight, open_checkpoint
from vectord.checkpoints.config_keys import Harmless, harmless, refuse_null, refuse_unread
from vectord.checkpoints.files.read import OPTION, Settings, read_settings
from vectord.checkpoints.files.weight import ComputedWeight
from vectord.checkpoints.folder import ADAPTER, ModelFolder
from vectord.checkpoints.spec import Adapter, ModelSpec, PromptText
from vectord.errors import ModelUnavailable

ADAPTERS_LIMIT = 64
NAME_LIMIT_CHARACTERS = 200
RANK_LIMIT = 1024
_Name = Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT_CHARACTERS)]
_Names = Annotated[list[_Name], Meta(max_length=ADAPTERS_LIMIT)]
_Alpha = Annotated[float, Meta(gt=0, le=1e6)]
_Rank = Annotated[int, Meta(ge=1, le=RANK_LIMIT)]
# Regular expressions of names, without nested repetition, which could take forever.
_PATTERN = re.compile(r"\^?(?:(?:[\w.]|\\[.d]|\[[\w-]+\])[*+]?|[()|])+\$?")
_REPETITIONS_LIMIT = 2
# The expression of colpali_engine's adapters: layers of these names below another one, and those of the projection.
_BELOW = re.compile(
    r"\(\.\*\((?P<above>\w+)\)(?P<no_images>\(\?!\.\*visual\))?\.\*\((?P<names>\w+(\|\w+)*)\)\.\*\$"
    r"\|\.\*\((?P<projection>\w+)\)\.\*\$\)"
)

# xlm-roberta-flash saves a layer's weight as `original`, with the stacked A and B of all tasks next to it.
_ORIGINAL = ".parametrizations.weight.original"
_STACKED = re.compile(r"(?P<layer>.+)\.parametrizations\.weight\.0\.lora_(?P<side>[AB])")
# peft's names: the class that it wraps, the layer, and A or B of a linear layer or of an embedding, or DoRA's lengths.
_PEFT = re.compile(
    r"base_model\.model\.(?P<layer>.+)\.lora_(?P<table>embedding_)?(?P<side>[AB]|magnitude_vector)(\.weight)?"
)
_PEFT_WHOLE = re.compile(r"base_model\.model\.(?P<module>.+)\.(?P<tensor>\w+)")
_PEFT_BASE = re.compile(r"base_model\.model\.(?P<layer>.+)\.base_layer\.weight")

_LAYER_INDEX = re.compile(r".*?\.[^.]*\.(\d+)\..*")  # peft's, of layers_to_transform

# Keys of adapter_config.json that may be unread.
PEFT: Mapping[str, Harmless] = {
    **harmless(
        "names, versions and classes",
        "auto_mapping base_model_name_or_path inference_mode megatron_core peft_version revision task_type",
    ),
    **harmless("training only", "ensure_weight_tying lora_dropout"),
    **harmless("use_qalora only", "qalora_group_size"),
    # With false and null, peft leaves random numbers in chosen layers that the file has no tensors of.
    **harmless("the usual start of training", "init_lora_weights", True, "gaussian", "eva", "orthogonal"),
    **harmless("no bias is trained", "bias", "none"),
    **harmless("off", "fan_in_fan_out lora_bias use_qalora", False),
    **harmless("none", "loftq_config", {}),
    **harmless("none", "layers_pattern target_parameters", []),
}


class Change(msgspec.Struct, frozen=True):
    """What one adapter adds to a layer: scale * up @ down; to a table scale * down @ up.T.

    magnitude: the length that each row of the sum then gets (DoRA).
    """

    adapter: int  # from 1, in the order of ModelSpec.adapters
    down: Weight  # (rank, H); of a table with V rows (V, rank)
    up: Weight  # (O, rank)
    rank: int
    scale: float
    magnitude: Weight | None = None  # (O,)


def read_tasks(folder: ModelFolder) -> tuple[Adapter, ...]:
    """Return the tasks of an xlm-roberta-flash, `lora_adaptations` of config.json, in order; () without any."""
    config = folder.config
    if not config.get("lora_adaptations"):
        return ()
    names: list[str] = config.value("lora_adaptations", _Names)
    prompts: dict[str, str] = config.value("task_instructions", dict[str, PromptText], {})
    if len(set(names)) < len(names) or not set(prompts) <= set(names):
        raise ModelUnavailable(
            f"{config.path}: lora_adaptations must be different names, and those of task_instructions among them"
        )
    refuse_null(config, "lora_alpha")
    rank, alpha = config.whole("lora_rank", 4, most=RANK_LIMIT), config.value("lora_alpha", _Alpha, 1.0)
    return tuple(Adapter(name=name, prompt=prompts.get(name, ""), scale=alpha / rank, rank=rank) for name in names)


def read_adapter(name: str, folder: Path, allowed: frozenset[str] = frozenset(), *, is_merged: bool = False) -> Adapter:
    """Return the adapter in a folder of peft's: adapter_config.json and adapter_model.safetensors.

    allowed: keys that may be unknown. is_merged: it changes every text, so it may replace whole modules.
    """
    config = read_settings(folder / ADAPTER, allowed=allowed)
    if (kind := config.get("peft_type")) != "LORA":
        raise ModelUnavailable(f"{config.path}: peft_type {str(kind)[:40]!r} is not supported; supported is LORA")
    rank, alpha = config.whole("r", 8, most=RANK_LIMIT), config.value("lora_alpha", _Alpha, 8.0)
    rank_stabilized, dora = config.flag("use_rslora", False), config.flag("use_dora", False)
    whole: list[str] = config.value("modules_to_save", _Names, [])
    if whole and not is_merged:
        raise ModelUnavailable(
            f"{config.path}: modules_to_save is supported in an adapter of all texts, not in one of requests"
        )
    ranks, alphas = _by_pattern(config, "rank_pattern", _Rank), _by_pattern(config, "alpha_pattern", _Alpha)
    files = [folder / f"adapter_model{suffix}" for suffix in (".safetensors", ".bin")]
    weights = next((path for path in files if path.is_file()), None)
    if weights is None:
        raise ModelUnavailable(f"{folder}: no adapter_model.safetensors and no adapter_model.bin")
    checkpoint = open_checkpoint((weights,))
    layers = sorted({match["layer"] for tensor in checkpoint if (match := _PEFT.fullmatch(tensor))})
    checkpoint.close()
    if left_out := _left_out(config, layers):
        raise ModelUnavailable(
            f"{config.path}: target_modules, exclude_modules and layers_to_transform leave out {left_out[:200]}, of "
            f"which {weights.name} has tensors; {OPTION} target_modules ignores them"
        )
    base = config.get("base_model_name_or_path")
    refuse_null(config, "alpha_pattern bias init_lora_weights lora_alpha rank_pattern")
    refuse_unread(config, PEFT)

    def scale_of(layer: str) -> tuple[int, float]:
        # No model has a layer with a longer name; its adapter is refused later.
        own, own_alpha = (
            next((value for fits, value in by_pattern if len(layer) <= NAME_LIMIT_CHARACTERS and fits(layer)), default)
            for by_pattern, default in ((ranks, rank), (alphas, alpha))
        )
        return own, own_alpha / (math.sqrt(own) if rank_stabilized else own)

    _, scale = scale_of("")
    return Adapter(
        name=name,
        scale=scale,
        rank=rank,
        weights=weights,
        base=base if isinstance(base, str) else None,
        own_scales=tuple((layer, *scale_of(layer)) for layer in layers if scale_of(layer) != (rank, scale)),
        dora=dora or None,
        whole_modules=tuple(whole),
    )


def _by_pattern(config: Settings, key: str, kind: Any) -> list[tuple[Callable[[str], object], Any]]:
    """The patterns of layers' names in the mapping `key`, with their values; the first that fits counts.

    Source: peft's get_pattern_key.
    """
    values: dict[str, Any] = config.value(key, dict[_Name, kind], {})
    for pattern in values:
        repetitions = pattern.count("*") + pattern.count("+")
        try:
            re.compile(pattern)
            is_known = _PATTERN.fullmatch(pattern) is not None and repetitions <= _REPETITIONS_LIMIT
        except re.error:
            is_known = False
        if not is_known:
            raise ModelUnavailable(
                f"{config.path}: {key} {pattern[:80]!r} is not supported; it must be a layer's name, or a regular "
                f"expression with at most {_REPETITIONS_LIMIT} repetitions, none of a group"
            )
    return [(re.compile(rf"(.*\.)?({pattern})").fullmatch, value) for pattern, value in values.items()]


def _left_out(config: Settings, layers: Sequence[str]) -> str | None:
    """The first of these layers that peft does not change, whose tensors it drops.

    Source: peft's check_target_module_exists.
    """
    targets = config.get("target_modules")
    below = _BELOW.fullmatch(targets) if isinstance(targets, str) else None
    targets, excluded = [] if below is not None else _names(config, "target_modules"), _names(config, "exclude_modules")
    given = config.value("layers_to_transform", int | list[int], [])
    numbers = [given] if isinstance(given, int) else given
    if "target_modules" in config.allowed:
        return None
    for layer in layers:
        is_named, is_excluded = (
            any(f".{layer}".endswith(f".{name}") for name in names) for names in (targets, excluded)
        )
        if below is not None:
            after = layer.partition(below["above"])[2]
            is_image = below["no_images"] is not None and "visual" in after
            is_named = any(name in after for name in below["names"].split("|")) and not is_image
            is_named = is_named or below["projection"] in layer
        index = _LAYER_INDEX.fullmatch(layer)
        is_numbered = not numbers or layer in targets or (index is not None and int(index[1]) in numbers)
        if not is_named or not is_numbered or is_excluded:
            return layer
    return None


def _names(config: Settings, key: str) -> list[str]:
    value = config.get(key)
    if key in config.allowed or (value is None and key == "exclude_modules"):
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise ModelUnavailable(
            f"{config.path}: {key} {repr(value)[:80]} is not supported; it must be a list of names of layers; "
            f"{OPTION} {key} ignores it"
        )
    return value


def is_made_for(adapter: Adapter, spec: ModelSpec) -> bool:
    """Whether the adapter names the model as its base, or none. A path of the machine on which the adapter was trained
    is compared by its last part."""
    if not adapter.base:
        return True
    own = {name.rpartition("/")[2].lower() for name in (spec.model_id, spec.folder.as_posix())}
    return adapter.base.rstrip("/").rpartition("/")[2].lower() in own


def find_adapters(folder: ModelFolder) -> tuple[Adapter, ...]:
    """Return the adapters in folders of the model's folder, as peft saves several, or below adapters/, as
    jina-embeddings-v5 does, by name of the folder."""
    tasks: list[str] = folder.config.value("task_names", _Names, [])
    if ADAPTER in folder.allowed:
        return ()
    places = (f"*/{ADAPTER}", f"adapters/*/{ADAPTER}")
    found = sorted(path.parent for place in places for path in folder.transformer.glob(place))
    if len(found) > ADAPTERS_LIMIT:
        raise ModelUnavailable(f"{folder.transformer}: {len(found)} folders of adapters; at most {ADAPTERS_LIMIT}")
    if missing := sorted({*tasks} - {path.name for path in found}):
        raise ModelUnavailable(f"{folder.config.path}: task_names has {missing[0]!r}, of which no adapter is found")
    return tuple(read_adapter(path.name, path, folder.allowed) for path in found)


# --- tensors --------------------------------------------------------------------------------------------------


def split_adapters(
    weights: Mapping[str, Weight], adapters: Sequence[Adapter]
) -> tuple[Mapping[str, Weight], Mapping[str, Sequence[Change]]]:
    """Return the tensors without adapters under their usual names, and the changes of each layer."""
    stacked = [name for name in weights if _STACKED.fullmatch(name)]
    own = [adapter for adapter in adapters if adapter.weights is None]
    if not adapters and not stacked:
        return weights, {}
    plain = {
        f"{name.removesuffix(_ORIGINAL)}.weight" if name.endswith(_ORIGINAL) else name: weight
        for name, weight in weights.items()
        if name not in stacked
    }
    changes: dict[str, list[Change]] = {}
    if bool(own) != bool(stacked):
        named = (
            f"such as {stacked[0]}, and config.json names none" if stacked else f"and config.json names {own[0].name}"
        )
        raise ModelUnavailable(f"the checkpoint has {len(stacked)} tensors of adapters, {named}")
    for number, adapter in enumerate(adapters, 1):
        if adapter.weights is None:
            found = _own_changes(weights, stacked, number, len(own), adapter)
        else:
            found, _ = _read_file(adapter.weights, plain, number, adapter)
        for layer, change in found.items():
            changes.setdefault(layer, []).append(change)
    return plain, changes


def merge_adapter(weights: Mapping[str, Weight], spec: ModelSpec) -> Mapping[str, Weight]:
    """Return the tensors, with the change of spec.merged added to those that the adapter changes.

    weights: under their usual names. Sums are computed in float32, when they are read.
    """
    if spec.merged is None:
        return weights
    path = spec.merged.weights
    assert path is not None
    changes, merged = _read_file(path, weights, 1, spec.merged)
    if whole := (merged.keys() if "splade" in spec.outputs or spec.scores_by_words else set()) | (
        merged.keys() & (spec.tensors_of_heads - spec.tensors_of_modules)
    ):
        raise ModelUnavailable(
            f"{path}: modules_to_save has {min(whole)}, which a head may read; that is not supported"
        )
    for layer, change in changes.items():
        name = f"{layer}.weight"
        shape, down, up = weights[name].shape, change.down.array.shape, change.up.array.shape
        is_table = len(shape) == 2 and (down, up) == ((shape[0], change.rank), (shape[1], change.rank))
        if not is_table and (len(shape) != 2 or (down, up) != ((change.rank, shape[1]), (shape[0], change.rank))):
            raise ModelUnavailable(
                f"{path}: the change of {name} is {list(down)} and {list(up)}; the tensor is {list(shape)}, and the "
                f"rank {change.rank}"
            )
        if change.magnitude is not None and (is_table or change.magnitude.shape != shape[:1]):
            raise ModelUnavailable(f"{path}: use_dora is supported in linear layers, with a length for each output")
        tied = is_table and ("splade" in spec.outputs or spec.scores_by_words)
        if tied or name in spec.tensors_of_heads - spec.tensors_of_modules:
            raise ModelUnavailable(f"{path}: the adapter changes {name}, which a head reads; that is not supported")
        merged[name] = ComputedWeight(name, shape, partial(_sums, weights[name], change, is_table))
    return {**weights, **merged}


def _sums(weight: Weight, change: Change, is_table: bool) -> Iterator[npt.NDArray[np.float32]]:
    """The rows of the tensor plus its change, a few thousand at a time."""
    left, right = (change.down, change.up) if is_table else (change.up, change.down)
    rows, columns = left.as_float32(), right.as_float32() * np.float32(change.scale)
    columns = columns.T if is_table else columns
    start = 0
    for part in weight.parts():
        changed = part + rows[start : start + len(part)] @ columns
        if change.magnitude is not None:
            lengths = change.magnitude.as_float32()[start : start + len(part)]
            changed *= (lengths / np.linalg.norm(changed, axis=1))[:, None]
        yield changed
        start += len(part)


def _read_file(
    path: Path, plain: Mapping[str, Weight], number: int, adapter: Adapter
) -> tuple[dict[str, Change], dict[str, Weight]]:
    """The changes in a file of peft's, and its tensors of whole modules by their names in the model, `plain`."""
    sides: dict[str, dict[str, Weight]] = {}
    places: dict[str, str] = {}
    whole: dict[str, Weight] = {}
    for name, weight in open_checkpoint((path,)).items():
        match = _PEFT.fullmatch(name)
        if match is None and any(f".{module}." in name for module in adapter.whole_modules):
            if inner := _PEFT_WHOLE.fullmatch(name):
                place = f"{_place_of(inner['module'], plain, path)}.{inner['tensor']}"
                if place not in plain or plain[place].shape != weight.shape:
                    raise ModelUnavailable(
                        f"{path}: the model has no tensor {place[:200]} of the shape {list(weight.shape)}"
                    )
                whole[place] = weight
            continue
        if match is None:
            # peft saves the model's own table of words with an adapter of it.
            if base := _PEFT_BASE.fullmatch(name):
                own = plain[f"{_place_of(base['layer'], plain, path)}.weight"]
                if weight.dtype == own.dtype and np.array_equal(weight.array, own.array):
                    continue
            raise ModelUnavailable(f"{path}: tensor {name[:200]} is not supported: it is neither A nor B of a layer")
        if match["layer"] not in places:
            places[match["layer"]] = _place_of(match["layer"], plain, path)
        if match["side"] == "magnitude_vector" and not adapter.dora:
            raise ModelUnavailable(f"{path}: tensor {name[:200]} is not supported without use_dora")
        transposed = match["table"] and match["side"] == "A"  # (rank, V)
        read = Weight(name, weight.dtype, weight.array.T if transposed else weight.array)
        sides.setdefault(places[match["layer"]], {})[match["side"]] = read
    if not sides:
        raise ModelUnavailable(f"{path}: no tensors")
    own_scales = {places[layer]: (rank, scale) for layer, rank, scale in adapter.own_scales}
    return _changes(sides, str(path), number, adapter, own_scales), whole


def _place_of(layer: str, plain: Mapping[str, Weight], path: Path) -> str:
    """The name of a layer in the checkpoint, which may have another class's prefix."""
    prefixes = sorted({name.partition(".")[0] for name in plain})
    for name in (layer, layer.partition(".")[2], *(f"{prefix}.{layer}" for prefix in prefixes)):
        if f"{name}.weight" in plain:
            return name
    raise ModelUnavailable(f"{path}: the model has no layer {layer[:200]}, which the adapter changes")


def _own_changes(
    weights: Mapping[str, Weight], stacked: Sequence[str], number: int, count: int, adapter: Adapter
) -> dict[str, Change]:
    """The changes by one of the `count` tasks of a checkpoint."""
    sides: dict[str, dict[str, Weight]] = {}
    for name in stacked:
        match = _STACKED.fullmatch(name)
        assert match is not None
        weight = weights[name]
        if weight.array.ndim != 3 or len(weight.array) != count:
            raise ModelUnavailable(
                f"the checkpoint's tensor {name} is {list(weight.array.shape)}; config.json has {count} adapters"
            )
        part = weight.array[number - 1]
        if match["layer"].endswith("_embeddings") and match["side"] == "B":
            part = part.T  # a table's A is (V, rank) and its B (rank, H): the change is A B instead of B A
        sides.setdefault(match["layer"], {})[match["side"]] = Weight(name, weight.dtype, part)
    return _changes(sides, "the checkpoint", number, adapter, {})


def _changes(
    sides: Mapping[str, Mapping[str, Weight]],
    where: str,
    number: int,
    adapter: Adapter,
    own: Mapping[str, tuple[int, float]],
) -> dict[str, Change]:
    """sides: A and B of each layer, and its lengths with DoRA. own: ranks and scales that differ from the adapter's."""
    for layer, pair in sides.items():
        if not pair.keys() >= {"A", "B"}:
            raise ModelUnavailable(f"{where}: only one of A and B of {layer}")
        if adapter.dora and "magnitude_vector" not in pair:
            raise ModelUnavailable(f"{where}: use_dora, but no lora_magnitude_vector of {layer}")
    return {
        layer: Change(
            number, pair["A"], pair["B"], *own.get(layer, (adapter.rank, adapter.scale)), pair.get("magnitude_vector")
        )
        for layer, pair in sides.items()
    }
