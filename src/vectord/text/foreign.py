"""Token ids of another vocabulary back to text: cl100k_base, whose ids clients of OpenAI send in place of texts.

models/ opens the table once for all models; tokenizer.py decodes by it on the tokenising threads.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Sequence
from pathlib import Path

from vectord.errors import ConfigError

# Of cl100k_base.tiktoken, as tiktoken itself expects it (tiktoken_ext/openai_public.py).
CL100K_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
MAX_FILE_BYTES = 4 * 2**20  # cl100k_base has 1.7
# <|endoftext|>, the three of fill-in-the-middle, <|endofprompt|>: they stand for no text.
CL100K_SPECIALS = frozenset({100257, 100258, 100259, 100260, 100276})


class ForeignTable:
    """The bytes of each token of one vocabulary. Never changes, so several threads may use it at once."""

    def __init__(self, tokens: Sequence[bytes], specials: frozenset[int] = frozenset()) -> None:
        """tokens: by their ids; specials: ids that stand for no text."""
        self._tokens = tokens
        self._specials = specials

    def decode(self, ids: Sequence[int]) -> str | None:
        """The text of `ids`; None if one of them is not in the table. Bytes that are no UTF-8 become U+FFFD."""
        pieces = []
        for id_ in ids:
            if 0 <= id_ < len(self._tokens):
                pieces.append(self._tokens[id_])
            elif id_ not in self._specials:
                return None
        return b"".join(pieces).decode("utf-8", errors="replace")


def open_cl100k(path: Path) -> ForeignTable:
    """The table of cl100k_base in a file of tiktoken's, read whole (50 ms): nothing of it can fail in a request.

    Raises ConfigError if it is no such file.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"foreign_token_table: {path}: cannot be read ({error.strerror})") from error
    if hashlib.sha256(data).hexdigest() != CL100K_SHA256:
        raise ConfigError(f"foreign_token_table: {path}: is not cl100k_base.tiktoken as OpenAI published it")
    return ForeignTable(read_tokens(data), CL100K_SPECIALS)


def read_tokens(data: bytes) -> list[bytes]:
    """The tokens of a .tiktoken file by their ids: a line each, base64 and the id, from 0 on and none left out.

    Raises ConfigError for anything else.
    """
    tokens = []
    for place, line in enumerate(data.splitlines()):
        token, _, id_ = line.partition(b" ")
        if id_ != b"%d" % place:
            raise ConfigError(f"foreign_token_table: line {place + 1}: expected base64, a blank and {place}")
        try:
            tokens.append(binascii.a2b_base64(token, strict_mode=True))
        except binascii.Error as error:
            raise ConfigError(f"foreign_token_table: line {place + 1}: is not base64") from error
    return tokens
