"""Each scalar of each architecture's config class, changed alone, gives transformers' numbers or is refused.

Random tiny models; the keys are those of transformers' config class, of the written config.json, and older forms.
Where transformers has no class, the reference is the one of the case.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tests.compute.networks import tiny_decoders, tiny_encoders
from tests.compute.networks.case import Texts, numpy_answer, texts_of

from vectord.checkpoints.config_keys import CONFIG, Harmless
from vectord.checkpoints.kinds.towers import TOWERS
from vectord.compute.networks.network import ARCHITECTURES, class_of
from vectord.errors import ModelUnavailable

pytestmark = pytest.mark.usefixtures("one_thread")
CASES = {**tiny_encoders.CASES, **tiny_decoders.CASES}
# The config classes of model types that transformers has not.
CLASSES = {
    "c2llm": "qwen2",
    "bigemma3_text": "gemma3_text",
    "minicpm": "granite",
    "new": "gte",
    **{name: known for name, (_, known) in tiny_decoders.BIDIRECTIONAL.items()},
}
TEXTS: Texts = texts_of(9, 40)
# Read by from_pretrained itself: they select the class, its code or the number format.
NOT_SETTINGS = {"_name_or_path", "architectures", "dtype", "model_type", "transformers_version"}
OLDER: tuple[tuple[str, Any], ...] = (
    ("is_causal", True),
    ("is_causal", False),
    ("rope_theta", 50.0),
    ("rope_scaling", {"type": "linear", "factor": 4.0}),
    ("rope_scaling", {"rope_type": "linear", "factor": 4.0}),
)

_TRAINED = {"factor": 4.0, "original_max_position_embeddings": 16}
ROPES: tuple[Mapping[str, Any], ...] = (  # forms of rope_parameters and rope_scaling
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", **_TRAINED},
    {"rope_type": "yarn", **_TRAINED, "attention_factor": 0.4, "beta_fast": 8.0, "beta_slow": 0.5},
    {"rope_type": "yarn", **_TRAINED, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False},
    {"rope_type": "llama3", **_TRAINED, "low_freq_factor": 0.5, "high_freq_factor": 3.0},
    {"rope_type": "longrope", **_TRAINED, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
)
# Each has code of its own for these forms; the other architectures share that of llama.
READERS_OF_ROPES = {"embedding_gemma2_text", "gemma3_text", "gte", "llama", "ministral3", "modernbert", "nomic_bert"}
# The network, with its nested settings, is that of another case.
SAME_NETWORKS = {"bigemma3_text", "c2llm", "embedding_gemma2", *tiny_decoders.BIDIRECTIONAL}
# Their class reads the same keys as that of another case, also without a causal mask.
SAME_READERS = {"bidirectional_pplx_qwen3", "biqwen3", "camembert", "ministral3_bidirec", "xlm_roberta"}
READERS = sorted(CASES.keys() - SAME_READERS)
HOSTILE: tuple[Any, ...] = (10**30, -1e30, float("nan"), "x", [{}], {"a": 1})

Place = tuple[str, ...]  # the key, and keys inside its object


@pytest.mark.parametrize("name", READERS)
def test_a_changed_setting_gives_the_references_numbers_or_is_refused(name: str, tmp_path: Path) -> None:
    """If transformers cannot load the changed config, only a refusal passes, unless a table names the key and why it
    has no effect."""
    case, wrong = CASES[name], []
    folder = case.write(tmp_path)
    file = folder / "config.json"
    saved = json.loads(file.read_text())
    unchanged = numpy_answer(case.spec(folder), TEXTS)
    reasons = reasons_of(name)
    for place, value in (*changes(saved), *nested_changes(name, saved)):
        file.write_text(json.dumps(changed(saved, place, value)))
        try:
            got = numpy_answer(case.spec(folder), TEXTS)
        except ModelUnavailable:
            continue
        # transformers selects the factors of longrope for a whole batch, by its longest text.
        batches = [[text] for text in TEXTS] if "longrope" in str(value) else [TEXTS]
        try:
            want = np.concatenate([case.reference(folder, batch) for batch in batches])
        except Exception as error:  # transformers' and torch's own, of any class
            known = reasons.get(place[-1])
            if known is None or not known.accepts(value):
                wrong.append(f"{'.'.join(place)} = {value!r} is accepted; the reference raises {type(error).__name__}")
                continue
            want = unchanged
        if got.shape != want.shape or not np.allclose(got, want, atol=1e-4):
            wrong.append(f"{'.'.join(place)} = {value!r}")
    assert not wrong, wrong


@pytest.mark.parametrize("name", READERS)
def test_a_value_of_another_type_or_size_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    """For each setting that the network reads: no traceback, and no number of it in a vector. A float without a
    fraction, or a flag's usual value, may be accepted if it changes nothing."""
    case, wrong = CASES[name], []
    folder = case.write(tmp_path)
    saved = json.loads((folder / "config.json").read_text())
    unchanged = numpy_answer(case.spec(folder), TEXTS)
    reasons = reasons_of(name)
    for place in dict.fromkeys(place for place, _ in changes(saved)):
        for value in HOSTILE:
            known = reasons.get(place[-1])
            if known is not None and known.accepts(value):
                continue
            config = changed(saved, place, value)
            try:
                got = numpy_answer(case.spec(folder, config=config), TEXTS)
            except ModelUnavailable as refused:
                assert str(refused).isprintable()
                continue
            if not np.array_equal(got, unchanged):
                wrong.append(f"{'.'.join(place)} = {value!r}")
    assert not wrong, wrong


def test_every_architecture_is_covered() -> None:
    """An architecture without a case here would accept any setting."""
    # test_towers.py, test_pages.py, test_gemma4_vision.py, test_qwen_vl.py, test_t5gemma2.py
    others = {*TOWERS, "gemma4_vision", "pages", "qwen_vl", "t5gemma2"}
    towers = {name for name, (place, _) in ARCHITECTURES.items() if place.partition(".")[0] in others}
    assert set(ARCHITECTURES) - towers <= {name.partition(" of ")[0] for name in CASES}
    assert {class_of(name) for name in SAME_READERS} <= {class_of(name.partition(" of ")[0]) for name in READERS}


def reasons_of(name: str) -> Mapping[str, Harmless]:
    """The keys that the architecture need not read."""
    return {**CONFIG, **class_of(name.partition(" of ")[0]).HARMLESS}


def changes(saved: Mapping[str, Any]) -> Iterator[tuple[Place, Any]]:
    """The place and value of each change."""
    for key, value in settings(saved).items():
        yield from ((place, other) for place, scalar in scalars((key,), value) for other in others(scalar))
    for key, value in OLDER:
        yield (key,), value


def settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the config class and of the file."""
    model_type = saved["model_type"]
    known = transformers.AutoConfig.for_model(CLASSES.get(model_type, model_type)).to_dict()
    return {key: value for key, value in {**known, **saved}.items() if key not in NOT_SETTINGS}


def nested_changes(name: str, saved: Mapping[str, Any]) -> Iterator[tuple[Place, Any]]:
    """The place and value of each change in a list, and in each form of rope_parameters and rope_scaling."""
    found = {} if name in SAME_NETWORKS else settings(saved)
    for key, value in found.items():
        for place, values in lists((key,), value):
            yield from ((place, other) for other in changed_lists(values))
    for key in found.keys() & {"rope_parameters", "rope_scaling"}:
        layers = [kind for kind, inner in (found[key] or {}).items() if isinstance(inner, dict)]
        for i, rope in enumerate(ROPES):
            forms = changed_ropes(rope) if name in READERS_OF_ROPES else [{**rope, "rope_theta": 50.0}]
            yield from (((key, *layers[i % 2 :][:1]), form) for form in forms)


def lists(place: Place, value: Any) -> Iterator[tuple[Place, list[Any]]]:
    if isinstance(value, list):
        yield place, value
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from lists((*place, str(key)), inner)


def changed_lists(values: list[Any]) -> Iterator[list[Any]]:
    """Shorter, longer, in another order, and with each other element in each place."""
    yield from (other for other in (values[:-1], [*values, *values[-1:]], values[::-1]) if other != values)
    for i, own in enumerate(values):
        for other in (*dict.fromkeys(map(str, values)), "x", None, True):
            if other != own:
                yield [*values[:i], other, *values[i + 1 :]]


def changed_ropes(rope: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The form without rope_theta, with it, and with each entry changed, null or removed."""
    full = {**rope, "rope_theta": 50.0}
    yield from (dict(rope), full, {**full, "made_up": 1})
    for key, value in full.items():
        yield {name: given for name, given in full.items() if name != key}
        if key != "rope_type":
            for other in (*others(value)[:1], None):
                yield {**full, key: other}
    yield {**full, "type": "default"}


def scalars(place: Place, value: Any) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from scalars((*place, str(key)), inner)
    elif not isinstance(value, list):
        yield place, value


def others(value: Any) -> tuple[Any, ...]:
    match value:
        case bool():
            return (not value,)
        case int():
            return (value + 1, value // 2) if value > 1 else (value + 1,)
        case float():
            return (value * 3 or 0.5,)
        case str():
            return ("relu", "silu")
        case _:
            return (True, 7)


def changed(saved: Mapping[str, Any], place: Place, value: Any) -> dict[str, Any]:
    config = deepcopy(dict(saved))
    inner = config
    for key in place[:-1]:
        inner = inner.setdefault(key, {})
    inner[place[-1]] = value
    return config
