"""A body with too many inputs is rejected for their number before its texts are processed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.products.results import parsed

from vectord.errors import TooManyInputs
from vectord.products.common.dialect import Guards, load_dialects

LIMIT = 2048
BLANK = ""  # invalid by itself, so a check of the texts would raise another error first

BODIES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "one query": ("vllm", "/score", {"text_1": "a", "text_2": [BLANK] * (LIMIT + 1)}, "text_2"),
    "pairs": ("vllm", "/score", {"text_1": ["a"] * (LIMIT + 1), "text_2": [BLANK] * (LIMIT + 1)}, "text_2"),
    "documents": ("voyage", "/v1/contextualizedembeddings", {"inputs": [[BLANK]] * (LIMIT + 1)}, "inputs"),
    "chunks": ("voyage", "/v1/contextualizedembeddings", {"inputs": [[BLANK] * LIMIT, ["a"]]}, "inputs"),
    "late chunking": ("jina", "/v1/embeddings", {"input": [BLANK] * (LIMIT + 1), "late_chunking": True}, "input"),
    "instances": ("tei", "/vertex", {"instances": [{"wrong": []}] * (LIMIT + 1)}, "instances"),
}


@pytest.mark.parametrize(("dialect", "path", "body", "field"), BODIES.values(), ids=BODIES)
def test_the_count_is_checked_first(dialect: str, path: str, body: dict[str, Any], field: str) -> None:
    """The error has the field, the limit and the number."""
    (found,) = load_dialects([dialect])
    with pytest.raises(TooManyInputs) as caught:
        parsed(found, path, body, guards=Guards(max_inputs=LIMIT))
    assert (caught.value.field_name, caught.value.limit, caught.value.given) == (field, LIMIT, LIMIT + 1)
