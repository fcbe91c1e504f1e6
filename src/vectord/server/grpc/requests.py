"""The methods of tei.v1: each message becomes a canonical request and the writer of its response. Pure; called by
services.py and streams.py.

Unlike HTTP, a message is truncated and gets special tokens only if it says so: proto3's default is false. A message
with too many fields is rejected before it is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError, Message

from vectord import schema
from vectord.errors import EmptyInput, InvalidField, MalformedBody, PayloadTooLarge, TooManyInputs, VectordError
from vectord.schema import Request, Result, Side, TextOptions
from vectord.server.grpc import answers
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.http.hardening.body import MAX_STRINGS, MAX_VALUES

EmbedLike: TypeAlias = pb.EmbedRequest | pb.EmbedSparseRequest | pb.EmbedAllRequest


# Enough that a batch of short texts fills up, and that one stream does not keep the others from running.
MAX_ACTIVE_SHORT = 64
MAX_ACTIVE_LARGE = 4  # for responses of possibly several MB: vectors or pieces of all tokens of a text
OTHER_FIELDS = 64  # that a message may have in addition to repeated ones

NO_INPUT = "`inputs` cannot be empty"
NO_TEXTS = "`texts` cannot be empty"
NO_IDS = "`ids` cannot be empty"
TOO_MANY_FIELDS = "{field} may have at most {limit} inputs."
TOO_MANY_ITEMS = "{field} has {given} items; the limit is {limit}."


NAMES: Mapping[str, str] = {"truncate_side": "truncation_direction"}


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """names: canonical field -> the message's field, for errors."""

    request: Request
    render: Callable[[Any], Message]  # takes the result of `request`
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)

    def named(self, error: VectordError) -> VectordError:
        return error.named(self.names)

    def write(self, result: Result) -> bytes:
        content: bytes = self.render(result).SerializeToString()
        return content


def decode_message(kind: Any, content: bytes) -> Any:
    """`content` as a message of type `kind`. Raises MalformedBody."""
    try:
        return kind.FromString(content)
    except DecodeError:  # also for strings that are not UTF-8
        raise MalformedBody("The message is not a valid {kind}.", kind=kind.DESCRIPTOR.full_name) from None


# --- vectors --------------------------------------------------------------------------------------------------


def embed(message: pb.EmbedRequest) -> ParsedMessage:
    request = schema.EmbedRequest(
        inputs=[_text(message.inputs)],
        text=_options(message),
        normalize=message.normalize if message.HasField("normalize") else True,
        dimensions=_dimensions(message),
    )
    return ParsedMessage(request, answers.embed)


def _dimensions(message: pb.EmbedRequest) -> int | None:
    if not message.HasField("dimensions"):
        return None
    if not message.dimensions:
        raise InvalidField("`dimensions` should be positive", field="dimensions")
    return message.dimensions


def embed_sparse(message: pb.EmbedSparseRequest) -> ParsedMessage:
    return ParsedMessage(_embed_as("sparse", message), answers.embed_sparse)


def embed_all(message: pb.EmbedAllRequest) -> ParsedMessage:
    return ParsedMessage(_embed_as("tokens", message), answers.embed_all)


def _embed_as(kind: schema.VectorKind, message: EmbedLike) -> schema.EmbedRequest:
    return schema.EmbedRequest(inputs=[_text(message.inputs)], text=_options(message), outputs=frozenset({kind}))


# --- scores ---------------------------------------------------------------------------------------------------


def predict(message: pb.PredictRequest) -> ParsedMessage:
    return _classify(_text(message.inputs), message)


def predict_pair(message: pb.PredictPairRequest) -> ParsedMessage:
    """Two texts, or one, as in TEI."""
    given = len(message.inputs)
    if given == 1:
        return _classify(_text(message.inputs[0]), message)
    if given != 2:
        raise InvalidField("`inputs` must have a single or two elements. Given: {given}", field="inputs", given=given)
    first, second = message.inputs
    _text(first or second)
    return _classify((first, second), message)


def _classify(text: str | tuple[str, str], message: pb.PredictRequest | pb.PredictPairRequest) -> ParsedMessage:
    request = schema.ClassifyRequest(inputs=[text], text=truncation(message), raw=message.raw_scores)
    return ParsedMessage(request, answers.predict)


def rerank(message: pb.RerankRequest) -> ParsedMessage:
    if not message.texts:
        raise EmptyInput(NO_TEXTS, field="texts")
    _check_count(len(message.texts), MAX_STRINGS, "texts")
    texts = list(message.texts)
    if not message.query and "" in texts:  # a pair is empty if both texts are
        raise EmptyInput(NO_TEXTS, field="texts", index=texts.index(""))
    request = schema.RerankRequest(
        query=message.query, passages=texts, text=truncation(message), raw=message.raw_scores
    )
    return ParsedMessage(
        request, partial(answers.rerank, message.query, texts, message.return_text), {**NAMES, "passages": "texts"}
    )


# --- tokens and facts -----------------------------------------------------------------------------------------


def tokenize(message: pb.EncodeRequest) -> ParsedMessage:
    request = schema.TokenizeRequest(
        inputs=[_text(message.inputs)],
        add_special_tokens=message.add_special_tokens,
        prompt_name=_prompt_name(message),
    )
    return ParsedMessage(request, answers.tokenize)


def decode(message: pb.DecodeRequest) -> ParsedMessage:
    if not message.ids:
        raise EmptyInput(NO_IDS, field="ids")
    _check_count(len(message.ids), MAX_VALUES, "ids")
    request = schema.DecodeRequest(ids=[list(message.ids)], skip_special_tokens=message.skip_special_tokens)
    return ParsedMessage(request, answers.decode)


def info(message: pb.InfoRequest) -> ParsedMessage:
    return ParsedMessage(schema.ListModels(), answers.info)


# --- fields ---------------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    if not text:
        raise EmptyInput(NO_INPUT, field="inputs")
    return text


def _check_count(given: int, limit: int, field: str) -> None:
    if given > limit:
        raise PayloadTooLarge(TOO_MANY_ITEMS, field=field, given=given, limit=limit)


def _options(message: EmbedLike) -> TextOptions:
    return truncation(message, _prompt_name(message))


def _prompt_name(message: EmbedLike | pb.EncodeRequest) -> str | None:
    return message.prompt_name if message.HasField("prompt_name") else None


_SIDES: Mapping[int, Side] = {pb.TRUNCATION_DIRECTION_RIGHT: "right", pb.TRUNCATION_DIRECTION_LEFT: "left"}


def truncation(message: Any, prompt_name: str | None = None) -> TextOptions:
    """The options of a message with `truncate` and `truncation_direction`."""
    side = _SIDES.get(message.truncation_direction)
    if side is None:  # proto3 accepts any number
        raise InvalidField("`truncation_direction` must be RIGHT or LEFT", field="truncation_direction")
    return TextOptions(truncate=message.truncate, truncate_side=side, prompt_name=prompt_name)


# --- the number of fields -------------------------------------------------------------------------------------


def check_fields(content: bytes, max_inputs: int, field: str) -> None:
    """Raises TooManyInputs at the first excess field, so that the check costs no more than an allowed message, and
    MalformedBody for invalid bytes. field: the repeated one.

    Two bytes are a field: 4 MB hold two million empty texts. https://protobuf.dev/programming-guides/encoding
    """
    at = count = 0
    while at < len(content):
        at = _next(content, at)
        count += 1
        if count > max_inputs + OTHER_FIELDS:
            raise TooManyInputs(TOO_MANY_FIELDS, field=field, limit=max_inputs)


def _next(content: bytes, at: int) -> int:
    """The end of the field that begins at `at`."""
    tag, at = _varint(content, at)
    match tag & 7:
        case 0:
            return _varint(content, at)[1]
        case 1:
            return at + 8
        case 2:
            length, at = _varint(content, at)
            return at + length
        case 5:
            return at + 4
    raise MalformedBody("The message has a field of an unknown type.")  # also for groups, which proto3 does not have


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and its end."""
    value = 0
    for place, byte in enumerate(content[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise MalformedBody("The message is incomplete.")


# --- methods --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Method:
    """One message and one response; a method that streams has one response for each message."""

    path: str
    kind: type[Message]
    parse: Callable[[Any], ParsedMessage]
    streams: bool = False
    max_active: int = MAX_ACTIVE_SHORT  # messages of one stream being answered or delivered
    repeats: str = ""  # the repeated field of texts, if there is one

    def read(self, content: bytes, max_inputs: int | None = None) -> ParsedMessage:
        """Raises MalformedBody, TooManyInputs, and the errors of `parse`. max_inputs: None for no limit."""
        if self.repeats and max_inputs is not None:
            check_fields(content, max_inputs, self.repeats)
        return self.parse(decode_message(self.kind, content))


METHODS = (
    Method("/tei.v1.Info/Info", pb.InfoRequest, info),
    Method("/tei.v1.Embed/Embed", pb.EmbedRequest, embed),
    Method("/tei.v1.Embed/EmbedStream", pb.EmbedRequest, embed, streams=True),
    Method("/tei.v1.Embed/EmbedSparse", pb.EmbedSparseRequest, embed_sparse),
    Method("/tei.v1.Embed/EmbedSparseStream", pb.EmbedSparseRequest, embed_sparse, streams=True),
    Method("/tei.v1.Embed/EmbedAll", pb.EmbedAllRequest, embed_all),
    Method("/tei.v1.Embed/EmbedAllStream", pb.EmbedAllRequest, embed_all, streams=True, max_active=MAX_ACTIVE_LARGE),
    Method("/tei.v1.Predict/Predict", pb.PredictRequest, predict),
    Method("/tei.v1.Predict/PredictStream", pb.PredictRequest, predict, streams=True),
    Method("/tei.v1.Predict/PredictPair", pb.PredictPairRequest, predict_pair, repeats="inputs"),
    Method(
        "/tei.v1.Predict/PredictPairStream",
        pb.PredictPairRequest,
        predict_pair,
        streams=True,
        repeats="inputs",
    ),
    Method("/tei.v1.Rerank/Rerank", pb.RerankRequest, rerank, repeats="texts"),
    Method("/tei.v1.Tokenize/Tokenize", pb.EncodeRequest, tokenize),
    Method("/tei.v1.Tokenize/TokenizeStream", pb.EncodeRequest, tokenize, streams=True, max_active=MAX_ACTIVE_LARGE),
    Method("/tei.v1.Tokenize/Decode", pb.DecodeRequest, decode),
    Method("/tei.v1.Tokenize/DecodeStream", pb.DecodeRequest, decode, streams=True),
)
RERANK_STREAM = "/tei.v1.Rerank/RerankStream"  # many messages, one response: see streams.py
