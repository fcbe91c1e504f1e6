"""Texts that show what rounding changes: English prose, many languages, numbers, code and short texts, a fifth each.

English prose alone flatters: its vectors move less than those of rare tokens, digits and single words. The texts come
from Python's standard library and from the translations of zensical, so nothing is downloaded. `precision.py`
compares the vectors of these texts.
"""

from __future__ import annotations

import random
import re
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.child import REPOSITORY
from bench.peer_files import CALIBRATION_TEXTS

_TRANSLATION = re.compile(r'^  "(?!language)[\w.]+": "(.*[^\W\d_]{2}.*)",?$', re.MULTILINE)
_CODE_LINES = 8
_SKIPPED = ("site-packages", "test", "tests", "idlelib", "lib2to3")


def precision_texts(prose: Sequence[str], count: int) -> list[str]:
    """Return `count` distinct texts in pseudo-random order, the same on every run. prose: at least a fifth of them."""
    draw = random.Random(0)
    words = [word for text in prose for word in re.findall(r"[A-Za-z][a-z]{2,}", text)]
    translations, code = _translations(), _code_blocks(draw)
    sentences = [line for line in CALIBRATION_TEXTS.read_text("utf-8").splitlines() if not line.isascii()]
    kinds: Sequence[Callable[[], str]] = (
        lambda: draw.choice(prose),
        lambda: draw.choice(sentences) if draw.random() < 0.1 else _translated(draw, translations),
        lambda: _numbers(draw),
        lambda: draw.choice(code),
        lambda: " ".join(draw.choices(words, k=draw.randint(1, 4))),
    )
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[kinds[len(texts) % len(kinds)]()] = None
    found = list(texts)
    draw.shuffle(found)
    return found


def _translations() -> list[list[str]]:
    """The sentences and words of each language."""
    files = sorted(REPOSITORY.glob(".venv-docs/lib/*/site-packages/zensical/templates/partials/languages/*.html"))
    if not files:
        raise FileNotFoundError("zensical is missing; `make site` installs it")
    return [_TRANSLATION.findall(path.read_text("utf-8")) for path in files]


def _translated(draw: random.Random, languages: Sequence[Sequence[str]]) -> str:
    """One to six strings of one language."""
    strings = draw.choice(languages)
    return ". ".join(draw.sample(strings, draw.randint(1, min(6, len(strings)))))


def _numbers(draw: random.Random) -> str:
    """One to five prices, dates, amounts, codes, versions and rows of tables."""
    forms: Sequence[Callable[[], str]] = (
        lambda: f"{draw.randint(1, 28)}.{draw.randint(1, 12)}.{draw.randint(1900, 2030)}",
        lambda: (
            f"{draw.randint(1900, 2030)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}T12:{draw.randint(0, 59):02}Z"
        ),
        lambda: f"{draw.choice('€$£¥')}{draw.uniform(0, 10_000):,.2f}",
        lambda: f"{draw.uniform(0, 1000):.{draw.randint(0, 5)}f} {draw.choice(('kg', 'km/h', 'mm', '°C', '%', 'GB'))}",
        lambda: f"{draw.choice('ABCDEFGH')}{draw.randint(100, 9999)}-{draw.getrandbits(32):08x}",
        lambda: f"v{draw.randint(0, 20)}.{draw.randint(0, 40)}.{draw.randint(0, 9)}",
        lambda: ";".join(str(draw.randint(-1000, 1000)) for _ in range(draw.randint(3, 12))),
        lambda: f"+{draw.randint(1, 99)} {draw.randint(100, 999)} {draw.randint(100_000, 9_999_999)}",
    )
    return ", ".join(draw.choice(forms)() for _ in range(draw.randint(1, 5)))


def _code_blocks(draw: random.Random) -> list[str]:
    """Runs of lines of the standard library's modules, in their own indentation."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in sorted(root.rglob("*.py")) if not {*_SKIPPED} & {*path.relative_to(root).parts}]
    blocks = []
    for path in draw.sample(paths, min(300, len(paths))):
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
        for start in range(0, len(lines) - _CODE_LINES, 4 * _CODE_LINES):
            blocks.append("\n".join(lines[start : start + draw.randint(1, _CODE_LINES)]))
    return blocks
