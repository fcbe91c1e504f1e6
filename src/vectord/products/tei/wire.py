"""Bodies and answers of text-embeddings-inference, as requests.py reads and OpenAPI shows them.

null is the same as absent; unknown keys are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from vectord.products.common.body import Count, TokenId
from vectord.products.common.inputs import TextsOrIds
from vectord.products.common.usage import TokenUsage

Direction = Annotated[str, msgspec.Meta(description='"Right" or "Left": the end that is cut off')]

# Ours: TEI cuts vectors of every model, also of those whose first numbers matter no more than the others.
Force = Annotated[bool | None, msgspec.Meta(description="cut vectors that were not trained to be cut, too")]


class EmbedBody(msgspec.Struct):
    inputs: TextsOrIds
    truncate: bool | None = None
    truncation_direction: Direction | None = "Right"
    prompt_name: str | None = None
    normalize: bool | None = True
    dimensions: Count | None = None
    force_dimensions: Force = False


class TextsBody(msgspec.Struct):
    inputs: TextsOrIds
    truncate: bool | None = None
    truncation_direction: Direction | None = "Right"
    prompt_name: str | None = None


class RerankBody(msgspec.Struct):
    query: str
    texts: list[str]
    truncate: bool | None = None
    truncation_direction: Direction | None = "Right"
    raw_scores: bool | None = False
    return_text: bool | None = False


class PredictBody(msgspec.Struct):
    """`inputs`: "a" is one text, ["a", "b"] ONE PAIR, [["a"], ["b", "c"]] a text and a pair."""

    inputs: str | list[str | list[str]]
    truncate: bool | None = None
    truncation_direction: Direction | None = "Right"
    raw_scores: bool | None = False


class SimilarityInputs(msgspec.Struct):
    source_sentence: str
    sentences: list[str]


class SimilarityParameters(msgspec.Struct):
    truncate: bool | None = None
    truncation_direction: Direction | None = "Right"
    prompt_name: str | None = None


class SimilarityBody(msgspec.Struct):
    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


class AnyBody(msgspec.Struct):
    """Enough of a body to see what it asks for."""

    inputs: msgspec.Raw = msgspec.Raw()
    texts: msgspec.Raw = msgspec.Raw()


class VertexBody(msgspec.Struct):
    instances: Annotated[list[msgspec.Raw], msgspec.Meta(description="each a body of `/`, or one with `texts` to rank")]


class TokenizeBody(msgspec.Struct):
    inputs: str | list[str]
    add_special_tokens: bool | None = True
    prompt_name: str | None = None


class DecodeBody(msgspec.Struct):
    ids: list[TokenId | list[TokenId]]
    skip_special_tokens: bool | None = True


class OpenAIBody(msgspec.Struct):
    """A `model` is read and ignored, as TEI does: its users write anything there."""

    input: TextsOrIds
    model: str | None = None
    user: str | None = None
    encoding_format: Annotated[str | None, msgspec.Meta(description='"float" or "base64"')] = None
    dimensions: Count | None = None
    force_dimensions: Force = False


class TokenAnswer(msgspec.Struct):
    """`start` and `stop` are byte offsets into the text with its prompt; null for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class SparseEntry(msgspec.Struct):
    index: int
    value: float


class Rank(msgspec.Struct):
    index: int
    score: float
    text: str | msgspec.UnsetType = msgspec.UNSET  # only with return_text


class Prediction(msgspec.Struct):
    score: float
    label: str


# What the root route answers with depends on the model, and on the kind of `inputs`.
RootAnswer = Annotated[
    list[list[Any] | dict[str, Any] | float],
    msgspec.Meta(description="vectors; words, predictions or similarities where those are asked for"),
]


class VertexAnswer(msgspec.Struct):
    """Of each instance what its own route answers: rows of vectors, of words or of predictions, or objects."""

    predictions: list[list[list[Any] | dict[str, Any]]]


class OpenAIItem(msgspec.Struct):
    object: Literal["embedding"]
    embedding: list[float] | str
    index: int


class OpenAIAnswer(msgspec.Struct):
    object: Literal["list"]
    data: list[OpenAIItem]
    model: str
    usage: TokenUsage
