"""Answers -> documents in chunks. Pure."""

from __future__ import annotations

import msgspec

from vectord.client.answers import Document, Span
from vectord.client.messages import Reply
from vectord.client.reading import reading
from vectord.client.vectors import decode_rows


class _Chunk(msgspec.Struct):
    start: int
    stop: int
    tokens: int
    vector: str


class _Document(msgspec.Struct):
    chunks: list[_Chunk]
    mean: str | None = None


class _DocumentsAnswer(msgspec.Struct):
    data: list[_Document]


def read_documents(reply: Reply) -> list[Document]:
    with reading(reply):
        answer = msgspec.json.decode(reply.body, type=_DocumentsAnswer)
        return [
            Document(
                spans=[Span(chunk.start, chunk.stop) for chunk in one.chunks],
                tokens=[chunk.tokens for chunk in one.chunks],
                vectors=decode_rows([chunk.vector for chunk in one.chunks]),
                mean=None if one.mean is None else decode_rows([one.mean])[0],
            )
            for one in answer.data
        ]
