"""Long texts to a dense vector for each chunk. Called by engine.py.

Chunks are embedded one by one, or late: the model reads the whole document, or windows of it, and each chunk's vector
is pooled from its own tokens, which have seen what stands around them. Source: Günther et al. 2024, "Late chunking".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from vectord.engine import dense
from vectord.engine.embedding import DENSE, check_dimensions, pooled_span, space_of
from vectord.engine.encoding import Chunk
from vectord.engine.registry import Served, require
from vectord.engine.runner import ModelRunner, Ran, Text
from vectord.engine.task import Task, blaming, compute, usage_of
from vectord.errors import ModelCannot
from vectord.schema import (
    ChunkedDocument,
    DocumentChunk,
    DocumentsRequest,
    DocumentsResult,
    Float32,
    Span,
    TextLength,
)


async def embed_documents(served: Served, name: str, request: DocumentsRequest, task: Task) -> DocumentsResult:
    """The chunks of every document and their vectors, in order; a document without any text has none."""
    _check(served, name, request, task)
    async with task.use(served) as runner:
        runner.check_wait(task.caller)
        chunked = await task.chunk(runner, request.documents, request.chunks, request.field)
        task.check_count(sum(map(len, chunked)), request.field, "chunk")
        made = await (_late if request.late else _one_by_one)(runner, request, chunked, task)
    rows = made.ran.rows("dense")
    vectors = await compute(rows.size, lambda: dense.finish(rows, request.dimensions, request.normalize))
    return DocumentsResult(
        model=name,
        fingerprint=space_of(served, request.dimensions, request.normalize),
        documents=_documents(chunked, vectors, request),
        usage=usage_of(task, made.lengths, request.documents, made.ran),
    )


@dataclass(frozen=True, slots=True)
class Made:
    ran: Ran  # a row for each chunk
    lengths: Sequence[TextLength]  # of each document: all that was read of it, windows and chunks as often as they were


def _check(served: Served, name: str, request: DocumentsRequest, task: Task) -> None:
    require(served, DENSE)
    if request.late and (served.spec.pooling != "mean" or served.spec.handler is not None):
        raise ModelCannot(
            f"Late chunking needs a model that takes the mean of its tokens; {name} does not, or not here.",
            field="late",
        )
    check_dimensions(served.spec, request.dimensions, forced=request.force_dimensions)
    task.check_count(len(request.documents), request.field)


async def _one_by_one(
    runner: ModelRunner, request: DocumentsRequest, chunked: Sequence[Sequence[Chunk]], task: Task
) -> Made:
    owners = [i for i, chunks in enumerate(chunked) for _ in chunks]
    texts = [request.documents[i][chunk.start : chunk.stop] for i, chunks in enumerate(chunked) for chunk in chunks]
    encode = partial(
        runner.encoder.encode,
        texts,
        request.text,
        truncate=runner.truncates(request.text),
        field=request.field,
    )
    with blaming(owners):
        encoded = await task.encode(texts, lambda part: encode(part=part), each=len(request.text.prompt or ""))
        run = [Text(ids=text.ids, type_ids=text.type_ids, spans=pooled_span(runner.spec, text)) for text in encoded]
        ran = await runner.run(run, DENSE, task.caller, request.field)
    return Made(ran, _sums(owners, [text.length for text in encoded], len(chunked)))


async def _late(runner: ModelRunner, request: DocumentsRequest, chunked: Sequence[Sequence[Chunk]], task: Task) -> Made:
    documents, encode_windows = request.documents, runner.encoder.encode_windows
    by_document = await task.encode(
        documents,
        lambda part: [encode_windows(documents[i], chunked[i], request.text) if chunked[i] else [] for i in part],
    )
    owners = [i for i, windows in enumerate(by_document) for _ in windows]
    windows = [window for windows in by_document for window in windows]
    texts = [Text(ids=window.ids, type_ids=window.type_ids, spans=window.spans) for window in windows]
    with blaming(owners):
        ran = await runner.run(texts, DENSE, task.caller, request.field)
    return Made(ran, _sums(owners, [TextLength(len(text.ids), len(text.ids)) for text in texts], len(chunked)))


def _sums(owners: Sequence[int], lengths: Sequence[TextLength], documents: int) -> list[TextLength]:
    """What was read of each document, from what was read of its pieces. owners: the document of each piece."""
    sums = [TextLength(0, 0)] * documents
    for owner, piece in zip(owners, lengths, strict=True):
        so_far = sums[owner]
        sums[owner] = TextLength(
            seen=so_far.seen + piece.seen,
            kept=so_far.kept + piece.kept,
            characters_cut=so_far.characters_cut + piece.characters_cut,
        )
    return sums


def _documents(
    chunked: Sequence[Sequence[Chunk]], vectors: Float32, request: DocumentsRequest
) -> list[ChunkedDocument]:
    stops = np.cumsum([len(chunks) for chunks in chunked])
    assert len(vectors) == stops[-1], "a vector for each chunk"
    return [
        ChunkedDocument(
            chunks=[DocumentChunk(span=Span(chunk.start, chunk.stop), tokens=chunk.tokens) for chunk in chunks],
            vectors=rows,
            mean=_mean(rows, request) if request.mean and chunks else None,
        )
        for chunks, rows in zip(chunked, np.split(vectors, stops[:-1]), strict=True)
    ]


def _mean(rows: Float32, request: DocumentsRequest) -> Float32:
    """Of the chunks' vectors as they are given; of length 1 itself if those are."""
    mean = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    (finished,) = dense.finish(mean[None, :], None, request.normalize)
    return np.asarray(finished)
