"""Reads texts with tokie, in a tenth of the time of tokenizers, where it certainly makes the same ids.

tokenizers is the reference, and reads all other texts. tokie is used for WordPiece after BERT's normalizer only, whose
code is short enough to compare with that of tokenizers. It differs for some vocabularies, which `_is_known` refuses,
and for some texts, which `FastWordPiece._is_sure` refuses; tests/text/test_wordpiece.py has an example of each.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from vectord.housekeeping import GuardedLogger
from vectord.text.sequence import TokenArrays
from vectord.text.tokenizer_file import is_library_failure

log = GuardedLogger(logging.getLogger("vectord.text"))

VERSION = "0.1.4"  # the version of tokie whose differences are known
# Loading and comparing take 0.2 s, half of which holds the GIL, and 18 MB. In this time, tokenizers reads so many
# characters: a model that reads fewer in all is better off without tokie. Each text counts 100 more.
COST_BEFORE_LOAD = 2**18
LONGEST_CHARACTERS = 10_000  # from 65,536 bytes on, tokie may cut a text and read the parts in several threads
PROBED_WORDS, PROBED_CHARACTERS_STEP = 2_000, 31

# Characters that both libraries normalize and split alike, each by itself: no marks, which normalization reorders, and
# none that is newer than the Unicode tables of tokenizers (8.0).
_RANGES = (
    *("\t-\n", "\r-\r", " -~", "\u00a0-\u02ff", "\u1e00-\u1eff"),  # Latin
    *("\u0386-\u038a", "\u038c-\u038c", "\u038e-\u03a1", "\u03a3-\u03ff"),  # Greek
    *("\u0400-\u0482", "\u048a-\u0527"),  # Cyrillic
    *("\u05d0-\u05ea", "\u060c-\u060c", "\u061b-\u061b", "\u061f-\u064a"),  # Hebrew, Arabic
    *("\u2000-\u2064", "\u20a0-\u20bd", "\u2100-\u2189", "\u2190-\u23f3", "\u2460-\u26ff", "\u2701-\u2b4c"),  # symbols
    *("\u3000-\u3029", "\u3041-\u3096", "\u309b-\u30ff", "\u4e00-\u9fcc", "\uff01-\uffbe"),  # Chinese, Japanese
    "\uac00-\ud7a3",  # Korean
)
_OTHER = re.compile(f"[^{''.join(_RANGES)}]")
_DELETE = "\x7f"  # the only character of ASCII that tokie reads differently


class FastWordPiece:
    """Reads texts for one model's tokenizer. Several threads use it at once."""

    def __init__(self, tokenizer: Tokenizer, path: Path) -> None:
        self._tokenizer, self._path = tokenizer, path
        added = (token.content for token in tokenizer.get_added_tokens_decoder().values())
        self._added = re.compile("|".join(map(re.escape, added)) or "(?!)")
        self._begun = Lock()  # held once the load has begun
        self._library: Any = None  # a tokie.Tokenizer; its type hints lack encode_batch_flat

    def read(self, texts: Sequence[str]) -> tuple[TokenArrays, list[int]] | None:
        """The tokens of texts without special tokens, and the places of the other texts, which tokenizers has to read.
        None: it has to read all. The first call begins to load tokie."""
        if self._library is None and self._begun.acquire(blocking=False):
            self.load_later()
        if self._library is None:
            return None
        left: list[int] = []
        if max(map(len, texts), default=0) > LONGEST_CHARACTERS or not self._is_sure("\n".join(texts)):
            left = [i for i, text in enumerate(texts) if len(text) > LONGEST_CHARACTERS or not self._is_sure(text)]
            places = {*left}
            texts = [text for i, text in enumerate(texts) if i not in places]
        if not texts:
            return None
        try:
            return _read(self._library, texts), left
        except BaseException as error:
            if not (is_library_failure(error) or isinstance(error, RuntimeError | TypeError | ValueError)):
                raise  # such as that of a signal handler
            log.warning("tokie failed, so tokenizers reads these texts: %r", error)
            return None

    def load_later(self) -> None:
        """Load in a thread, because the caller may be the event loop."""
        Thread(target=self.load, name="vectord-tokie").start()

    def load(self) -> None:
        """Load tokie, if it reads this model's texts as tokenizers does. Blocks."""
        self._library = self._load()

    def _load(self) -> Any:
        """The library's tokenizer; None if it cannot be used here, or reads a probe differently."""
        try:
            if not _is_known(self._tokenizer, self._path):
                return None
            import tokie  # noqa: PLC0415

            library = tokie.Tokenizer.from_json(str(self._path))
            # The process's first call of tokie finds out how many processors this thread may use. From then on, every
            # call uses so many threads; with one, it is that of the caller, which is within the server's budget.
            allowed = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {min(allowed)})
            try:
                _read(library, [])
            finally:
                os.sched_setaffinity(0, allowed)
            probes = [probe for probe in self._probes() if self._is_sure(probe)]
            encodings = self._tokenizer.encode_batch_fast(probes, add_special_tokens=False)
            for probe, (ids, _), encoding in zip(probes, _read(library, probes).each(), encodings, strict=True):
                if ids.tolist() != encoding.ids:
                    log.warning("%s: tokie is not used, because it reads %r differently", self._path, probe)
                    return None
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            log.warning("%s: tokie is not used: %r", self._path, error)
            return None
        log.info("%s: tokie reads ordinary texts", self._path)
        return library

    def _is_sure(self, text: str) -> bool:
        is_usual = _DELETE not in text if text.isascii() else _OTHER.search(text) is None
        return is_usual and self._added.search(text) is None

    def _probes(self) -> Iterator[str]:
        """Words of the vocabulary, and characters of all ranges."""
        vocabulary = sorted(self._tokenizer.get_vocab(with_added_tokens=False))
        for word in vocabulary[:: len(vocabulary) // PROBED_WORDS + 1]:
            yield f"{word} {word.upper()}-{word}s"
        for characters in _RANGES:
            first, last = map(ord, characters.split("-"))
            for character in map(chr, chain(range(first, last, PROBED_CHARACTERS_STEP), (last,))):
                yield f"{character} a{character}b {character}{character}"


def _read(library: Any, texts: Sequence[str]) -> TokenArrays:
    ids, sizes = library.encode_batch_flat(texts, add_special_tokens=False)
    return TokenArrays(ids.view(np.int32), sizes.tolist())


def _is_known(tokenizer: Tokenizer, path: Path) -> bool:
    """Whether the known version of tokie is installed, and obeys everything that is in this tokenizer."""
    model = tokenizer.model
    if sys.platform != "linux" or path.suffix != ".json" or not isinstance(model, models.WordPiece):
        return False
    from importlib import metadata  # noqa: PLC0415 - 15 ms of each start

    try:
        if metadata.version("tokie") != VERSION:
            return False
    except metadata.PackageNotFoundError:
        return False
    normalizer, splitter = (
        json.loads(part.__getstate__()) if part else {} for part in (tokenizer.normalizer, tokenizer.pre_tokenizer)
    )
    lowercases, strips_accents = normalizer.pop("lowercase", None), normalizer.pop("strip_accents", None)
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    # tokie omits the end of a word if only a longer token begins with it. Then its first character is no token.
    continued = {word[2] for word in vocabulary if word.startswith("##") and len(word) > 2}
    return (
        normalizer == {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
        and strips_accents in (None, lowercases)
        and splitter == {"type": "BertPreTokenizer"}
        and not any(token.normalized for token in tokenizer.get_added_tokens_decoder().values())
        and model.continuing_subword_prefix == "##"
        and model.unk_token in vocabulary
        and set(vocabulary.values()) == set(range(len(vocabulary)))
        and all(f"##{character}" in vocabulary for character in continued)
    )
