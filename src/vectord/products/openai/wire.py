"""Bodies and answers of OpenAI's API, as requests.py reads and OpenAPI shows them.

null is the same as absent; unknown keys are ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from vectord.products.common.body import Count
from vectord.products.common.inputs import Switch, TextsIdsOrItems
from vectord.products.common.usage import EmbeddingsUsage
from vectord.schema import Precision

Task = Annotated[
    str | None, msgspec.Meta(description="of Jina, Voyage and others: whether these are queries or documents")
]
CutTo = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class EmbeddingsBody(msgspec.Struct):
    """`truncate` and `truncation` are one option, and so are `dimensions` and `output_dimension`."""

    input: TextsIdsOrItems
    model: str | None = None
    encoding_format: Annotated[str | None, msgspec.Meta(description='"float" (also for null) or "base64"')] = None
    dimensions: Annotated[Count | None, msgspec.Meta(description="leading numbers to keep; 0 and null: all")] = None
    output_dimension: Annotated[Count | None, msgspec.Meta(description="Voyage's word for `dimensions`")] = None
    force_dimensions: Switch = None
    output_dtype: Annotated[Precision | None, msgspec.Meta(description="of Voyage: what the numbers are")] = None
    embedding_type: Annotated[
        Precision | Literal["base64"] | None, msgspec.Meta(description="of Jina: what the numbers are, or base64")
    ] = None
    user: str | None = None
    truncate: Switch = None
    truncation: Switch = None
    truncate_prompt_tokens: Annotated[
        CutTo | None, msgspec.Meta(description="of vLLM: cut texts to so many tokens; -1: to those the model reads")
    ] = None
    normalized: Switch = None
    prompt_name: str | None = None
    task: Task = None
    input_type: Task = None
    expect_fingerprint: Annotated[str | None, msgspec.Meta(description="answer only in this vector space, or 412")] = (
        None
    )
    partial_results: Annotated[Switch, msgspec.Meta(description="an input that fails is an error in `data`")] = None


class EmbeddingItem(msgspec.Struct, tag_field="object", tag="embedding"):
    index: int
    embedding: list[float] | str


class ErrorObject(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class FailedItem(msgspec.Struct, tag_field="object", tag="error"):
    """Only with `partial_results`."""

    index: int
    error: ErrorObject


class Embeddings(msgspec.Struct):
    object: Literal["list"]
    data: list[EmbeddingItem | FailedItem]
    model: str
    usage: EmbeddingsUsage
    id: str
    created: int
