"""The methods of tei.v1, each a way to read its message. Used by services.py; tei.proto declares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from vectord.rpc import requests
from vectord.rpc import tei_pb2 as pb
from vectord.rpc.requests import Asked


@dataclass(frozen=True, slots=True)
class Method:
    """One message, one answer; of a method that streams, one for each."""

    path: str
    kind: type[Message]
    parse: Callable[[Any], Asked]
    streams: bool = False

    def read(self, content: bytes) -> Asked:
        return self.parse(requests.decoded(self.kind, content))


METHODS = (
    Method("/tei.v1.Info/Info", pb.InfoRequest, requests.info),
    Method("/tei.v1.Embed/Embed", pb.EmbedRequest, requests.embed),
    Method("/tei.v1.Embed/EmbedStream", pb.EmbedRequest, requests.embed, streams=True),
    Method("/tei.v1.Embed/EmbedSparse", pb.EmbedSparseRequest, requests.embed_sparse),
    Method("/tei.v1.Embed/EmbedSparseStream", pb.EmbedSparseRequest, requests.embed_sparse, streams=True),
    Method("/tei.v1.Embed/EmbedAll", pb.EmbedAllRequest, requests.embed_all),
    Method("/tei.v1.Embed/EmbedAllStream", pb.EmbedAllRequest, requests.embed_all, streams=True),
    Method("/tei.v1.Predict/Predict", pb.PredictRequest, requests.predict),
    Method("/tei.v1.Predict/PredictStream", pb.PredictRequest, requests.predict, streams=True),
    Method("/tei.v1.Predict/PredictPair", pb.PredictPairRequest, requests.predict_pair),
    Method("/tei.v1.Predict/PredictPairStream", pb.PredictPairRequest, requests.predict_pair, streams=True),
    Method("/tei.v1.Rerank/Rerank", pb.RerankRequest, requests.rerank),
    Method("/tei.v1.Tokenize/Tokenize", pb.EncodeRequest, requests.tokenize),
    Method("/tei.v1.Tokenize/TokenizeStream", pb.EncodeRequest, requests.tokenize, streams=True),
    Method("/tei.v1.Tokenize/Decode", pb.DecodeRequest, requests.decode),
    Method("/tei.v1.Tokenize/DecodeStream", pb.DecodeRequest, requests.decode, streams=True),
)
RERANK_STREAM = "/tei.v1.Rerank/RerankStream"  # many messages, one answer: see rank_stream.py
