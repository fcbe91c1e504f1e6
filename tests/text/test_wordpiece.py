"""Texts that tokie reads have the ids that tokenizers makes of them; tokenizers reads all others."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokie
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.models import MINILM
from tests.text.makers import ALL, SENTENCES, make_encoder, read, varied_texts, wordpiece
from tokenizers import Tokenizer, normalizers

from vectord.checkpoints.spec import Colbert
from vectord.schema import TextOptions
from vectord.text import plain
from vectord.text.wordpiece import _RANGES, LONGEST_CHARACTERS, FastWordPiece

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tokie is used on Linux only")

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "ASCII": [(0x00, 0x7F)],
    "Latin": [(0x20, 0x7E), (0xA0, 0x24F), (0x1E00, 0x1EFF)],
    "Greek": [(0x20, 0x7E), (0x370, 0x3FF)],
    "Cyrillic": [(0x20, 0x7E), (0x400, 0x52F)],
    "Hebrew": [(0x20, 0x40), (0x590, 0x5FF)],
    "Arabic": [(0x20, 0x40), (0x600, 0x6FF)],
    "Devanagari": [(0x20, 0x40), (0x900, 0x97F)],
    "Thai": [(0x20, 0x40), (0xE00, 0xE7F)],
    "Jamo": [(0x20, 0x40), (0x1100, 0x11FF), (0xAC00, 0xD7A3)],
    "punctuation": [(0x20, 0x7E), (0x2000, 0x206F), (0x3000, 0x303F), (0xFF00, 0xFFEF)],
    "symbols": [(0x20, 0x7E), (0x20A0, 0x2BFF)],
    "Japanese": [(0x20, 0x40), (0x3040, 0x30FF), (0x4E00, 0x9FFF)],
    "Chinese": [(0x20, 0x40), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)],
    "emoji": [(0x20, 0x7E), (0x200B, 0x200D), (0xFE00, 0xFE0F), (0x1F000, 0x1FAFF)],
    "marks": [(0x61, 0x7A), (0x300, 0x36F), (0x1AB0, 0x1AFF)],
    "any": [(0x00, 0xD7FF), (0xE000, 0x10FFFF)],
}


def prepared(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def loaded(path: Path) -> FastWordPiece:
    reader, allowed = FastWordPiece(prepared(path), path), os.sched_getaffinity(0)
    reader.load()
    assert os.sched_getaffinity(0) == allowed
    return reader


def minilm(folder: Path) -> Path:
    """A copy of the default model's tokenizer.json."""
    return Path(shutil.copy(MINILM / "tokenizer.json", folder))


def written(folder: Path, tokenizer: Tokenizer) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def wanted(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def found_by(reader: FastWordPiece, texts: list[str]) -> list[list[int] | None]:
    """The ids of each text; None: it is left to tokenizers."""
    read = reader.read(texts)
    if read is None:
        return [None] * len(texts)
    tokens, left = read
    assert len(tokens.ids) == sum(tokens.sizes)
    rows = tokens.each()
    return [None if i in left else next(rows)[0].tolist() for i in range(len(texts))]


def is_read(reader: FastWordPiece, text: str) -> bool:
    return found_by(reader, [text]) != [None]


@pytest.fixture(scope="module", params=["uncased", "cased", "trained here"])
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[FastWordPiece, Tokenizer]:
    """The fast reader and tokenizers, of the default model's vocabulary or a tiny one."""
    folder = tmp_path_factory.mktemp("model")
    if request.param == "trained here":
        path = written(folder, wordpiece())
    else:
        tokenizer = prepared(minilm(folder))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=request.param == "uncased")
        path = written(folder, tokenizer)
    reader = loaded(path)
    assert is_read(reader, "a")
    return reader, prepared(path)


@pytest.fixture
def uncased(tmp_path: Path) -> Path:
    return minilm(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS)
def test_ids_are_those_of_tokenizers(script: str, pair: tuple[FastWordPiece, Tokenizer]) -> None:
    """Whatever the text is, if it is read at all."""
    reader, tokenizer = pair
    characters = st.one_of(*(st.characters(min_codepoint=low, max_codepoint=high) for low, high in SCRIPTS[script]))
    words = st.text(characters | st.sampled_from(" \t\n[]#"), max_size=60)

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @example(texts=["", " ", "a", "a" * 101, "##a", "[ C L S ]", "unbrea", "ΑΣ ΑΣα", "İI"])
    @given(texts=st.lists(words, max_size=6))
    def check(texts: list[str]) -> None:
        for ids, want in zip(found_by(reader, texts), wanted(tokenizer, texts), strict=True):
            assert ids in (None, want)

    check()


def test_every_character_of_the_ranges_is_read_alike(pair: tuple[FastWordPiece, Tokenizer]) -> None:
    """Alone, in a word, and twice; a load compares only some of them."""
    reader, tokenizer = pair
    ranges = [range(ord(first), ord(last) + 1) for first, last in (one.split("-") for one in _RANGES)]
    texts = [f"{character} a{character}b {character}{character}" for one in ranges for character in map(chr, one)]
    for text, ids, want in zip(texts, found_by(reader, texts), wanted(tokenizer, texts), strict=True):
        assert ids == want, text


def test_words_are_read_alike(pair: tuple[FastWordPiece, Tokenizer]) -> None:
    """Words of the vocabulary, cut and joined at random, as no probe of a load has them."""
    reader, tokenizer = pair
    rng = random.Random(36)
    words = [word.removeprefix("##") for word in tokenizer.get_vocab() if word.isascii()]
    texts = ["".join(rng.choices([*words, " ", " ", "-"], k=rng.randint(1, 60))) for _ in range(2000)]
    for text, ids, want in zip(texts, found_by(reader, texts), wanted(tokenizer, texts), strict=True):
        assert ids == want or (ids is None and "[" in text), text


LEFT = {
    "a control character": "a\x7fb",
    "punctuation that is newer than the tables of tokenizers": "a\u2e5db",
    "an unassigned character": "a\u0378b",
    "a special token": "a [SEP] b",
    "a special token without spaces": "a[MASK]b",
    "a long text": "a" * (LONGEST_CHARACTERS + 1),
    "a hundred thousand marks": "a" + "\u0301" * 100_000,
    "half of a surrogate pair": "a\ud800",
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_unusual_texts_are_left_to_tokenizers(text: str, uncased: Path) -> None:
    """The others of the same call are read."""
    reader = loaded(uncased)
    before, unusual, after = found_by(reader, ["a b", text, "c"])
    assert unusual is None
    assert [before, after] == wanted(prepared(uncased), ["a b", "c"])


def test_a_text_of_the_greatest_length_is_read_whole(uncased: Path) -> None:
    """The library would cut a text of more bytes."""
    reader, tokenizer = loaded(uncased), prepared(uncased)
    for text in ("東" * LONGEST_CHARACTERS, "x" * LONGEST_CHARACTERS, "the cat  sat on " * 625):
        assert found_by(reader, [text]) == wanted(tokenizer, [text])


def without(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    file = json.loads(path.read_text())
    change(file)
    path.write_text(json.dumps(file))
    return path


def _drop_letter(file: dict[str, Any]) -> None:
    """Without ##b, tokie reads "unb" as "un"."""
    del file["model"]["vocab"]["##b"]
    file["model"]["vocab"] = {token: i for i, token in enumerate(file["model"]["vocab"])}


def _drop_id(file: dict[str, Any]) -> None:
    """tokie numbers the words anew, without a gap."""
    del file["model"]["vocab"]["fox"]


OTHERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a letter that continues no word": _drop_letter,
    "a gap in the ids": _drop_id,
    "accents that stay": lambda file: file["normalizer"].update(strip_accents=False),
    "Chinese characters in words": lambda file: file["normalizer"].update(handle_chinese_chars=False),
    "control characters that stay": lambda file: file["normalizer"].update(clean_text=False),
    "no normalizer": lambda file: file.update(normalizer=None),
    "another normalizer": lambda file: file.update(normalizer={"type": "Lowercase"}),
    "another splitter": lambda file: file.update(pre_tokenizer={"type": "Whitespace"}),
    "another prefix": lambda file: file["model"].update(continuing_subword_prefix="@@"),
    "a normalized token": lambda file: file["added_tokens"][0].update(normalized=True),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_tokenizers_that_tokie_does_not_know_are_left_to_tokenizers(change: Any, uncased: Path) -> None:
    assert not is_read(loaded(without(uncased, change)), "a")


@pytest.mark.parametrize("make", [make for make in ALL if make is not wordpiece], ids=lambda make: make.__name__)
def test_other_types_are_left_to_tokenizers(make: Any, tmp_path: Path) -> None:
    assert not is_read(loaded(written(tmp_path, make())), "a")


@pytest.mark.parametrize("version", ["0.1.5", None], ids=["another version", "not installed"])
def test_only_the_known_version_is_used(version: str | None, uncased: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", find)
    assert not is_read(loaded(uncased), "a")


class PanicException(BaseException):
    """As pyo3's."""


class Spoiled:
    """tokie, which fails on the text "z", or without an error reads each z as y."""

    def __init__(self, path: Path, error: type[BaseException] | None = None) -> None:
        self._tokenizer, self._error = tokie.Tokenizer.from_json(str(path)), error

    def encode_batch_flat(self, texts: list[str], **options: Any) -> Any:
        if self._error is None:
            texts = [text.replace("z", "y") for text in texts]
        elif "z" in texts:
            raise self._error("a panic")
        return self._tokenizer.encode_batch_flat(texts, **options)


def test_a_library_that_reads_a_probe_differently_is_not_used(
    uncased: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = Spoiled(uncased)
    monkeypatch.setattr(tokie, "Tokenizer", type("Loader", (), {"from_json": lambda path: library}))
    with caplog.at_level(logging.WARNING, "vectord.text"):
        assert not is_read(loaded(uncased), "a")
    assert "differently" in caplog.text


@pytest.mark.parametrize("error", [PanicException, ValueError])
def test_tokenizers_reads_the_texts_of_a_call_that_fails(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A panic of the library is no Exception."""
    want = [one.ids.tolist() for one in read(make_encoder(tmp_path, wordpiece()), ["lazy", "z"])]
    library = Spoiled(tmp_path / "tokenizer.json", error)
    monkeypatch.setattr(tokie, "Tokenizer", type("Loader", (), {"from_json": lambda path: library}))
    assert is_read(loaded(tmp_path / "tokenizer.json"), "lazy")
    monkeypatch.setattr(plain, "COST_BEFORE_LOAD", 0)
    monkeypatch.setattr(FastWordPiece, "load_later", FastWordPiece.load)
    encoder = make_encoder(tmp_path, wordpiece())
    assert [one.ids.tolist() for one in read(encoder, ["lazy", "z"])] == want


def test_tokie_loads_after_enough_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of few texts starts as fast as without it."""
    calls: list[int] = []
    unread = FastWordPiece.read
    monkeypatch.setattr(FastWordPiece, "read", lambda self, texts: calls.append(len(texts)) or unread(self, texts))
    monkeypatch.setattr(plain, "COST_BEFORE_LOAD", 250)
    encoder = make_encoder(tmp_path, wordpiece())
    read(encoder, ["lazy", "dog"])
    assert calls == []
    read(encoder, ["lazy", "dog"])
    assert calls == [2]


def test_tokie_loads_in_a_thread_of_its_own(uncased: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller may be the event loop, which loading would block for 0.2 s."""
    threads: list[threading.Thread] = []
    done = threading.Event()

    def load(path: str) -> Any:
        threads.append(threading.current_thread())
        done.set()
        raise ValueError

    monkeypatch.setattr(tokie, "Tokenizer", type("Loader", (), {"from_json": load}))
    reader = FastWordPiece(prepared(uncased), uncased)
    assert not is_read(reader, "a")
    assert not is_read(reader, "a")
    assert done.wait(10)
    (thread,) = threads
    assert thread is not threading.current_thread()
    thread.join()


def test_the_library_starts_no_threads(uncased: Path) -> None:
    """All its work is that of the calling thread, which is one of the server's budget."""
    script = f"""
import time
from pathlib import Path
from tests.text.test_wordpiece import loaded
reader = loaded(Path({str(uncased)!r}))
reader.read(["a"])
texts = ["the quick brown fox jumps over the lazy dog"] * 20_000
before = time.process_time() - time.thread_time(), time.thread_time()
tokens, left = reader.read(texts)
assert len(tokens.sizes) == len(texts) and not left
others, own = time.process_time() - time.thread_time() - before[0], time.thread_time() - before[1]
print(others / own)
"""
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": "src:."},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert float(run.stdout) < 0.5


@pytest.mark.parametrize("kind", ["texts", "passages", "colbert"])
def test_a_model_reads_texts_as_before(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With prompts, special tokens of our own, and cuts; also the texts that tokenizers reads in the same request."""
    facts = {"colbert": Colbert(library="pylate"), "pooling": None} if kind == "colbert" else {}
    texts = [text for text in varied_texts(200) if text.strip()] + list(SENTENCES)
    what: dict[str, Any] = {"query": "lazy dog"} if kind == "passages" else {}
    options = [TextOptions()] if kind != "texts" else [TextOptions(), TextOptions(add_special_tokens=False)]
    before = make_encoder(tmp_path, wordpiece(), max_tokens=16, **facts)
    monkeypatch.setattr(plain, "COST_BEFORE_LOAD", 0)
    monkeypatch.setattr(FastWordPiece, "load_later", FastWordPiece.load)
    after = make_encoder(tmp_path, wordpiece(), max_tokens=16, **facts)
    assert 0 < found_by(loaded(tmp_path / "tokenizer.json"), texts).count(None) < len(texts)
    for one in options:
        for now, then in zip(read(after, texts, one, **what), read(before, texts, one, **what), strict=True):
            assert (now.ids.tolist(), now.length, now.index) == (then.ids.tolist(), then.length, then.index)
            assert now.ids.dtype == now.type_ids.dtype == np.int32
            assert now.type_ids.tolist() == then.type_ids.tolist()
