"""Each key of config.json is read by the network, known to be harmless, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.compute.networks import tiny_decoders, tiny_encoders
from tests.compute.networks.case import numpy_answer, texts_of
from tests.compute.networks.published import PUBLISHED

from vectord.checkpoints.files.read import Settings
from vectord.errors import ModelUnavailable

CASES = {**tiny_encoders.CASES, **tiny_decoders.CASES}
TEXTS = texts_of(3)


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_unknown_key_is_refused_and_can_be_allowed(name: str, tmp_path: Path) -> None:
    """One line names file, key, value and option. A null is no value."""
    case = CASES[name]
    folder = case.write(tmp_path)
    path = folder / "config.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps({**saved, "embedding_scale": 2.5}))
    with pytest.raises(
        ModelUnavailable,
        match=rf"^{path}: embedding_scale 2\.5 is not supported .*--allow-unknown-config embedding_scale ignores it$",
    ):
        numpy_answer(case.spec(folder), TEXTS)
    allowed = Settings(path, {**saved, "embedding_scale": 2.5}, ["embedding_scale"])
    numpy_answer(case.spec(folder, config=allowed), TEXTS)
    numpy_answer(case.spec(folder, config={**saved, "embedding_scale": None}), TEXTS)


@pytest.mark.parametrize("key", ["quantization_config", "text_config", "rope_theta", "num_experts", "is_causal"])
def test_a_key_of_other_architectures_is_refused_where_no_code_reads_it(key: str, tmp_path: Path) -> None:
    case = CASES["bert"]
    folder = case.write(tmp_path)
    config = {**case.spec(folder).config, key: {"a": 1} if key.endswith("config") else True}
    with pytest.raises(ModelUnavailable, match=f"config.json: {key} "):
        numpy_answer(case.spec(folder, config=config), TEXTS)


@pytest.mark.parametrize(("case_name", "published"), PUBLISHED.values(), ids=PUBLISHED)
def test_no_published_model_has_a_refused_key(case_name: str, published: dict[str, Any], tmp_path: Path) -> None:
    """The config has the widths and layers of a tiny model, and the other settings as published."""
    case = CASES[case_name]
    folder = case.write(tmp_path)
    saved = case.spec(folder).config
    numpy_answer(case.spec(folder, config={**saved, **published}), TEXTS)
