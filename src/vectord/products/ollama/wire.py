"""Bodies and answers of Ollama, as requests.py reads and OpenAPI shows them.

null is the same as absent; unknown keys are ignored, `keep_alive` among them: which models are in memory is the
server's to decide. A `model` is required there; where vectors are asked for it may be left out here.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from vectord.products.common.body import Count


class Options(msgspec.Struct):
    """Of all options the one that is about reading; the others are about chat, or the machine."""

    num_ctx: Annotated[
        Count | None, msgspec.Meta(description="tokens to read of an input at most; 0 and null: all")
    ] = None


class EmbedBody(msgspec.Struct):
    """No input at all is answered with no vectors; such a request is how Ollama's clients load a model."""

    input: str | list[str] | None
    model: str | None = None
    truncate: bool | None = None
    dimensions: Annotated[Count | None, msgspec.Meta(description="leading numbers to keep; 0 and null: all")] = None
    force_dimensions: Annotated[
        bool | None, msgspec.Meta(description="cut vectors that were not trained to be cut, too")
    ] = None
    options: Options | None = None


class PromptBody(msgspec.Struct):
    prompt: str | None
    model: str | None = None
    options: Options | None = None


class ShowBody(msgspec.Struct):
    """Earlier clients leave `model` empty and send `name`."""

    model: str | None
    name: str | None = None


class ShowNameBody(msgspec.Struct):
    """What still earlier clients send."""

    name: str


class Embeddings(msgspec.Struct):
    """Durations in nanoseconds. load_duration is always 0: a wait for a model to load is part of the whole."""

    model: str
    embeddings: list[list[float]]
    total_duration: int | msgspec.UnsetType = msgspec.UNSET  # these three not where there was no input
    load_duration: int | msgspec.UnsetType = msgspec.UNSET
    prompt_eval_count: int | msgspec.UnsetType = msgspec.UNSET


class Embedding(msgspec.Struct):
    embedding: list[float]


class Details(msgspec.Struct):
    """`format` and `parameter_size` are empty: they are not known here, and clients demand strings."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    context_length: int
    embedding_length: int


class Model(msgspec.Struct):
    """`size` is 0: bytes are not counted here, and clients demand a number."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str  # what vectord's other dialects call the fingerprint
    details: Details
    capabilities: list[str]


class Models(msgspec.Struct):
    models: list[Model]


class Running(msgspec.Struct):
    """There is no `expires_at`: nobody knows when a model that is in use will no longer be."""

    name: str
    model: str
    size: int
    size_vram: int
    digest: str
    details: Details
    context_length: int


class RunningModels(msgspec.Struct):
    models: list[Running]


class Shown(msgspec.Struct):
    details: Details
    model_info: dict[str, str | int]
    capabilities: list[str]
    modified_at: str


class Version(msgspec.Struct):
    version: str  # vectord's own
