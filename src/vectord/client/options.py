"""The options of each call, named as in docs/api.md. The server sets an option that is missing or None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Required, TypeAlias, TypedDict

Dtype: TypeAlias = Literal["float32", "float16", "int8", "ubinary"]
VectorKind: TypeAlias = Literal["dense", "sparse", "colbert", "tokens"]
Lane: TypeAlias = Literal["interactive", "bulk"]


class ChunkOptions(TypedDict, total=False):
    """How a long text is split."""

    max_tokens: Required[int]  # of a chunk, without special tokens
    by: Literal["tokens", "sentences"] | None
    overlap_tokens: int | None


class Weights(TypedDict, total=False):
    dense: float
    sparse: float
    colbert: float


class ModelOptions(TypedDict, total=False):
    model: str | None  # a served name; default: the first served model that supports the call


class TextOptions(ModelOptions, total=False):
    truncate: bool | None  # whether long texts are truncated or refused; default: the server's setting
    truncate_side: Literal["right", "left"] | None  # the end that is cut off
    expect_fingerprint: str | None  # fail with FingerprintChanged in any other vector space


class PromptedOptions(TextOptions, total=False):
    kind: Literal["query", "document"] | None  # selects the model's own prompt for such texts
    prompt_name: str | None  # one of the model's prompts; takes precedence over kind
    prompt: str | None  # the text of the prompt; takes precedence over both


class EmbedOptions(PromptedOptions, total=False):
    dimensions: int | None  # how many leading numbers to keep
    force_dimensions: bool | None  # even if the model was not trained for it
    normalize: bool | None  # scale dense vectors to length 1; default: true


class Muvera(TypedDict, total=False):
    """One vector of r_reps * 2**k_sim * dim_proj numbers for each text, to compare by inner product."""

    k_sim: int  # default: 5
    dim_proj: int  # default: 16
    r_reps: int  # default: 20
    seed: int  # default: 42


class ColbertOptions(TypedDict, total=False):
    """The form of ColBERT vectors."""

    dimensions: int | None  # how many leading numbers to keep
    pool_factor: float  # documents keep 1 / pool_factor of the vectors, the means of similar ones
    protected_tokens: int  # leading vectors that are not pooled; default: 1
    precision: Literal["float", "int8", "uint8", "binary", "ubinary"]
    muvera: Muvera | None
    rows: bool  # False: `muvera` alone


class DocumentsOptions(EmbedOptions, total=False):
    late: bool | None  # late chunking: pool each chunk from its tokens within the whole document
    mean: bool | None  # also return the mean of each document's chunks


class RerankOptions(TextOptions, total=False):
    method: Literal["scores", "dense", "sparse", "colbert", "weighted"] | None  # default: the model's first
    weights: Weights | None  # for method weighted
    scores: Literal["model", "raw", "probability"] | None  # for method scores: the model's default, logit or sigmoid
    instruction: str | None  # language models: the criterion for the passages
    chunk: ChunkOptions | None  # score each chunk; the best one counts


class ClassifyOptions(TextOptions, total=False):
    raw: bool | None  # return logits


class TokenizeOptions(ModelOptions, total=False):
    add_special_tokens: bool | None  # default: true
    prompt_name: str | None


class DecodeOptions(ModelOptions, total=False):
    skip_special_tokens: bool | None  # default: true


def check_names(options: Mapping[str, object], known: type) -> None:
    """Raises TypeError for an option that `known`, a class of this file, lacks: the server would ignore it."""
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"{name!r} is no option of this call; there are: {', '.join(known.__annotations__)}")
