"""Expected errors by their facts. The sentence of an error is read by tests of products alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from vectord.errors import VectordError


@contextmanager
def refuses(kind: type[VectordError], **facts: Any) -> Iterator[pytest.ExceptionInfo[VectordError]]:
    """The block raises an error of this class with these attributes, such as field, index, limit and given."""
    with pytest.raises(kind) as refused:
        yield refused
    assert {name: getattr(refused.value, name) for name in facts} == facts
