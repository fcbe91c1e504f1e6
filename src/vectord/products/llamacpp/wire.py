"""Bodies and answers of llama.cpp's server, as requests.py reads and OpenAPI shows them.

null is the same as absent; unknown keys are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from vectord.products.common.body import Count, TokenId
from vectord.products.common.usage import TokenUsage

Norm = Annotated[
    int,
    msgspec.Meta(
        ge=-1,
        le=2**31 - 1,
        description="of each vector: -1 none, 0 the largest number becomes 32760, 1 taxicab, 2 Euclidean, p the p-norm",
    ),
]
Model = Annotated[str | None, msgspec.Meta(description="any name while one model is served, else one that is served")]


class TextPart(msgspec.Struct):
    type: Literal["text"]
    text: str


class PromptObject(msgspec.Struct):
    """A text in an object: as it is, or in parts that are read as one."""

    prompt_string: str | None = None
    content: list[TextPart] | None = None
    multimodal_data: Annotated[list[Any] | None, msgspec.Meta(description="refused: texts only")] = None


# One text, one list of token ids, or a list of either; a text may be in an object.
Prompts: TypeAlias = str | list[str | TokenId | list[TokenId] | PromptObject] | PromptObject


class EmbeddingBody(msgspec.Struct):
    """One of `content` and `input`; `input` counts where both are there."""

    content: Prompts | None = None
    input: Prompts | None = None
    embd_normalize: Norm | None = None
    encoding_format: Annotated[str | None, msgspec.Meta(description='"float" or "base64"; of OpenAI\'s answer')] = None
    model: Model = None


class RerankBody(msgspec.Struct):
    """`texts` are answered as text-embeddings-inference would, `documents` as Jina would."""

    query: str | None = None
    documents: list[str] | None = None
    texts: list[str] | None = None
    top_n: Annotated[Count | None, msgspec.Meta(description="null and 0: all")] = None
    return_text: Annotated[bool | None, msgspec.Meta(description="with `texts` only")] = None
    model: Model = None


class TokenizeBody(msgspec.Struct):
    content: str
    add_special: bool | None = None
    parse_special: Annotated[bool | None, msgspec.Meta(description="false is refused")] = None
    with_pieces: bool | None = None
    model: Model = None


class DetokenizeBody(msgspec.Struct):
    tokens: list[TokenId]
    model: Model = None


class Embedded(msgspec.Struct):
    """`embedding` has one row: a row a token, as for models without pooling, is never here."""

    index: int
    embedding: list[list[float]]


class OpenAIItem(msgspec.Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    encoding_format: Literal["base64"] | msgspec.UnsetType = msgspec.UNSET  # only beside base64


class OpenAIAnswer(msgspec.Struct):
    model: str
    object: Literal["list"]
    usage: TokenUsage
    data: list[OpenAIItem]


class Rank(msgspec.Struct):
    index: int
    score: float
    text: str | msgspec.UnsetType = msgspec.UNSET  # only with return_text


class Relevance(msgspec.Struct):
    index: int
    relevance_score: float


class Reranked(msgspec.Struct):
    model: str
    object: Literal["list"]
    usage: TokenUsage
    results: list[Relevance]


class Piece(msgspec.Struct):
    id: int
    piece: str


class Tokens(msgspec.Struct):
    tokens: list[int | Piece]  # pieces with with_pieces


class Detokenized(msgspec.Struct):
    content: str
    prompt: str


class Health(msgspec.Struct):
    status: Literal["ok"]


class GenerationSettings(msgspec.Struct):
    n_ctx: int


class Modalities(msgspec.Struct):
    vision: bool
    audio: bool


class Props(msgspec.Struct):
    default_generation_settings: GenerationSettings
    total_slots: int  # requests answered at once at most, by all models together
    model_alias: str
    model_path: str
    modalities: Modalities
    chat_template: str
    build_info: str
    is_sleeping: bool


class Slot(msgspec.Struct):
    """One a served model. llama.cpp's place for a request has no counterpart here: texts of all share batches."""

    id: int
    n_ctx: int
    model: str
    state: str
