"""Texts that come one by one and are ranked together: one answer to a whole stream. Called by services.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from vectord.errors import EmptyInput, PayloadTooLarge
from vectord.schema import RerankRequest, RerankResult, Result, Timings, Usage
from vectord.server.grpc import answers
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.requests import cut, decoded

RANK_FIELDS: Mapping[str, str] = {"passages": "text"}  # the engine's word -> the message's, for errors
HELD_BYTES = 256  # what a text costs until the end beside its own bytes


class RankStream:
    """The texts of one call so far. Each is a request of its own: it may come with another query."""

    def __init__(self, limit_bytes: int) -> None:
        """limit_bytes: what all of them may hold, since the answer needs them all."""
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._began_s = time.perf_counter()
        self._first: pb.RerankStreamRequest | None = None  # says for all whether scores are raw and texts shown
        self._texts: list[str] = []
        self._characters = 0
        self._scores: list[float] = []
        self._tokens = 0
        self._spent: list[Timings] = []

    def read(self, content: bytes) -> RerankRequest:
        """The next message's request. Raises PayloadTooLarge for one too many."""
        message = decoded(pb.RerankStreamRequest, content)
        if not (message.query or message.text):
            raise EmptyInput("`text` cannot be empty", field="text", index=len(self._texts))
        self._held_bytes += len(content) + HELD_BYTES
        if self._held_bytes > self._limit_bytes:
            raise PayloadTooLarge(f"The texts of a stream may hold {self._limit_bytes} bytes together.")
        if self._first is None:
            self._first = message
        self._texts.append(message.text)
        self._characters += len(message.query) + len(message.text)
        return RerankRequest(
            query=message.query, passages=[message.text], text=cut(message), raw=self._first.raw_scores
        )

    def add(self, result: Result) -> None:
        """What came of the first message that has no score yet."""
        assert isinstance(result, RerankResult)
        self._scores.append(float(result.scores[0]))
        self._tokens += result.usage.tokens
        self._spent.append(result.usage.timings)

    def written(self) -> bytes:
        """The answer. Raises EmptyInput for a stream without a text."""
        if self._first is None:
            raise EmptyInput("`texts` cannot be empty", field="texts")
        texts = self._texts if self._first.return_text else None
        shown = answers.ranks(np.array(self._scores, np.float32), texts)
        content: bytes = pb.RerankResponse(ranks=shown, metadata=answers.metadata(self._usage())).SerializeToString()
        return content

    def _usage(self) -> Usage:
        timings = Timings(
            tokenize_s=_mean([each.tokenize_s for each in self._spent]),
            queue_s=_mean([each.queue_s for each in self._spent]),
            inference_s=_mean([each.inference_s for each in self._spent]),
            total_s=time.perf_counter() - self._began_s,
        )
        return Usage(lengths=(), characters=self._characters, timings=timings, further_tokens=self._tokens)


def _mean(seconds: Sequence[float]) -> float:
    return sum(seconds) / len(seconds)
