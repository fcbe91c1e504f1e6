"""Long texts to a dense vector for each chunk.

Chunks are embedded one by one, or late: the model reads the whole document, or windows of it, and each chunk's vector
is pooled from its own tokens, whose vectors depend on the text around them. Source: Günther et al. 2024, "Late
chunking".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from vectord.engine.models.registry import ModelOrComposite, ServedModel, require
from vectord.engine.operations import postprocess
from vectord.engine.operations.embed import DENSE, check_dimensions, check_precisions, request_of, space_of
from vectord.engine.operations.task import Task, compute, placing_errors, usage_of
from vectord.engine.queue.runner import NOTHING_RAN
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
    TextLengths,
)
from vectord.text.sequence import Chunk, ReadRequest


async def embed_documents(target: ModelOrComposite, request: DocumentsRequest, task: Task) -> DocumentsResult:
    """The chunks of every document and their vectors, in order; a document without any text has none."""
    served = target.lead
    _check(served, target.name, request, task)
    how = request.spans if request.chunks is None else request.chunks
    assert how is not None, "either chunks or spans"
    async with task.use(served.reader_of(request.text)) as runner:
        chunked = await task.chunk(runner, request.documents, how)
        task.check_count("documents", sum(map(len, chunked)), "chunk")
        if not request.vectors:
            spans = TextLengths([sum(chunk.tokens for chunk in chunks) for chunks in chunked])
            return DocumentsResult(
                model=target.name,
                fingerprint=space_of(served, request.dimensions, request.normalize),
                documents=[ChunkedDocument(chunks=_shown(chunks), vectors={}) for chunks in chunked],
                usage=usage_of(task, spans, request.documents, NOTHING_RAN),
            )
        owners: Sequence[int] = [i for i, chunks in enumerate(chunked) for _ in chunks]
        further_tokens = 0  # read again, as the context of a window
        if request.late:
            truncate = request.text.truncates(runner.auto_truncate)
            late = ReadRequest(inputs=request.documents, options=request.text, truncate=truncate, chunks=chunked)
            texts = await task.read(runner, late)
            ran = await task.run(runner, texts, DENSE)
            owners = texts.indexes
            further_tokens = len(texts.ids) - sum(texts.lengths.kept)
        else:
            parts = [request.documents[i][one.start : one.stop] for i, chunks in enumerate(chunked) for one in chunks]
            with placing_errors(owners=owners):
                texts = await task.read(runner, request_of(runner, parts, request.text))
                ran = await task.run(runner, texts, DENSE)
    lengths = _sums(owners, texts.lengths, len(chunked))
    rows = ran.rows("dense")
    cut = served.spec.cut(request.dimensions)
    vectors = await compute(rows.size, lambda: postprocess.finish(rows, cut, request.normalize))
    shown = await compute(
        rows.size, lambda: {kind: postprocess.in_precision(vectors, kind) for kind in request.precisions}
    )
    return DocumentsResult(
        model=target.name,
        fingerprint=space_of(served, request.dimensions, request.normalize),
        documents=_documents(chunked, vectors, shown, request),
        usage=usage_of(task, lengths, request.documents, ran, further_tokens=further_tokens),
    )


def _check(served: ServedModel, name: str, request: DocumentsRequest, task: Task) -> None:
    if request.vectors:
        require(served, DENSE)
    if request.late and (served.spec.pooling != "mean" or served.spec.handler is not None):
        raise ModelCannot(
            "Late chunking needs a model that pools the mean of its tokens; {model} does not, or not here.",
            field="late",
            model=name,
        )
    check_dimensions(served.spec, request.dimensions, forced=request.force_dimensions or task.force_dimensions)
    check_precisions(request.precisions, normalize=request.normalize)
    task.check_count("documents", len(request.documents))
    if request.spans is None:
        return
    if len(request.spans) != len(request.documents):
        raise InvalidField(
            "{field} must have a list for each of the {limit} documents; got {given}.",
            field="spans",
            limit=len(request.documents),
            given=len(request.spans),
        )
    task.check_most("spans", sum(map(len, request.spans)), "chunk")
    for index, (document, own) in enumerate(zip(request.documents, request.spans, strict=True)):
        done = 0
        for place, span in enumerate(own):
            if not done <= span.start < span.stop <= len(document):
                raise InvalidField(
                    "{field}: span {span}, counted from 0, must have at least one character, begin at {least} or "
                    "later, and end at {most} or earlier.",
                    field="spans",
                    index=index,
                    span=place,
                    least=done,
                    most=len(document),
                )
            done = span.stop


def _sums(owners: Sequence[int], lengths: TextLengths, documents: int) -> TextLengths:
    """The length of each document: the sum of its pieces, overlaps counted each time. owners: the document of each
    piece."""
    sums = [TextLength(0, 0)] * documents
    for owner, piece in zip(owners, lengths, strict=True):
        so_far = sums[owner]
        sums[owner] = TextLength(
            seen=so_far.seen + piece.seen,
            kept=so_far.kept + piece.kept,
            characters_cut=so_far.characters_cut + piece.characters_cut,
        )
    return TextLengths.of(sums)


def _documents(
    chunked: Sequence[Sequence[Chunk]],
    vectors: Float32,
    shown: Mapping[Precision, npt.NDArray[np.generic]],
    request: DocumentsRequest,
) -> list[ChunkedDocument]:
    """vectors (chunks of all documents, D); shown: the vectors in each requested precision."""
    stops = np.cumsum([len(chunks) for chunks in chunked]).tolist()
    assert len(vectors) == stops[-1], "a vector for each chunk"
    documents = []
    for chunks, start, stop in zip(chunked, [0, *stops], stops, strict=False):
        mean = None
        if request.mean and chunks:
            mean = vectors[start:stop].mean(axis=0, keepdims=True, dtype=np.float64).astype(np.float32)
            mean = postprocess.finish(mean, None, request.normalize)[0]
        own = {kind: rows[start:stop] for kind, rows in shown.items()}
        documents.append(ChunkedDocument(chunks=_shown(chunks), vectors=own, mean=mean))
    return documents


def _shown(chunks: Sequence[Chunk]) -> list[DocumentChunk]:
    return [DocumentChunk(span=Span(chunk.start, chunk.stop), tokens=chunk.tokens) for chunk in chunks]
