"""The methods of tei.v1, each a way to read its message. Used by services.py; tei.proto declares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from vectord.server.grpc import requests
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.fields import check_fields
from vectord.server.grpc.requests import Asked

# Enough that a batch of short texts fills, and that one stream does not keep the others from theirs.
SHORT_AT_ONCE = 64
LARGE_AT_ONCE = 4  # of answers that may have megabytes each: vectors or pieces of all tokens of a text


@dataclass(frozen=True, slots=True)
class Method:
    """One message, one answer; of a method that streams, one for each."""

    path: str
    kind: type[Message]
    parse: Callable[[Any], Asked]
    streams: bool = False
    at_once: int = SHORT_AT_ONCE  # messages of one stream that are answered, or whose answers wait to be taken
    repeats: str = ""  # the field of many texts, if there is one

    def read(self, content: bytes, max_inputs: int | None = None) -> Asked:
        """Raises MalformedBody, TooManyInputs, and what `parse` does. max_inputs: None: any number of texts."""
        if self.repeats and max_inputs is not None:
            check_fields(content, max_inputs, self.repeats)
        return self.parse(requests.decoded(self.kind, content))


METHODS = (
    Method("/tei.v1.Info/Info", pb.InfoRequest, requests.info),
    Method("/tei.v1.Embed/Embed", pb.EmbedRequest, requests.embed),
    Method("/tei.v1.Embed/EmbedStream", pb.EmbedRequest, requests.embed, streams=True),
    Method("/tei.v1.Embed/EmbedSparse", pb.EmbedSparseRequest, requests.embed_sparse),
    Method("/tei.v1.Embed/EmbedSparseStream", pb.EmbedSparseRequest, requests.embed_sparse, streams=True),
    Method("/tei.v1.Embed/EmbedAll", pb.EmbedAllRequest, requests.embed_all),
    Method("/tei.v1.Embed/EmbedAllStream", pb.EmbedAllRequest, requests.embed_all, streams=True, at_once=LARGE_AT_ONCE),
    Method("/tei.v1.Predict/Predict", pb.PredictRequest, requests.predict),
    Method("/tei.v1.Predict/PredictStream", pb.PredictRequest, requests.predict, streams=True),
    Method("/tei.v1.Predict/PredictPair", pb.PredictPairRequest, requests.predict_pair, repeats="inputs"),
    Method(
        "/tei.v1.Predict/PredictPairStream",
        pb.PredictPairRequest,
        requests.predict_pair,
        streams=True,
        repeats="inputs",
    ),
    Method("/tei.v1.Rerank/Rerank", pb.RerankRequest, requests.rerank, repeats="texts"),
    Method("/tei.v1.Tokenize/Tokenize", pb.EncodeRequest, requests.tokenize),
    Method("/tei.v1.Tokenize/TokenizeStream", pb.EncodeRequest, requests.tokenize, streams=True, at_once=LARGE_AT_ONCE),
    Method("/tei.v1.Tokenize/Decode", pb.DecodeRequest, requests.decode),
    Method("/tei.v1.Tokenize/DecodeStream", pb.DecodeRequest, requests.decode, streams=True),
)
RERANK_STREAM = "/tei.v1.Rerank/RerankStream"  # many messages, one answer: see rank_stream.py
