"""What a request asks and what an answer holds, in no dialect's words.

Dialects parse bodies into these requests and render bodies from these results; the engine turns the one into
the other. Frozen values, numpy arrays, no web types. The same values can cross a socket when engine and
server are two processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Float32: TypeAlias = npt.NDArray[np.float32]
Input: TypeAlias = str | Sequence[int]  # a text, or token ids of the model's own vocabulary
Side: TypeAlias = Literal["right", "left"]  # the end that is cut off
Encoding: TypeAlias = Literal["float", "base64"]
Lane: TypeAlias = Literal["interactive", "bulk"]


# --- requests -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, for fairness, logs and metrics. `client` is a key's name or an address, never the key itself."""

    client: str = ""
    lane: Lane | None = None  # None: the engine infers it from the size of the request
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How texts become tokens, for every request that reads texts."""

    truncate: bool | None = None  # None: the server's setting, else `truncate_by_default`
    truncate_by_default: bool = False  # the dialect's rule, where neither request nor server says
    truncate_side: Side = "right"
    prompt_name: str | None = None  # a key of the model's prompts; None: the model's default prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """One vector a text (`output="dense"`) or one vector a token (`output="tokens"`)."""

    inputs: Sequence[Input]
    model: str | None = None  # None: the first served model
    text: TextOptions = TextOptions()
    output: Literal["dense", "tokens"] = "dense"
    normalize: bool = True  # dense only: L2, after `dimensions`
    dimensions: int | None = None  # dense only: keep this many leading numbers
    encoding: Encoding = "float"  # for the renderer
    field: str = "input"  # what the caller's dialect calls `inputs`, for error messages


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityRequest:
    """Cosine of one text with each of several."""

    source: str
    sentences: Sequence[str]
    model: str | None = None
    text: TextOptions = TextOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    inputs: Sequence[str]
    model: str | None = None
    add_special_tokens: bool = True
    prompt_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest:
    ids: Sequence[Sequence[int]]
    model: str | None = None
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ListModels:
    """All served models; with `model`, that one alone (ModelNotFound if it is not served)."""

    model: str | None = None


Request: TypeAlias = EmbedRequest | SimilarityRequest | TokenizeRequest | DecodeRequest | ListModels


# --- results --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextLength:
    """The honest length contract, per input. Tokens include specials and prompt."""

    seen: int  # tokens the text has; a lower bound where `characters_cut` is not 0
    kept: int  # tokens the model read
    characters_cut: int = 0  # characters dropped before tokenising, because no model limit could reach them

    @property
    def truncated(self) -> bool:
        return self.kept < self.seen or self.characters_cut > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds. `tokenize_s`, `queue_s`, `inference_s` are means over the texts; a cached text counts as 0."""

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    inference_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    lengths: Sequence[TextLength]
    characters: int  # of the inputs as sent, before truncation
    timings: Timings = Timings()

    @property
    def tokens(self) -> int:
        return sum(length.kept for length in self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedResult:
    """`vectors[i]` belongs to `inputs[i]`: dense (D,) rows of one (N, D) array, or tokens (T_i, H) arrays."""

    model: str
    vectors: Float32 | Sequence[Float32]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityResult:
    model: str
    scores: Float32  # (N,) cosine
    usage: Usage


@dataclass(frozen=True, slots=True)
class Token:
    id: int
    text: str
    special: bool
    start: int | None  # BYTE offsets into the prompted text; None for special tokens
    stop: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeResult:
    model: str
    tokens: Sequence[Sequence[Token]]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    model: str
    texts: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The facts of one served model, as `/info` and `/v1/models` show them; limits are the enforced ones."""

    name: str  # the served name
    model_id: str  # what the operator asked for: a hub id, a folder's name, a package
    revision: str | None
    fingerprint: str  # short hash of what makes the vector space
    architecture: str  # config.json's model_type
    pooling: str
    dimensions: int
    max_input_tokens: int
    dtype: str
    device: str
    backend: str
    state: Literal["loading", "ready", "failed"]
    created_unix_s: int
    prompts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_inputs_per_request: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_concurrent_requests: int
    tokenization_workers: int
    truncates: bool | None  # the server's setting; None: each dialect's own default


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelList:
    models: Sequence[ModelInfo]
    limits: Limits


Result: TypeAlias = EmbedResult | SimilarityResult | TokenizeResult | DecodeResult | ModelList
