"""Bodies and answers of vLLM's pooling API, as requests.py reads and OpenAPI shows them.

null is the same as absent; unknown keys are ignored, `priority` and `user` among them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from vectord.products.common.body import Count, TokenId
from vectord.products.common.inputs import TextsOrIds
from vectord.products.common.models import ModelItem
from vectord.products.common.ranking import Documents
from vectord.products.common.usage import TokenUsage

Texts: TypeAlias = str | list[str]
RequestId = Annotated[str, msgspec.Meta(max_length=256, description="becomes part of the answer's id")]
Tokens = Annotated[
    int,
    msgspec.Meta(
        ge=-1, le=2**31 - 1, description="cut longer inputs to so many, specials included; -1: to what the model reads"
    ),
]
Messages = Annotated[Any, msgspec.Meta(description="refused: no chat template is run here")]


class Options(msgspec.Struct, kw_only=True):
    """What every body may say."""

    model: str | None = None
    truncate_prompt_tokens: Tokens | None = None
    truncation_side: Literal["left", "right"] | None = None
    request_id: RequestId | None = None
    use_activation: Annotated[
        bool | None, msgspec.Meta(description="false: vectors as they come, logits for scores")
    ] = None
    normalize: Annotated[Any, msgspec.Meta(description="refused, as vLLM does; `use_activation` replaced it")] = None


class InputBody(Options, kw_only=True):
    input: TextsOrIds | None = None
    messages: Messages = None
    add_special_tokens: bool | None = None


class EmbeddingBody(InputBody, kw_only=True):
    dimensions: Annotated[Count | None, msgspec.Meta(description="leading numbers to keep")] = None
    encoding_format: Annotated[str | None, msgspec.Meta(description='"float" or "base64"')] = None
    embed_dtype: Annotated[str | None, msgspec.Meta(description='of base64: "float32" or "float16"')] = None
    endianness: Annotated[str | None, msgspec.Meta(description='of base64: "native", "little" or "big"')] = None


class PoolingBody(EmbeddingBody, kw_only=True):
    task: Annotated[
        str | None, msgspec.Meta(description='"embed", "classify" or "token_embed"; null: what the model is for')
    ] = None


class ClassifyBody(InputBody, kw_only=True):
    """`input`: texts. Token ids are refused."""


class ScoreBody(Options, kw_only=True):
    """A first list and a second, under one of four pairs of names: one with one, one with each, or each with each."""

    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    text_1: Texts | None = None
    text_2: Texts | None = None


class RerankBody(Options, kw_only=True):
    query: str
    documents: str | Documents
    top_n: Annotated[Count | None, msgspec.Meta(description="null and 0: all")] = None


class TokenizeBody(msgspec.Struct):
    prompt: str | None = None
    messages: Messages = None
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct):
    tokens: list[TokenId]
    model: str | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: Literal[0]
    prompt_tokens_details: None
    truncated_inputs: list[int] | msgspec.UnsetType = msgspec.UNSET  # only when something was cut


class Answer(msgspec.Struct):
    """What all of the lists have."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: Usage


class Embedding(msgspec.Struct):
    index: int
    object: Literal["embedding"]
    embedding: list[float] | str


class Embeddings(Answer):
    data: list[Embedding]


class Pooled(msgspec.Struct):
    """`data`: a vector, scores, or a vector a token; in base64 the numbers of all tokens, one vector after another."""

    index: int
    object: Literal["pooling"]
    data: list[float | list[float]] | str


class Pooling(Answer):
    data: list[Pooled]


class Classified(msgspec.Struct):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classification(Answer):
    data: list[Classified]


class Score(msgspec.Struct):
    index: int
    object: Literal["score"]
    score: float


class Scores(Answer):
    data: list[Score]


class RankedDocument(msgspec.Struct):
    text: str


class Ranked(msgspec.Struct):
    index: int
    document: RankedDocument
    relevance_score: float
    score: float  # the same, for clients of other products on this path


class Reranked(msgspec.Struct):
    id: str
    model: str
    usage: TokenUsage
    results: list[Ranked]


class Tokenized(msgspec.Struct):
    """`token_strs`: the stretch of the text that each token stands for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(msgspec.Struct):
    prompt: str
    content: str


class Version(msgspec.Struct):
    version: str


class Model(ModelItem):
    root: str
    parent: None
    permission: list[Any]


class Models(msgspec.Struct):
    object: Literal["list"]
    data: list[Model]
