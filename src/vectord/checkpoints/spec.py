"""The facts of one model, as plain values: what reader.py finds in its folder, and everybody else goes by.

Tokenizer, network, backend and engine are made from a ModelSpec; none of them opens a JSON file of the model again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Pooling = Literal["cls", "mean", "last", "max"]
DenseActivation = Literal["identity", "tanh", "relu", "gelu", "silu"]
ScoreActivation = Literal["identity", "sigmoid", "softmax"]

NEVER_FLOAT16 = frozenset({"gemma3_text"})  # architectures whose activations are larger than float16 reaches

# What a network can answer. For T tokens of N texts, in M spans (usually one a text):
#   dense    (M, D)  one vector a text, not normalised
#   tokens   (T, H)  the last hidden states
#   colbert  (T, C)  one vector a token, each of length 1
#   lexical  (T, 1)  how much each token matters, not below 0 (BGE-M3)
#   splade   (M, V)  the largest logit of each word of the vocabulary
#   scores   (M, L)  logits: one a label; of a yes-or-no model those of "no" and "yes"
Output = Literal["dense", "tokens", "colbert", "lexical", "splade", "scores"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseModule:
    """A linear layer after the network or after pooling (sentence-transformers and pylate `Dense`)."""

    folder: Path
    weights: Path  # the file with linear.weight (and linear.bias)
    in_features: int
    out_features: int
    bias: bool
    activation: DenseActivation


@dataclass(frozen=True, slots=True, kw_only=True)
class Colbert:
    """One vector a token: how it is made, and how queries and documents are put before the model."""

    dimensions: int
    dense_modules: tuple[DenseModule, ...] = ()  # pylate
    linear: Path | None = None  # BGE-M3's colbert_linear.pt
    drops_first: bool = False  # BGE-M3: the vector of CLS does not count
    query_prefix: str = ""  # a token put behind the first one
    document_prefix: str = ""
    query_length: int | None = None  # tokens a query has at most, specials included; None: as any text
    document_length: int | None = None
    expand_queries: bool = False  # fill a query up to query_length with mask tokens
    attend_to_expansion: bool = False  # whether those mask tokens are attended to
    skiplist_words: tuple[str, ...] = ()  # tokens of documents whose vectors do not count


@dataclass(frozen=True, slots=True, kw_only=True)
class YesNo:
    """A language model that judges a passage by what it would say next. Tokens: prefix + body + suffix."""

    prefix: str
    body: str  # with {instruction}, {query} and {document}
    suffix: str
    instruction: str  # where the request gives none
    token_ids: tuple[int, int] | None  # of "no" and "yes"; None: the model has a classifier instead


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    model_id: str  # as the operator named it
    revision: str | None  # commit, where the source knows one
    folder: Path
    config: Mapping[str, Any]  # config.json, as it is; only networks/ interprets it
    model_type: str  # config.json's
    architecture: str  # names the module in networks/; usually model_type
    weights: tuple[Path, ...]  # safetensors or torch files, in order; or an ONNX graph, then the files of its tensors
    tokenizer: Path  # tokenizer.json, or vocab.txt of a BERT without one
    lowercase: bool = False  # whether texts are put in lower case before the tokenizer's own normalising
    outputs: frozenset[Output]  # what its network gives
    hidden_size: int
    max_tokens: int  # specials included
    # dense
    pooling: Pooling | None = None  # None: it does not embed
    include_prompt: bool = True  # whether pooling counts the prompt's tokens
    dense_modules: tuple[DenseModule, ...] = ()
    dimensions: int = 0  # of the dense vector, after dense_modules
    matryoshka: tuple[int, ...] | None = None  # the dimensions it was trained to be cut to; (): none; None: not known
    # sparse and ColBERT
    lexical: Path | None = None  # BGE-M3's sparse_linear.pt
    colbert: Colbert | None = None
    # scores
    labels: tuple[str, ...] = ()  # one a score, in order
    score_activation: ScoreActivation = "identity"  # what the model itself makes of its logits
    yes_no: YesNo | None = None
    # what goes before a text
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    known_cosines: tuple[tuple[str, str, float], ...] = ()  # two texts and the cosine the published model gives them
    handler: str | None = None  # the operator's own class that computes the dense vectors, as module.Class
    fingerprint: str  # 16 hex digits over weights' identity, pooling, heads, prompts

    @property
    def scores_by_words(self) -> bool:
        """Whether its scores are the logits of "no" and "yes", and not one a label."""
        return self.yes_no is not None and self.yes_no.token_ids is not None

    @property
    def reranks(self) -> bool:
        """Whether its scores judge a pair: one label, or yes and no."""
        return self.yes_no is not None or len(self.labels) == 1
