"""Long texts to a dense vector for each chunk. Called by engine.py.

Chunks are embedded one by one, or late: the model reads the whole document, or windows of it, and each chunk's vector
is pooled from its own tokens, which have seen what stands around them. Source: Günther et al. 2024, "Late chunking".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vectord.engine.models.registry import ServedModel, require
from vectord.engine.operations import dense
from vectord.engine.operations.embed import DENSE, check_dimensions, check_precisions, space_of
from vectord.engine.operations.encoding import Encoder
from vectord.engine.operations.reading import for_network, read
from vectord.engine.operations.task import Task, blaming, compute, usage_of
from vectord.engine.queue.runner import ModelRunner, Ran, Text
from vectord.errors import InvalidField, ModelCannot
from vectord.schema import (
    ChunkedDocument,
    DocumentChunk,
    DocumentsRequest,
    DocumentsResult,
    Float32,
    Precision,
    Span,
    TextLength,
)
from vectord.text.encoded import Chunk, Window


async def embed_documents(served: ServedModel, name: str, request: DocumentsRequest, task: Task) -> DocumentsResult:
    """The chunks of every document and their vectors, in order; a document without any text has none."""
    _check(served, name, request, task)
    async with task.use(served) as runner:
        task.check_wait(runner)
        chunked = await task.chunk(request.documents, _chunker(runner.encoder, request), "documents")
        task.check_count(sum(map(len, chunked)), "documents", "chunk")
        made = await (_late if request.late else _one_by_one)(runner, request, chunked, task)
    rows = made.ran.rows("dense")
    vectors = await compute(rows.size, lambda: dense.finish(rows, request.dimensions, request.normalize))
    shown = await compute(rows.size, lambda: {kind: dense.in_precision(vectors, kind) for kind in request.precisions})
    return DocumentsResult(
        model=name,
        fingerprint=space_of(served, request.dimensions, request.normalize),
        documents=_documents(chunked, vectors, shown, request),
        usage=usage_of(task, made.lengths, request.documents, made.ran, further_tokens=made.further_tokens),
    )


@dataclass(frozen=True, slots=True)
class Made:
    ran: Ran  # a row for each chunk
    lengths: Sequence[TextLength]  # of each document: all that was read of it, chunks that overlap as often as they do
    further_tokens: int = 0  # read once more, as a window's context


def _check(served: ServedModel, name: str, request: DocumentsRequest, task: Task) -> None:
    require(served, DENSE)
    if request.late and (served.spec.pooling != "mean" or served.spec.handler is not None):
        raise ModelCannot(
            f"Late chunking needs a model that takes the mean of its tokens; {name} does not, or not here.",
            field="late",
        )
    check_dimensions(served.spec, request.dimensions, forced=request.force_dimensions)
    check_precisions(request.precisions, normalize=request.normalize)
    task.check_count(len(request.documents), "documents")
    if request.spans is not None:
        _check_spans(request.documents, request.spans, task)


def _check_spans(documents: Sequence[str], spans: Sequence[Sequence[Span]], task: Task) -> None:
    """Raises InvalidField for spans that are not, in order and apart, parts of their documents; TooManyInputs."""
    if len(spans) != len(documents):
        message = f"`spans` must have a list for each of the {len(documents)} documents; got {len(spans)}."
        raise InvalidField(message, field="spans", limit=len(documents), given=len(spans))
    task.check_most(sum(map(len, spans)), "spans", "chunk")
    for index, (document, own) in enumerate(zip(documents, spans, strict=True)):
        done = 0
        for place, span in enumerate(own):
            if not done <= span.start < span.stop <= len(document):
                raise InvalidField(
                    f"`spans[{index}][{place}]` must hold a character at least, begin at {done} or behind, "
                    f"and end at {len(document)} or before.",
                    field="spans",
                    index=index,
                )
            done = span.stop


def _chunker(encoder: Encoder, request: DocumentsRequest) -> Callable[[int], Sequence[Chunk]]:
    """The chunks of a document by its place: ours, or the caller's own."""
    documents, options, spans = request.documents, request.chunks, request.spans
    if options is not None:
        return lambda index: encoder.chunk(documents[index], options, field="documents", index=index)
    assert spans is not None, "either chunks or spans"
    return lambda index: encoder.chunk_at(documents[index], spans[index], field="documents", index=index)


async def _one_by_one(
    runner: ModelRunner, request: DocumentsRequest, chunked: Sequence[Sequence[Chunk]], task: Task
) -> Made:
    owners = [i for i, chunks in enumerate(chunked) for _ in chunks]
    texts = [request.documents[i][chunk.start : chunk.stop] for i, chunks in enumerate(chunked) for chunk in chunks]
    with blaming(owners):
        encoded = await read(runner, texts, request.text, task, "documents")
        run = [for_network(runner.spec, text) for text in encoded]
        ran = await task.run(runner, run, DENSE, "documents")
    return Made(ran, _sums(owners, [text.length for text in encoded], len(chunked)))


async def _late(runner: ModelRunner, request: DocumentsRequest, chunked: Sequence[Sequence[Chunk]], task: Task) -> Made:
    truncate = runner.truncates(request.text)

    def encode(part: range) -> list[Sequence[Window]]:
        return [
            runner.encoder.encode_windows(
                request.documents[i], chunked[i], request.text, truncate=truncate, field="documents", index=i
            )
            if chunked[i]
            else ()
            for i in part
        ]

    by_document = await task.encode(request.documents, encode)
    owners = [i for i, windows in enumerate(by_document) for _ in windows]
    windows = [window for windows in by_document for window in windows]
    texts = [Text(ids=window.ids, type_ids=window.type_ids, spans=window.spans) for window in windows]
    with blaming(owners):
        ran = await task.run(runner, texts, DENSE, "documents")
    further = sum(len(window.ids) - window.length.kept for window in windows)
    return Made(ran, _sums(owners, [window.length for window in windows], len(chunked)), further)


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
    chunked: Sequence[Sequence[Chunk]],
    vectors: Float32,
    shown: Mapping[Precision, npt.NDArray[np.generic]],
    request: DocumentsRequest,
) -> list[ChunkedDocument]:
    """vectors (chunks of all documents, D); shown: those as the request wants them."""
    stops = np.cumsum([len(chunks) for chunks in chunked]).tolist()
    assert len(vectors) == stops[-1], "a vector for each chunk"
    return [
        ChunkedDocument(
            chunks=[DocumentChunk(span=Span(chunk.start, chunk.stop), tokens=chunk.tokens) for chunk in chunks],
            vectors={kind: rows[start:stop] for kind, rows in shown.items()},
            mean=_mean(vectors[start:stop], request) if request.mean and chunks else None,
        )
        for chunks, start, stop in zip(chunked, [0, *stops], stops, strict=False)
    ]


def _mean(rows: Float32, request: DocumentsRequest) -> Float32:
    """Of the chunks' vectors as they are given; of length 1 itself if those are."""
    mean = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    (finished,) = dense.finish(mean[None, :], None, request.normalize)
    return np.asarray(finished)
