"""Renders results as messages of tei.v1. Pure; requests.py selects a renderer for each message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from vectord import __version__
from vectord.products.common.models import first_model, tag_of
from vectord.products.tei.routes import places, places_of_labels
from vectord.products.tei.usage import tokenization_s
from vectord.schema import (
    ClassifyResult,
    DecodeResult,
    EmbedResult,
    Float32,
    ModelList,
    RerankResult,
    TokenizeResult,
    Usage,
)
from vectord.server.grpc import tei_pb2 as pb

UINT32_MAX = 2**32 - 1

# --- vectors --------------------------------------------------------------------------------------------------


def embed(result: EmbedResult) -> pb.EmbedResponse:
    response: pb.EmbedResponse = pb.EmbedResponse.FromString(_packed(result.dense["float"][0]))
    response.metadata.CopyFrom(metadata(result.usage))
    return response


def embed_all(result: EmbedResult) -> pb.EmbedAllResponse:
    assert result.tokens is not None
    tokens = [pb.TokenEmbedding.FromString(_packed(vector)) for vector in result.tokens[0]]
    return pb.EmbedAllResponse(token_embeddings=tokens, metadata=metadata(result.usage))


def _packed(vector: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    """A message with `repeated float` as field 1. Its packed form is a tag, a length, and the bytes of the array.

    This takes 1.2 us for 384 numbers; passing them to protobuf as a list takes 9.3.
    """
    numbers = np.ascontiguousarray(vector, dtype="<f4").tobytes()
    return b"\x0a" + _varint(len(numbers)) + numbers


def _varint(value: int) -> bytes:
    """Seven bits per byte, lowest first; the eighth bit marks that another byte follows."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def embed_sparse(result: EmbedResult) -> pb.EmbedSparseResponse:
    assert result.sparse is not None
    (vector,) = result.sparse
    entries = zip(vector.indices.tolist(), vector.values.tolist(), strict=True)
    items = [pb.SparseValue(index=index, value=value) for index, value in entries]
    return pb.EmbedSparseResponse(sparse_embeddings=items, metadata=metadata(result.usage))


# --- scores ---------------------------------------------------------------------------------------------------


def predict(result: ClassifyResult) -> pb.PredictResponse:
    """Labels best first."""
    (scores,) = result.scores
    (order,) = places_of_labels(result)
    items = [pb.Prediction(score=scores[place], label=result.labels[place]) for place in order]
    return pb.PredictResponse(predictions=items, metadata=metadata(result.usage))


def rerank(query: str, texts: Sequence[str], return_text: bool, result: RerankResult) -> pb.RerankResponse:
    """Best first. TEI counts the query's characters once per text."""
    characters = len(query) * len(texts) + sum(map(len, texts))
    return pb.RerankResponse(
        ranks=ranks(result.scores, result.logits, texts if return_text else None),
        metadata=metadata(result.usage, characters),
    )


def ranks(scores: Float32, logits: Float32 | None, texts: Sequence[str] | None) -> Iterable[pb.Rank]:
    """Best first, with the text if `texts` is given. scores, logits: (N,) in the order of the texts."""
    for place in places(scores, logits):
        yield pb.Rank(index=place, score=scores[place], text=None if texts is None else texts[place])


# --- tokens and facts -----------------------------------------------------------------------------------------


def tokenize(result: TokenizeResult) -> pb.EncodeResponse:
    (tokens,) = result.tokens
    items = [
        pb.SimpleToken(id=token.id, text=token.text, special=token.special, start=token.start, stop=token.stop)
        for token in tokens
    ]
    return pb.EncodeResponse(tokens=items)


def decode(result: DecodeResult) -> pb.DecodeResponse:
    (text,) = result.texts
    return pb.DecodeResponse(text=text)


_MODEL_TYPES: Mapping[str, pb.ModelType] = {
    "embedding": pb.MODEL_TYPE_EMBEDDING,
    "classifier": pb.MODEL_TYPE_CLASSIFIER,
    "reranker": pb.MODEL_TYPE_RERANKER,
}


def info(result: ModelList) -> pb.InfoResponse:
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


# --- cost -----------------------------------------------------------------------------------------------------


def metadata(usage: Usage, characters: int | None = None) -> pb.Metadata:
    """characters: None for those of the inputs."""
    timings = usage.timings
    return pb.Metadata(
        compute_chars=min(usage.characters if characters is None else characters, UINT32_MAX),
        compute_tokens=min(usage.tokens, UINT32_MAX),
        total_time_ns=_ns(timings.total_s),
        tokenization_time_ns=_ns(tokenization_s(usage)),
        queue_time_ns=_ns(timings.waiting_s),
        inference_time_ns=_ns(timings.computing_s),
    )


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
