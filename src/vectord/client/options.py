"""What a call may say beside its texts, each word once, as docs/api.md has it. What is left out, or None, is the
server's choice.

    def embed(self, texts, **options: Unpack[EmbedOptions])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Required, TypeAlias, TypedDict

Dtype: TypeAlias = Literal["float32", "float16", "int8", "ubinary"]
VectorKind: TypeAlias = Literal["dense", "sparse", "colbert", "tokens"]
Lane: TypeAlias = Literal["interactive", "bulk"]


class Chunk(TypedDict, total=False):
    """How a long text is cut."""

    max_tokens: Required[int]  # of a chunk, special tokens not counted
    by: Literal["tokens", "sentences"] | None
    overlap_tokens: int | None


class Weights(TypedDict, total=False):
    dense: float
    sparse: float
    colbert: float


class ModelOptions(TypedDict, total=False):
    model: str | None  # a served name; left out: the first served model that can do what is asked


class TextOptions(ModelOptions, total=False):
    truncate: bool | None  # whether over-long texts are cut; left out: the server's setting, else they are refused
    truncate_side: Literal["right", "left"] | None  # the end that is cut off
    expect_fingerprint: str | None  # answer in this vector space alone, or FingerprintChanged


class PromptedOptions(TextOptions, total=False):
    kind: Literal["query", "document"] | None  # the model's own prompt for such texts
    prompt_name: str | None  # one of the model's prompts; outranks kind
    prompt: str | None  # the words themselves; outranks both


class EmbedOptions(PromptedOptions, total=False):
    dimensions: int | None  # keep so many leading numbers
    force_dimensions: bool | None  # even where the model was not trained to be cut there
    normalize: bool | None  # dense vectors to length 1; left out: true


class DocumentsOptions(EmbedOptions, total=False):
    late: bool | None  # late chunking: each chunk's vector is pooled from its tokens within the whole document
    mean: bool | None  # the mean of each document's chunks, too


class RerankOptions(TextOptions, total=False):
    method: Literal["scores", "dense", "sparse", "colbert", "weighted"] | None  # left out: the first that the model has
    weights: Weights | None  # method weighted
    scores: Literal["model", "raw", "probability"] | None  # method scores: the logit, its sigmoid, or the model's usual
    instruction: str | None  # language models: what the passages are judged by
    chunk: Chunk | None  # each chunk is scored, the best counts


class ClassifyOptions(TextOptions, total=False):
    raw: bool | None  # the logits


class TokenizeOptions(ModelOptions, total=False):
    add_special_tokens: bool | None  # left out: true
    prompt_name: str | None


class DecodeOptions(ModelOptions, total=False):
    skip_special_tokens: bool | None  # left out: true


def check_names(options: Mapping[str, object], known: type) -> None:
    """Raises TypeError for a word that is none of `known`, one of the classes above: the server would ignore it."""
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"{name!r} is no option of this call; there are: {', '.join(known.__annotations__)}")
