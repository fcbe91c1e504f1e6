"""Answers in JSON -> values, and what all reading has in common. Pure.

Each function raises ServerFailed for what docs/api.md does not describe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from vectord.client.answers import Health, Label, Model, Span, Token
from vectord.client.errors import ServerFailed
from vectord.client.messages import Reply

# What an answer of the wrong shape makes of the code that reads it: other types, other counts, depths without end.
UNREADABLE = (
    ValueError,
    LookupError,
    OverflowError,
    AttributeError,
    TypeError,
    RecursionError,
    msgspec.MsgspecError,
)


@contextmanager
def reading(reply: Reply) -> Iterator[None]:
    """ServerFailed for whatever fails within because of what `reply` holds."""
    try:
        yield
    except UNREADABLE as cause:
        raise ServerFailed(
            "The answer is none that docs/api.md describes.",
            status=reply.status,
            request_id=reply.headers.get("x-request-id"),
        ) from cause


class RankedPassage(msgspec.Struct):
    index: int
    score: float
    span: Span | None = None


class _Warning(msgspec.Struct):
    type: str
    index: int | None = None


class RankedPassages(msgspec.Struct):
    model: str
    score_kind: str
    results: list[RankedPassage]
    warnings: list[_Warning]

    @property
    def truncated(self) -> list[int]:
        return [warning.index for warning in self.warnings if warning.index is not None]

    @property
    def query_truncated(self) -> bool:
        return any(warning.type == "query_truncated" for warning in self.warnings)


def read_ranked(reply: Reply, passages: int, top_n: int | None) -> RankedPassages:
    with reading(reply):
        answer = msgspec.json.decode(reply.body, type=RankedPassages)
        if len(answer.results) != min(top_n or passages, passages):
            raise ValueError("another number of passages than was asked for")
        places = {one.index for one in answer.results}
        if len(places) < len(answer.results) or not places <= set(range(passages)):
            raise ValueError("a passage twice, or one that was not sent")
        return answer


class _Labels(msgspec.Struct):
    labels: list[Label]


class _ClassifyAnswer(msgspec.Struct):
    data: list[_Labels]


def read_labels(reply: Reply) -> list[list[Label]]:
    with reading(reply):
        return [one.labels for one in msgspec.json.decode(reply.body, type=_ClassifyAnswer).data]


class _Scores(msgspec.Struct):
    scores: list[float]


def read_scores(reply: Reply) -> list[float]:
    with reading(reply):
        return msgspec.json.decode(reply.body, type=_Scores).scores


class _Tokens(msgspec.Struct):
    tokens: list[Token]


class _TokenizeAnswer(msgspec.Struct):
    data: list[_Tokens]


def read_tokens(reply: Reply) -> list[list[Token]]:
    with reading(reply):
        return [one.tokens for one in msgspec.json.decode(reply.body, type=_TokenizeAnswer).data]


class _Text(msgspec.Struct):
    text: str


class _DecodeAnswer(msgspec.Struct):
    data: list[_Text]


def read_texts(reply: Reply) -> list[str]:
    with reading(reply):
        return [one.text for one in msgspec.json.decode(reply.body, type=_DecodeAnswer).data]


class _ModelsAnswer(msgspec.Struct):
    models: list[Model]


def read_models(reply: Reply) -> list[Model]:
    with reading(reply):
        return msgspec.json.decode(reply.body, type=_ModelsAnswer).models


def read_health(reply: Reply) -> Health:
    with reading(reply):
        return msgspec.json.decode(reply.body, type=Health)
