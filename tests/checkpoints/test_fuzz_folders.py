"""A random change of a model's folder is refused in one line, or gives the numbers of its library."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.checkpoints.fuzz_folders import faults
from tests.checkpoints.test_every_setting import CASES

CHANGES = 25  # of each folder; `make fuzz-folders` makes more


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_random_changes_of_a_folder_are_answered_as_its_library_answers(name: str, tmp_path: Path) -> None:
    """The changes are the same in each run."""
    case = CASES[name]
    found = list(faults(case, case.write(tmp_path), CHANGES, random.Random(name)))
    assert not found, "\n".join(["", *found])
