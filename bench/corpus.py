"""Real texts with lengths as in retrieval: the docstrings of Python's standard library.

Every machine that runs vectord has them, so nothing is downloaded. The parent process makes the corpus once and gives
the same texts, in the same order, to every measured program.
"""

from __future__ import annotations

import ast
import bisect
import hashlib
import itertools
import random
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Encoding, Tokenizer

MAX_TOKENS = 256  # the limit of all-MiniLM-L6-v2, so that no program truncates
# (quantile, tokens) between which lengths grow evenly: mean 61, median 36, ninth decile 158. Documentation paragraphs.
SPREAD = ((0.0, 6), (0.1, 10), (0.25, 17), (0.5, 36), (0.75, 68), (0.9, 158), (0.98, 256), (1.0, 256))
PASSAGE_WORDS = 150  # longer docstrings become several passages; a word is about 1.4 tokens
SKIPPED_FOLDERS = {"site-packages", "test", "tests", "idlelib", "lib2to3"}


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts and their token ids with special tokens; no text is longer than MAX_TOKENS."""

    texts: Sequence[str]
    ids: Sequence[Sequence[int]]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))

    @property
    def digest(self) -> str:
        """A digest of the texts, which differ between Python versions."""
        return digest_of(self.texts)

    def pick(self, positions: Sequence[int]) -> Corpus:
        return Corpus([self.texts[i] for i in positions], [self.ids[i] for i in positions])

    def first(self, count: int) -> Corpus:
        return self.pick(range(min(count, len(self.texts))))

    def nearest(self, tokens: int, count: int) -> list[int]:
        """Positions of the `count` texts whose length is nearest to `tokens`."""
        return sorted(range(len(self.ids)), key=lambda i: abs(len(self.ids[i]) - tokens))[:count]


def digest_of(texts: Sequence[str]) -> str:
    """Return 12 hex digits that differ if a text or the order does."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def make_corpus(tokenizer_file: Path, size: int = 4096) -> Corpus:
    """`size` distinct texts, the same on every run of one Python version, in pseudo-random order."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    passages = list(dict.fromkeys(_passages(Path(sysconfig.get_paths()["stdlib"]))))
    lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch_fast(passages)]
    chosen = [passages[i] for i in choose_lengths(lengths, size)]
    random.Random(0).shuffle(chosen)
    texts = [_cut(text, encoding) for text, encoding in zip(chosen, tokenizer.encode_batch(chosen), strict=True)]
    return Corpus(texts, [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)])


def choose_lengths(lengths: Sequence[int], size: int) -> list[int]:
    """Positions of `size` texts whose lengths follow SPREAD: for each target length the closest unused text.

    Longest first, because long texts are the scarce ones. Raises ValueError if there are fewer than `size`.
    """
    if len(lengths) < size:
        raise ValueError(f"{size} texts requested, {len(lengths)} found")
    unused = sorted((length, position) for position, length in enumerate(lengths))
    chosen = []
    for step in reversed(range(size)):
        target = _quantile((step + 0.5) / size)
        right = bisect.bisect_left(unused, (target, 0))
        around = [i for i in (right - 1, right) if 0 <= i < len(unused)]
        nearest = min(around, key=lambda i: abs(unused[i][0] - target))
        chosen.append(unused.pop(nearest)[1])
    return chosen


def _quantile(share: float) -> float:
    for (low, shorter), (high, longer) in itertools.pairwise(SPREAD):
        if share <= high:
            return shorter + (longer - shorter) * (share - low) / (high - low)
    return SPREAD[-1][1]


def _cut(text: str, encoding: Encoding) -> str:
    """The longest prefix of whole words that fits MAX_TOKENS with special tokens."""
    if len(encoding.ids) <= MAX_TOKENS:
        return text
    room = MAX_TOKENS - 1  # the closing special token
    first_word_out = encoding.word_ids[room]
    last = max(i for i in range(room) if encoding.word_ids[i] not in (None, first_word_out))
    return text[: encoding.offsets[last][1]]


def _passages(root: Path) -> Iterator[str]:
    """Every docstring below `root`, in the order of file names, in runs of at most PASSAGE_WORDS words."""
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts):
            for docstring in _docstrings(path):
                words = docstring.split()
                for start in range(0, len(words), PASSAGE_WORDS):
                    yield " ".join(words[start : start + PASSAGE_WORDS])


def _docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # the standard library has old escapes
        module = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
