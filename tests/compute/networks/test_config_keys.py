"""Each key of config.json is read by the network, known to be harmless, ignored as by transformers, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compute.networks import tiny_decoders, tiny_encoders
from tests.compute.networks.case import numpy_answer, texts_of
from tests.compute.networks.reference_keys import reference_keys

from vectord.checkpoints.config_keys import REFERENCE_KEYS
from vectord.checkpoints.files.read import Settings
from vectord.errors import ModelUnavailable

CASES = {**tiny_encoders.CASES, **tiny_decoders.CASES}
TEXTS = texts_of(3)
# Keys of published models' config.json, except widths and numbers of layers, heads and words, with the name of a case.
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = json.loads(Path(__file__).with_name("published.json").read_text())


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_unknown_key_of_a_model_with_its_own_code_is_refused_and_can_be_allowed(name: str, tmp_path: Path) -> None:
    """One line names file, key, value and option. A null is no value."""
    case = CASES[name]
    folder = case.write(tmp_path)
    path = folder / "config.json"
    saved = {**json.loads(path.read_text()), "auto_map": {"AutoModel": "modeling.Model"}}
    path.write_text(json.dumps({**saved, "embedding_scale": 2.5}))
    with pytest.raises(
        ModelUnavailable,
        match=rf"^{path}: embedding_scale 2\.5 is not supported .*--allow-unknown-config embedding_scale ignores it$",
    ):
        numpy_answer(case.spec(folder), TEXTS)
    allowed = Settings(path, {**saved, "embedding_scale": 2.5}, ["embedding_scale"])
    numpy_answer(case.spec(folder, config=allowed), TEXTS)
    numpy_answer(case.spec(folder, config={**saved, "embedding_scale": None}), TEXTS)


@pytest.mark.parametrize("name", ["bert", "modernbert", "qwen2", "t5", "xlm_roberta"])
def test_a_key_that_transformers_ignores_is_logged_once(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It changes no number, in transformers and here."""
    caplog.set_level("INFO")
    case = CASES[name]
    folder = case.write(tmp_path)
    path = folder / "config.json"
    unchanged = numpy_answer(case.spec(folder), TEXTS)
    ignored = {"embedding_scale": 2.5, "num_experts": {"a": 1}, "use_bidirectional_attention": True}
    path.write_text(json.dumps({**json.loads(path.read_text()), **ignored}))
    for _ in range(2):
        np.testing.assert_array_equal(numpy_answer(case.spec(folder), TEXTS), unchanged)
    np.testing.assert_allclose(case.reference(folder, TEXTS), unchanged, atol=1e-4)
    lines = [line for line in caplog.messages if "ignored" in line]
    assert lines == [f"{path}: ignored, as by transformers: {', '.join(ignored)}"]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("bert", "quantization_config"),
        ("bert", "rope_theta"),
        ("bert", "text_config"),
        ("bert", "is_causal"),
        ("qwen2", "head_dim"),
        ("gemma2", "use_bidirectional_attention"),
        ("modernbert", "sliding_window"),
    ],
)
def test_a_key_that_transformers_reads_is_read_or_refused(name: str, key: str, tmp_path: Path) -> None:
    """Its config class need not have the key: masks, rotation and loading read keys of every class."""
    case = CASES[name]
    folder = case.write(tmp_path)
    config = {**case.spec(folder).config, key: {"a": 1} if key.endswith("config") else "x"}
    with pytest.raises(ModelUnavailable, match=rf"\b{key}\b"):
        numpy_answer(case.spec(folder, config=config), TEXTS)


def test_the_table_of_keys_is_that_of_transformers() -> None:
    """Of the installed version. After an update, `python -m tests.compute.networks.reference_keys` writes it."""
    assert json.loads(REFERENCE_KEYS.read_text()) == reference_keys()


@pytest.mark.parametrize(("case_name", "published"), PUBLISHED.values(), ids=PUBLISHED)
def test_no_published_model_has_a_refused_key(case_name: str, published: dict[str, Any], tmp_path: Path) -> None:
    """The config has the widths and layers of a tiny model, and the other settings as published."""
    case = CASES[case_name]
    folder = case.write(tmp_path)
    saved = case.spec(folder).config
    numpy_answer(case.spec(folder, config={**saved, **published}), TEXTS)
