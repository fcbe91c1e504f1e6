"""The adapters (LoRA) of a model: which there are, and their tensors by layer.

`read_tasks` finds those that an xlm-roberta-flash checkpoint has among its own tensors. reader.py calls it at start;
compute/networks/ calls `split_adapters` when the model loads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.files.read import Settings
from vectord.checkpoints.folder import ModelFolder
from vectord.checkpoints.spec import PROMPT_LIMIT_CHARACTERS, Adapter
from vectord.errors import ModelUnavailable

ADAPTERS_LIMIT = 64
NAME_LIMIT_CHARACTERS = 200
RANK_LIMIT = 1024

# xlm-roberta-flash saves a layer's weight as `original`, with the stacked A and B of all tasks next to it.
_ORIGINAL = ".parametrizations.weight.original"
_STACKED = re.compile(r"(?P<layer>.+)\.parametrizations\.weight\.0\.lora_(?P<side>[AB])")


@dataclass(frozen=True, slots=True)
class Change:
    """What one adapter adds to a layer: scale * up @ down; to a table scale * down @ up.T."""

    adapter: int  # from 1, in the order of ModelSpec.adapters
    down: Weight  # (rank, H); of a table with V rows (V, rank)
    up: Weight  # (O, rank)
    rank: int
    scale: float


def read_tasks(folder: ModelFolder) -> tuple[Adapter, ...]:
    """Return the tasks of an xlm-roberta-flash, `lora_adaptations` of config.json, in order; () without any.

    Raises ModelUnavailable for names, instructions or numbers of another form.
    """
    config = folder.config
    names, prompts = config.get("lora_adaptations"), config.get("task_instructions")
    if not names:
        return ()
    if (
        not isinstance(names, list)
        or len(names) > ADAPTERS_LIMIT
        or not all(isinstance(name, str) and 0 < len(name) <= NAME_LIMIT_CHARACTERS for name in names)
        or len(set(names)) < len(names)
    ):
        raise ModelUnavailable(
            f"{config.path}: lora_adaptations must be at most {ADAPTERS_LIMIT} different names of at most "
            f"{NAME_LIMIT_CHARACTERS} characters"
        )
    prompts = {} if prompts is None else prompts
    if (
        not isinstance(prompts, dict)
        or not set(prompts) <= set(names)
        or not all(isinstance(text, str) and len(text) <= PROMPT_LIMIT_CHARACTERS for text in prompts.values())
    ):
        raise ModelUnavailable(
            f"{config.path}: task_instructions must be texts of at most {PROMPT_LIMIT_CHARACTERS:,} characters by the "
            "names in lora_adaptations"
        )
    rank, alpha = config.get("lora_rank", 4), config.get("lora_alpha", 1)
    check_rank(config, "lora_rank", rank)
    check_alpha(config, "lora_alpha", alpha)
    return tuple(Adapter(name=name, prompt=prompts.get(name, ""), scale=alpha / rank, rank=rank) for name in names)


def check_rank(config: Settings, key: str, value: object) -> None:
    """Raise ModelUnavailable unless `value`, which stands at `key`, is a rank."""
    if type(value) is not int or not 0 < value <= RANK_LIMIT:
        raise ModelUnavailable(f"{config.path}: {key} must be a whole number from 1 to {RANK_LIMIT:,}")


def check_alpha(config: Settings, key: str, value: object) -> None:
    """Raise ModelUnavailable unless `value`, which stands at `key`, is a number that a change can be scaled by."""
    if type(value) not in (int, float) or not 0 < value <= 1e6:  # type: ignore[operator]
        raise ModelUnavailable(f"{config.path}: {key} must be a number above 0 and at most 1,000,000")


# --- tensors --------------------------------------------------------------------------------------------------


def split_adapters(
    weights: Mapping[str, Weight], adapters: Sequence[Adapter]
) -> tuple[Mapping[str, Weight], Mapping[str, Sequence[Change]]]:
    """Return the tensors without adapters under their usual names, and the changes of each layer.

    Raises ModelUnavailable for a tensor of an adapter without its counterpart, of another number of tasks, or of a
    model that has no adapters.
    """
    stacked = [name for name in weights if _STACKED.fullmatch(name)]
    if not adapters and not stacked:
        return weights, {}
    plain = {
        f"{name.removesuffix(_ORIGINAL)}.weight" if name.endswith(_ORIGINAL) else name: weight
        for name, weight in weights.items()
        if name not in stacked
    }
    changes: dict[str, list[Change]] = {}
    for number, adapter in enumerate(adapters, 1):
        for layer, change in _own_changes(weights, stacked, number, len(adapters), adapter).items():
            changes.setdefault(layer, []).append(change)
    if not adapters:
        raise ModelUnavailable(f"the checkpoint has adapters, such as {stacked[0]}, and config.json names none")
    if not changes:
        raise ModelUnavailable(f"the checkpoint has no tensors of the adapter {adapters[0].name}")
    return plain, changes


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
        part = Weight(name, weight.dtype, weight.array[number - 1])
        sides.setdefault(match["layer"], {})[match["side"]] = part
    return {layer: _change(layer, pair, number, adapter) for layer, pair in sides.items()}


def _change(layer: str, pair: Mapping[str, Weight], number: int, adapter: Adapter) -> Change:
    """A table's A is (V, rank) and its B (rank, H): the change is A B instead of B A."""
    if len(pair) < 2:
        raise ModelUnavailable(f"the checkpoint has only one of lora_A and lora_B of {layer}")
    down, up = pair["A"], pair["B"]
    if layer.endswith("_embeddings"):
        up = Weight(up.name, up.dtype, up.array.T)
    return Change(number, down, up, adapter.rank, adapter.scale)
