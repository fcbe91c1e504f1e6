"""Ids of single tokens in every form of tokenizer.json."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.checkpoints.folders import write_json

from vectord.checkpoints.vocabulary import find_ids
from vectord.errors import ModelUnavailable

ADDED = [{"id": 40, "content": "yes"}, {"id": 41, "content": "[Q] "}]


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({"model": {"type": "BPE", "vocab": {"yes": 4, "no": 5}}}, {"yes": 4, "no": 5}),
        ({"model": {"type": "Unigram", "vocab": [["<unk>", 0], ["yes", -1.5]]}}, {"yes": 1}),
        ({"model": {"vocab": {"yes": 4}}, "added_tokens": ADDED}, {"yes": 40, "[Q] ": 41}),
        ({"model": {"vocab": {"Yes": 4, "Ġyes": 5, "[Q]": 6}}, "added_tokens": None}, {}),
    ],
    ids=["an object", "Unigram's list", "added tokens first", "nothing but the exact token"],
)
def test_tokens_are_found_in_every_form(fields: dict[str, object], ids: dict[str, int], tmp_path: Path) -> None:
    """Known tokens with their ids; unknown ones are left out."""
    write_json(tmp_path / "tokenizer.json", fields)
    assert find_ids(tmp_path / "tokenizer.json", ("yes", "no", "[Q] ")) == ids


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": {}},
        {"model": {"vocab": "yes"}},
        {"model": {"vocab": {"yes": "1"}}},
        {"model": {"vocab": {"yes": -1}}},
        {"model": {"vocab": {"yes": 2**31}}},
        {"model": {"vocab": {}}, "added_tokens": [{"id": True, "content": "yes"}]},
        {"model": {"vocab": {}}, "added_tokens": {"yes": 1}},
        {"model": {"vocab": {}}, "added_tokens": ["yes"]},
    ],
    ids=str,
)
def test_an_invalid_vocabulary_is_refused(fields: dict[str, object], tmp_path: Path) -> None:
    """The message names the file."""
    write_json(tmp_path / "tokenizer.json", fields)
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.json"):
        find_ids(tmp_path / "tokenizer.json", ("yes",))
