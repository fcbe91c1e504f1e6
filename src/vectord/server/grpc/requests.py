"""tei.v1's messages -> canonical requests, and how their answers read. Pure; services.py knows which method sends what.

Unlike over HTTP, nothing is truncated and no special tokens are added unless a message says so: proto3's default is
false. A list that is too long is refused by its count, before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError, Message

from vectord import schema
from vectord.errors import EmptyInput, InvalidField, MalformedBody, PayloadTooLarge
from vectord.schema import Request, Result, Side, TextOptions
from vectord.server.grpc import answers
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.http.hardening.body_shape import MAX_STRINGS, MAX_VALUES

EmbedLike: TypeAlias = pb.EmbedRequest | pb.EmbedSparseRequest | pb.EmbedAllRequest


@dataclass(frozen=True, slots=True)
class Asked:
    """What a message asks for, and how its answer reads. fields: the engine's words -> the message's, for errors."""

    request: Request
    answer: Callable[[Result], Message]
    fields: Mapping[str, str] = field(default_factory=dict)

    def written(self, result: Result) -> bytes:
        content: bytes = self.answer(result).SerializeToString()
        return content


def decoded(kind: Any, content: bytes) -> Any:
    """The message of type `kind` that `content` is. Raises MalformedBody."""
    try:
        return kind.FromString(content)
    except DecodeError:  # also for strings that are not UTF-8
        raise MalformedBody(f"The message is no {kind.DESCRIPTOR.full_name}.") from None


# --- vectors --------------------------------------------------------------------------------------------------


def embed(message: pb.EmbedRequest) -> Asked:
    request = schema.EmbedRequest(
        inputs=[_text(message.inputs)],
        text=_options(message),
        normalize=message.normalize if message.HasField("normalize") else True,
        dimensions=_dimensions(message),
    )
    return Asked(request, answers.embed)


def _dimensions(message: pb.EmbedRequest) -> int | None:
    if not message.HasField("dimensions"):
        return None
    if not message.dimensions:
        raise InvalidField("`dimensions` should be positive", field="dimensions")
    return message.dimensions


def embed_sparse(message: pb.EmbedSparseRequest) -> Asked:
    return Asked(_embed_as("sparse", message), answers.embed_sparse)


def embed_all(message: pb.EmbedAllRequest) -> Asked:
    return Asked(_embed_as("tokens", message), answers.embed_all)


def _embed_as(kind: schema.VectorKind, message: EmbedLike) -> schema.EmbedRequest:
    return schema.EmbedRequest(inputs=[_text(message.inputs)], text=_options(message), outputs=frozenset({kind}))


# --- scores ---------------------------------------------------------------------------------------------------


def predict(message: pb.PredictRequest) -> Asked:
    return _classify(_text(message.inputs), message)


def predict_pair(message: pb.PredictPairRequest) -> Asked:
    """Of two texts; of one alone too, as in TEI."""
    given = len(message.inputs)
    if given == 1:
        return _classify(_text(message.inputs[0]), message)
    if given != 2:
        raise InvalidField(f"`inputs` must have a single or two elements. Given: {given}", field="inputs", given=given)
    first, second = message.inputs
    _text(first or second)
    return _classify((first, second), message)


def _classify(text: str | tuple[str, str], message: pb.PredictRequest | pb.PredictPairRequest) -> Asked:
    request = schema.ClassifyRequest(inputs=[text], text=cut(message), raw=message.raw_scores)
    return Asked(request, answers.predict)


def rerank(message: pb.RerankRequest) -> Asked:
    if not message.texts:
        raise EmptyInput("`texts` cannot be empty", field="texts")
    _check_count(len(message.texts), MAX_STRINGS, "texts")
    texts = list(message.texts)
    if not message.query and "" in texts:  # a pair is empty when both of its texts are
        raise EmptyInput("`texts` cannot be empty", field="texts", index=texts.index(""))
    request = schema.RerankRequest(query=message.query, passages=texts, text=cut(message), raw=message.raw_scores)
    return Asked(request, partial(answers.rerank, message.query, texts, message.return_text), {"passages": "texts"})


# --- tokens and facts -----------------------------------------------------------------------------------------


def tokenize(message: pb.EncodeRequest) -> Asked:
    request = schema.TokenizeRequest(
        inputs=[_text(message.inputs)],
        add_special_tokens=message.add_special_tokens,
        prompt_name=_prompt_name(message),
    )
    return Asked(request, answers.tokenize)


def decode(message: pb.DecodeRequest) -> Asked:
    if not message.ids:
        raise EmptyInput("`ids` cannot be empty", field="ids")
    _check_count(len(message.ids), MAX_VALUES, "ids")
    request = schema.DecodeRequest(ids=[list(message.ids)], skip_special_tokens=message.skip_special_tokens)
    return Asked(request, answers.decode)


def info(message: pb.InfoRequest) -> Asked:
    return Asked(schema.ListModels(), answers.info)


# --- fields ---------------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    if not text:
        raise EmptyInput("`inputs` cannot be empty", field="inputs")
    return text


def _check_count(given: int, limit: int, field: str) -> None:
    if given > limit:
        raise PayloadTooLarge(f"`{field}` holds {given} items; the limit is {limit}.", field=field)


def _options(message: EmbedLike) -> TextOptions:
    return cut(message, _prompt_name(message))


def _prompt_name(message: EmbedLike | pb.EncodeRequest) -> str | None:
    return message.prompt_name if message.HasField("prompt_name") else None


_SIDES: Mapping[int, Side] = {pb.TRUNCATION_DIRECTION_RIGHT: "right", pb.TRUNCATION_DIRECTION_LEFT: "left"}


def cut(message: Any, prompt_name: str | None = None) -> TextOptions:
    """What `truncate` and `truncation_direction` say. message: any that has them."""
    side = _SIDES.get(message.truncation_direction)
    if side is None:  # proto3 lets any number through
        raise InvalidField("`truncation_direction` must be RIGHT or LEFT", field="truncation_direction")
    return TextOptions(truncate=message.truncate, truncate_side=side, prompt_name=prompt_name)
