"""The table of another vocabulary's tokens: read strictly, and back to text as tiktoken does it."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord.errors import ConfigError
from vectord.text import foreign
from vectord.text.foreign import MAX_FILE_BYTES, ForeignTable, open_cl100k, read_tokens

TOKENS = [b"hello", b" world", b"!", b"\xf0\x9f", b"\x91\x8d", b"\xc3", bytes(range(250, 256))]
SPECIAL = 100


def table_of(tokens: list[bytes]) -> bytes:
    return b"".join(b"%b %d\n" % (base64.b64encode(token), place) for place, token in enumerate(tokens))


def test_ids_become_the_text_that_they_came_from() -> None:
    """Bytes of several tokens may make one character; a special token stands for none."""
    table = ForeignTable(TOKENS, frozenset({SPECIAL}))
    assert table.decode([0, 1, 2]) == "hello world!"
    assert table.decode([0, SPECIAL, 3, 4, SPECIAL]) == "hello\U0001f44d"
    assert table.decode([]) == ""


def test_half_a_character_is_replaced() -> None:
    """A client that cuts a long text between tokens cuts characters, too; tiktoken replaces them alike."""
    table = ForeignTable(TOKENS)
    assert table.decode([0, 3]) == "hello\ufffd"
    assert table.decode([4, 0]) == "\ufffd\ufffdhello"


@pytest.mark.parametrize("id_", [7, 99, -1, 10**30, -(10**30)])
def test_an_id_beyond_the_table_is_none_of_its(id_: int) -> None:
    """Negative ones do not count from its end."""
    table = ForeignTable(TOKENS, frozenset({SPECIAL}))
    assert table.decode([0, id_, 1]) is None


@given(st.lists(st.binary(max_size=9), max_size=30))
def test_a_table_is_read_as_it_was_written(tokens: list[bytes]) -> None:
    """Line by line."""
    assert read_tokens(table_of(tokens)) == tokens


@pytest.mark.parametrize(
    "data",
    [b"IQ== 1\n", b"IQ== 0\nIg== 2\n", b"IQ== 0\nIg== 0\n", b"IQ==\n", b"I! 0\n", b"IQ== 0 0\n", b"\n", b"IQ== 00\n"],
    ids=["not from 0", "one left out", "one twice", "no id", "no base64", "three words", "no words", "another number"],
)
def test_anything_else_is_refused(data: bytes) -> None:
    """With the line."""
    with pytest.raises(ConfigError, match=r"foreign_token_table: line [12]"):
        read_tokens(data)


def test_the_file_is_known_by_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other table would turn ids into other words; it stops the start."""
    path = tmp_path / "cl100k_base.tiktoken"
    data = table_of(TOKENS)
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="is not cl100k_base"):
        open_cl100k(path)
    monkeypatch.setattr(foreign, "CL100K_SHA256", hashlib.sha256(data).hexdigest())
    assert open_cl100k(path).decode([0, 1, 100257, 100276]) == "hello world"
    path.write_bytes(data.replace(b" 2", b" 3"))
    with pytest.raises(ConfigError, match="is not cl100k_base"):
        open_cl100k(path)


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    """In one line that names the setting and the file."""
    with pytest.raises(ConfigError, match=r"foreign_token_table: .*none: cannot be read"):
        open_cl100k(tmp_path / "none")
    (tmp_path / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 2))
    with pytest.raises(ConfigError, match="is not cl100k_base"):
        open_cl100k(tmp_path / "large")


def test_a_broken_table_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one of the right hash: opening reads every line of it, and no request meets what is wrong in it."""
    data = table_of(TOKENS).replace(b" 2", b" 3")
    path = tmp_path / "cl100k_base.tiktoken"
    path.write_bytes(data)
    monkeypatch.setattr(foreign, "CL100K_SHA256", hashlib.sha256(data).hexdigest())
    with pytest.raises(ConfigError, match=r"^foreign_token_table: line 3: expected base64, a blank and 2$"):
        open_cl100k(path)
