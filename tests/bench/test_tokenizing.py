"""The benchmark of tokenizers prints both in one run."""

from __future__ import annotations

import email
import sys
import sysconfig
from pathlib import Path

import pytest

from bench import tokenizing
from vectord.checkpoints.hub import resolve
from vectord.config import DEFAULT_MODEL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tokie is used on Linux only")


def test_both_libraries_have_a_row_for_each_size_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a time for each round. The texts are those of one package, which is read sooner than the whole library."""
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": Path(email.__file__).parent})
    corpus, found = tokenizing.measure(resolve(DEFAULT_MODEL, offline=True).folder / "tokenizer.json", 16, 2)
    assert len(corpus.texts) == 16
    names = [f"{name}, {size} a call" for size in tokenizing.TEXTS_A_CALL for name in ("tokenizers", "tokie")]
    assert [row.what for row in tokenizing.rows(found)] == names
    assert all(len(times) == 2 for times in found.values())
