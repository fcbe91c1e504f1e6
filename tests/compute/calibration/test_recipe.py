"""calibration/recipe.py: a later start reads the stored recipe, or fits again."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vectord.compute.calibration.recipe import QuantizedPlace, Recipe, keep_recipe, read_recipe

RECIPE = Recipe({3: QuantizedPlace(np.array([1, 2.5], np.float32), -0.5, 2.0)}, 63, 2, 4, 0.9971, 0.981, 0.97, 1.4)


def test_a_stored_recipe_is_read(tmp_path: Path) -> None:
    """Every number of it; the folder is created."""
    keep_recipe(tmp_path / "new", "key", RECIPE)
    found = read_recipe(tmp_path / "new", "key")
    assert found is not None
    np.testing.assert_array_equal(found.places[3].smooth, [1, 2.5])
    assert (found.places[3].low, found.places[3].high) == (-0.5, 2.0)
    assert (found.weight_steps, found.linears, found.all_linears, found.mean_cosine) == (63, 2, 4, 0.9971)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["int8-key.json"]


def test_another_key_has_no_recipe(tmp_path: Path) -> None:
    """Another model, other texts, another processor."""
    keep_recipe(tmp_path, "key", RECIPE)
    assert read_recipe(tmp_path, "other") is None


@pytest.mark.parametrize(
    "change",
    [
        {"key": "other"},
        {"weight_steps": 128},
        {"linears": "2"},
        {"more": 1},
        {"places": {"x": {}}},
        {"places": {"3": {"smooth": "AAAA", "low": 0, "high": 1}}},
        {"places": {"3": {"smooth": "AAAAAA==", "low": 0, "high": 1}}},
        {"places": {"3": {"smooth": "AACAPw==", "low": 1, "high": 2}}},
    ],
    ids=["key", "steps", "type", "field", "number", "no floats", "zero", "range"],
)
def test_a_damaged_file_is_ignored(change: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the model is fitted again."""
    keep_recipe(tmp_path, "key", RECIPE)
    file = tmp_path / "int8-key.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with caplog.at_level(logging.WARNING):
        assert read_recipe(tmp_path, "key") is None
    assert "is damaged" in caplog.text


def test_an_unwritable_folder_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server starts all the same."""
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        keep_recipe(tmp_path / "file", "key", RECIPE)
    assert "fitting at each start" in caplog.text
