"""The methods of tei.v1: each message becomes a canonical request, and its result a response. Pure; called by
services.py and streams.py.

Unlike HTTP, a message is truncated and gets special tokens only if it says so: proto3's default is false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.wrappers_pb2 import BytesValue

from vectord import __version__, schema
from vectord.errors import EmptyInput, InvalidField, MalformedBody, PayloadTooLarge, VectordError
from vectord.products.common.models import first_model, tag_of
from vectord.products.common.ranking import best_labels
from vectord.products.tei.routes import places
from vectord.products.tei.usage import mean_times
from vectord.schema import Float32, Request, Result, Side, TextOptions, Usage
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.http.hardening.body import MAX_STRINGS, MAX_VALUES

EmbedLike: TypeAlias = pb.EmbedRequest | pb.EmbedSparseRequest | pb.EmbedAllRequest

NO_TEXTS = "`texts` cannot be empty"
UINT32_MAX = 2**32 - 1

NAMES: Mapping[str, str] = {"truncate_side": "truncation_direction"}


class ParsedMessage(msgspec.Struct, frozen=True):
    """render: makes the response of the result, or keeps the result for a later response. names: canonical field -> the
    message's field, for errors."""

    request: Request
    render: Callable[[Any], Message | None]
    names: Mapping[str, str]

    def named(self, error: VectordError) -> VectordError:
        return error.named(self.names)

    def write(self, result: Result) -> bytes:
        response = self.render(result)
        assert response is not None
        return response.SerializeToString()


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
        text=truncation(message, _prompt_name(message)),
        normalize=message.normalize if message.HasField("normalize") else True,
        dimensions=_dimensions(message),
    )
    return ParsedMessage(request, embedding, NAMES)


def embedding(result: schema.EmbedResult) -> pb.EmbedResponse:
    response: pb.EmbedResponse = pb.EmbedResponse.FromString(_packed(result.dense["float"][0]))
    response.metadata.CopyFrom(metadata(result.usage))
    return response


def _dimensions(message: pb.EmbedRequest) -> int | None:
    if not message.HasField("dimensions"):
        return None
    if not message.dimensions:
        raise InvalidField("`dimensions` should be positive", field="dimensions")
    return message.dimensions


def _packed(vector: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    """A message with the numbers as field 1, whose packed form is that of bytes: eight times as fast as a list."""
    content: bytes = BytesValue(value=np.ascontiguousarray(vector, dtype="<f4").tobytes()).SerializeToString()
    return content


def embed_all(message: pb.EmbedAllRequest) -> ParsedMessage:
    return ParsedMessage(_embed_as("tokens", message), token_embeddings, NAMES)


def token_embeddings(result: schema.EmbedResult) -> pb.EmbedAllResponse:
    assert result.tokens is not None
    tokens = [pb.TokenEmbedding.FromString(_packed(vector)) for vector in result.tokens[0]]
    return pb.EmbedAllResponse(token_embeddings=tokens, metadata=metadata(result.usage))


def embed_sparse(message: pb.EmbedSparseRequest) -> ParsedMessage:
    return ParsedMessage(_embed_as("sparse", message), sparse_embedding, NAMES)


def sparse_embedding(result: schema.EmbedResult) -> pb.EmbedSparseResponse:
    assert result.sparse is not None
    (vector,) = result.sparse
    entries = zip(vector.indices.tolist(), vector.values.tolist(), strict=True)
    items = [pb.SparseValue(index=index, value=value) for index, value in entries]
    return pb.EmbedSparseResponse(sparse_embeddings=items, metadata=metadata(result.usage))


def _embed_as(kind: schema.VectorKind, message: EmbedLike) -> schema.EmbedRequest:
    text = truncation(message, _prompt_name(message))
    return schema.EmbedRequest(inputs=[_text(message.inputs)], text=text, outputs=frozenset({kind}))


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
    return ParsedMessage(request, predictions, NAMES)


def predictions(result: schema.ClassifyResult) -> pb.PredictResponse:
    """Labels best first."""
    (labels,) = best_labels(result, places)
    items = [pb.Prediction(score=float(score), label=label) for label, score in labels]
    return pb.PredictResponse(predictions=items, metadata=metadata(result.usage))


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
    render = partial(ranking, message.query, texts, message.return_text)
    return ParsedMessage(request, render, {**NAMES, "passages": "texts"})


def ranking(query: str, texts: Sequence[str], return_text: bool, result: schema.RerankResult) -> pb.RerankResponse:
    """Best first. TEI counts the query's characters once per text."""
    characters = len(query) * len(texts) + sum(map(len, texts))
    return pb.RerankResponse(
        ranks=ranks(result.scores, result.logits, texts if return_text else None),
        metadata=metadata(result.usage, characters=characters),
    )


def ranks(scores: Float32, logits: Float32 | None, texts: Sequence[str] | None) -> Iterable[pb.Rank]:
    """Best first, with the text if `texts` is given. scores, logits: (N,) in the order of the texts."""
    for place in places(scores, logits):
        yield pb.Rank(index=place, score=scores[place], text=None if texts is None else texts[place])


# --- tokens and facts -----------------------------------------------------------------------------------------


def tokenize(message: pb.EncodeRequest) -> ParsedMessage:
    request = schema.TokenizeRequest(
        inputs=[_text(message.inputs)],
        add_special_tokens=message.add_special_tokens,
        prompt_name=_prompt_name(message),
    )
    return ParsedMessage(request, tokens, NAMES)


def tokens(result: schema.TokenizeResult) -> pb.EncodeResponse:
    items = [
        pb.SimpleToken(id=token.id, text=token.text, special=token.special, start=token.start, stop=token.stop)
        for token in result.tokens[0]
    ]
    return pb.EncodeResponse(tokens=items)


def decode(message: pb.DecodeRequest) -> ParsedMessage:
    if not message.ids:
        raise EmptyInput("`ids` cannot be empty", field="ids")
    _check_count(len(message.ids), MAX_VALUES, "ids")
    request = schema.DecodeRequest(ids=[list(message.ids)], skip_special_tokens=message.skip_special_tokens)
    return ParsedMessage(request, decoded, NAMES)


def decoded(result: schema.DecodeResult) -> pb.DecodeResponse:
    return pb.DecodeResponse(text=result.texts[0])


def info(message: pb.InfoRequest) -> ParsedMessage:
    return ParsedMessage(schema.ListModels(), facts, NAMES)


_MODEL_TYPES: Mapping[str, pb.ModelType] = {
    "embedding": pb.MODEL_TYPE_EMBEDDING,
    "classifier": pb.MODEL_TYPE_CLASSIFIER,
    "reranker": pb.MODEL_TYPE_RERANKER,
}


def facts(result: schema.ModelList) -> pb.InfoResponse:
    """The first served model, since TEI serves one."""
    model, limits = first_model(result), result.limits
    return pb.InfoResponse(
        version=__version__,
        model_id=model.model_id,
        model_sha=model.revision,
        model_dtype=model.dtype,
        model_type=_MODEL_TYPES[tag_of(model)],
        max_concurrent_requests=limits.max_concurrent_requests,
        max_input_length=model.max_input_tokens,
        max_batch_tokens=limits.max_batch_tokens,
        max_batch_requests=limits.max_batch_texts,
        max_client_batch_size=limits.max_inputs_per_request,
        tokenization_workers=limits.tokenization_workers,
    )


# --- fields ---------------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    if not text:
        raise EmptyInput("`inputs` cannot be empty", field="inputs")
    return text


def _check_count(given: int, limit: int, field: str) -> None:
    if given > limit:
        raise PayloadTooLarge("{field} has {given} items; the limit is {limit}.", field=field, given=given, limit=limit)


def _prompt_name(message: EmbedLike | pb.EncodeRequest) -> str | None:
    return message.prompt_name if message.HasField("prompt_name") else None


_SIDES: Mapping[int, Side] = {pb.TRUNCATION_DIRECTION_RIGHT: "right", pb.TRUNCATION_DIRECTION_LEFT: "left"}


def truncation(message: Any, prompt_name: str | None = None) -> TextOptions:
    """The options of a message with `truncate` and `truncation_direction`."""
    side = _SIDES.get(message.truncation_direction)
    if side is None:  # proto3 accepts any number
        raise InvalidField("`truncation_direction` must be RIGHT or LEFT", field="truncation_direction")
    return TextOptions(truncate=message.truncate, truncate_side=side, prompt_name=prompt_name)


def metadata(*usages: Usage, characters: int | None = None) -> pb.Metadata:
    """The cost of the requests that a response answers. characters: None for those of the inputs."""
    tokenizing_s, waiting_s, computing_s = mean_times(usages)
    total_s = max(usage.timings.ended_s for usage in usages) - min(usage.timings.began_s for usage in usages)
    if characters is None:
        characters = sum(usage.characters for usage in usages)
    return pb.Metadata(
        compute_chars=min(characters, UINT32_MAX),
        compute_tokens=min(sum(usage.tokens for usage in usages), UINT32_MAX),
        total_time_ns=_ns(total_s),
        tokenization_time_ns=_ns(tokenizing_s),
        queue_time_ns=_ns(waiting_s),
        inference_time_ns=_ns(computing_s),
    )


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


# --- methods --------------------------------------------------------------------------------------------------


class Method(msgspec.Struct, frozen=True):
    """One message and one response; a method that streams has one response for each message."""

    path: str
    kind: type[Message]
    parse: Callable[[Any], ParsedMessage]
    streams: bool

    def read(self, content: bytes) -> ParsedMessage:
        """Raises MalformedBody, and the errors of `parse`."""
        return self.parse(decode_message(self.kind, content))


_PARSERS: Mapping[str, Callable[[Any], ParsedMessage]] = {
    "InfoRequest": info,
    "EmbedRequest": embed,
    "EmbedSparseRequest": embed_sparse,
    "EmbedAllRequest": embed_all,
    "PredictRequest": predict,
    "PredictPairRequest": predict_pair,
    "RerankRequest": rerank,
    "EncodeRequest": tokenize,
    "DecodeRequest": decode,
}
METHODS = tuple(
    Method(
        path=f"/{service.full_name}/{method.name}",
        kind=GetMessageClass(method.input_type),
        parse=_PARSERS[method.input_type.name],
        streams=method.client_streaming,
    )
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.input_type.name in _PARSERS
)
RERANK_STREAM = "/tei.v1.Rerank/RerankStream"  # many messages, one response: see streams.py
