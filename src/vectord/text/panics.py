"""What becomes of a failure inside tokenizers: it is the text's, or at the load the file's, and nobody else's.

The library raises bare Exceptions (a word without an id, and no unknown token); a panic of its Rust arrives as pyo3's
PanicException, a BaseException that no module exports, which would end a thread or a connection instead of one request.
tokenizer.py guards the load by this, plain.py each text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vectord.errors import ModelUnavailable


def gave_up(error: BaseException) -> bool:
    """Whether this is the library's own: a search over its limit, an index of its file that does not fit."""
    return type(error) is Exception or (type(error).__name__ == "PanicException" and not isinstance(error, Exception))


@contextmanager
def failures_refused(path: Path) -> Iterator[None]:
    """A tokenizer that fails while it is read and tried is refused: raises ModelUnavailable, naming its file."""
    try:
        yield
    except BaseException as error:
        if not gave_up(error):
            raise
        raise ModelUnavailable(f"{path}: cannot be used as a tokenizer ({error})") from None
