"""The table of another vocabulary's tokens: read strictly, and back to text as tiktoken does it."""

from __future__ import annotations

import base64
import hashlib
import threading
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
    table = ForeignTable(table_of(TOKENS), frozenset({SPECIAL}))
    assert table.decode([0, 1, 2]) == "hello world!"
    assert table.decode([0, SPECIAL, 3, 4, SPECIAL]) == "hello\U0001f44d"
    assert table.decode([]) == ""


def test_half_a_character_is_replaced() -> None:
    """A client that cuts a long text between tokens cuts characters, too; tiktoken replaces them alike."""
    table = ForeignTable(table_of(TOKENS))
    assert table.decode([0, 3]) == "hello\ufffd"
    assert table.decode([4, 0]) == "\ufffd\ufffdhello"


@pytest.mark.parametrize("id_", [7, 99, -1, 10**30, -(10**30)])
def test_an_id_beyond_the_table_is_none_of_its(id_: int) -> None:
    """Negative ones do not count from its end."""
    table = ForeignTable(table_of(TOKENS), frozenset({SPECIAL}))
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


def test_threads_share_one_table() -> None:
    """It is read once, by whoever comes first."""
    table = ForeignTable(table_of([b"%d " % i for i in range(5000)]))
    texts: list[str | None] = []
    threads = [threading.Thread(target=lambda: texts.append(table.decode([7, 4999]))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["7 4999 "] * 8
