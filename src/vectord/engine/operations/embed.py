"""Texts to vectors of every kind, from one model or, for a composite, from several at once; similarity of texts.

rerank.py uses the raw vectors of one model (`vectors_by`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.models.registry import ModelOrComposite, ServedModel, require
from vectord.engine.operations import postprocess
from vectord.engine.operations.multivectors import ColbertForms, check_multivectors, converted, pool_tokens
from vectord.engine.operations.task import PART_CHARACTERS, Task, compute, together, usage_of
from vectord.engine.queue.runner import NOTHING_RAN, ModelRunner, RunResult
from vectord.errors import InvalidField, InvalidRequest, ModelCannot, TooManyInputs, VectordError, installing
from vectord.schema import (
    COLBERT_ROWS,
    AnswerKind,
    EmbedRequest,
    EmbedResult,
    Float32,
    Input,
    InputPage,
    Media,
    Precision,
    SimilarityRequest,
    SimilarityResult,
    Sparse,
    TextLength,
    TextLengths,
    TextOptions,
    VectorKind,
)
from vectord.text.pdf import pages_of, picture_of
from vectord.text.sequence import Encoder, ReadRequest, Texts

T = TypeVar("T")
DENSE: frozenset[VectorKind] = frozenset({"dense"})
DenseVectors: TypeAlias = Mapping[Precision, npt.NDArray[np.generic]]  # (N, D) each
MAX_PAGES = 100  # of a request: a page has a thousand rows or more, which stay in memory until its answer
# One text is pooled at a time, because of the memory that this takes.
_multivectors = ThreadPoolExecutor(1, thread_name_prefix="vectord-multivectors")
OF_UNIT_VECTORS: frozenset[Precision] = frozenset({"int8", "uint8"})  # their scale fits unit vectors


async def embed(target: ModelOrComposite, request: EmbedRequest, task: Task) -> EmbedResult:
    """All requested vectors. Each model of a composite reads each text once; without `outputs`, no model is loaded."""
    parts = target.parts(request.outputs)
    _check(parts, request, forced=task.force_dimensions)
    task.check_count("inputs", len(request.inputs))
    if request.has_only_texts or not any(isinstance(one, Media) and one.has_pages for one in request.inputs):
        return await _embed(target, parts, request, task)
    # Each page of a PDF has a row of its own; errors have the index of the file.
    request, places = await _split_pages(request, task)
    try:
        result = await _embed(target, parts, request, task)
    except VectordError as error:
        if error.index is None:
            raise
        raise error.at(index=places[error.index].index) from error.__cause__
    failures = {row: error.at(index=places[row].index) for row, error in result.failures.items()}
    pictures = []
    for page in request.inputs if request.pictures else ():
        picture = b""
        if isinstance(page, Media) and page.page is not None:
            picture = await task.pool.images.run(PART_CHARACTERS, partial(picture_of, page))
        pictures.append(picture)
    return replace(result, pages=places, pictures=pictures, failures=failures)


async def _embed(
    target: ModelOrComposite,
    parts: Sequence[tuple[ServedModel, frozenset[VectorKind]]],
    request: EmbedRequest,
    task: Task,
) -> EmbedResult:
    space = space_of(target, request.dimensions, request.normalize)
    if not request.outputs:
        usage = usage_of(task, TextLengths(), request.inputs, NOTHING_RAN)
        return EmbedResult(model=target.name, fingerprint=space, usage=usage)
    work = [vectors_by(served, kinds, request, task, shown=True) for served, kinds in parts]
    made = dict(zip((served.name for served, _ in parts), await together(work), strict=True))
    sources: dict[VectorKind, str] = {kind: served.name for served, kinds in parts for kind in kinds}
    first, *others = made.values()
    dense: DenseVectors = {}
    if "dense" in sources:
        rows = _cut(made[sources["dense"]].ran, target.lead.spec, request)
        finish = partial(postprocess.in_precisions, rows, None, request.normalize, request.precisions)
        # A front-end that has tokenized the texts makes the vectors of the rows, too: see Tokenizers.
        dense = {"float": rows} if task.tokenized is not None else await compute(rows.size, finish)
    multi = await _finish_rows(made[sources["colbert"]], request) if "colbert" in sources else None
    return EmbedResult(
        model=target.name,
        fingerprint=space,
        dense=dense,
        sparse=made[sources["sparse"]].ran.each("sparse") if "sparse" in sources else None,
        colbert=multi.rows if multi is not None and request.colbert.rows else None,
        muvera=None if multi is None else multi.encodings,
        patches=made[sources["colbert"]].patches if request.patches else None,
        tokens=made[sources["tokens"]].ran.each("tokens") if "tokens" in sources else None,
        usage=usage_of(
            task,
            first.lengths,
            request.inputs,
            first.ran,
            further_tokens=sum(sum(vectors.lengths.kept) for vectors in others),
        ),
        sources=sources,
        lengths={name: vectors.lengths for name, vectors in made.items()},
        limits={name: vectors.spec.max_tokens for name, vectors in made.items()},
        failures={index: error for vectors in made.values() for index, error in vectors.ran.failures.items()},
    )


def embed_alone(
    served: ServedModel, runner: ModelRunner, request: EmbedRequest, *, forced: bool
) -> DenseVectors | None:
    """The dense vectors of texts, computed in the calling thread. None: see Worker.run_alone. forced: dimensions."""
    _check(served.parts(DENSE), request, forced=forced)
    texts = runner.encoder.read(request_of(runner, request.inputs, request.text))
    if (ran := runner.run_alone(texts, DENSE)) is None:
        return None
    return postprocess.in_precisions(_cut(ran, served.spec, request), None, request.normalize, request.precisions)


def _cut(ran: RunResult, spec: ModelSpec, request: EmbedRequest) -> Float32:
    return ran.rows("dense")[:, : spec.truncate_dim if request.dimensions is None else request.dimensions]


async def _split_pages(request: EmbedRequest, task: Task) -> tuple[EmbedRequest, Sequence[InputPage]]:
    """The request for the pages. With `partial`, a file that cannot be read remains an input, which fails later."""
    inputs: list[Input] = []
    places: list[InputPage] = []
    pages = 0
    for index, one in enumerate(request.inputs):
        found: Sequence[Input] = [one]
        if isinstance(one, Media) and one.has_pages:
            try:
                found = await task.pool.images.run(PART_CHARACTERS, partial(pages_of, one, index))
            except InvalidRequest:
                if not request.partial:
                    raise
            pages += len(found)
        if pages > MAX_PAGES:
            template = "{field}: the PDFs of a request may have at most {limit} pages in all."
            raise TooManyInputs(template, field="inputs", index=index, limit=MAX_PAGES)
        inputs += found
        places += [InputPage(index, page.page if isinstance(page, Media) else None) for page in found]
    return replace(request, inputs=inputs), places


async def similarity(target: ModelOrComposite, request: SimilarityRequest, task: Task) -> SimilarityResult:
    """The cosine of one text with each of several."""
    served = target.lead
    require(served, DENSE)
    task.check_count("sentences", len(request.sentences))
    async with task.use(served.reader_of(request.text)) as runner:
        texts = [request.source, *request.sentences]
        try:
            read = await task.read(runner, request_of(runner, texts, request.text))
            ran = await task.run(runner, read, DENSE)
        except VectordError as error:
            if error.index is None:
                raise
            index = error.index - 1 if len(texts) > 2 and error.index else None
            raise error.at(field="sentences" if error.index else "source", index=index) from error.__cause__
    rows = ran.rows("dense")
    cut = served.spec.truncate_dim
    scores = await compute(rows.size, lambda: postprocess.cosines(postprocess.finish(rows, cut, normalize=True)))
    return SimilarityResult(
        model=target.name,
        fingerprint=served.spec.fingerprint,
        scores=scores,
        usage=usage_of(task, read.lengths, texts, ran),
    )


def check_dimensions(spec: ModelSpec, dimensions: int | None, *, forced: bool) -> None:
    """Raises InvalidField for more dimensions than the model has, or for an untrained cut unless forced."""
    if dimensions is None:
        return
    if not 1 <= dimensions <= spec.dimensions:
        raise InvalidField(
            "{field} must be between 1 and {limit}; got {given}.",
            field="dimensions",
            limit=spec.dimensions,
            given=dimensions,
        )
    if forced or spec.matryoshka is None or dimensions in (*spec.matryoshka, spec.dimensions, spec.truncate_dim):
        return
    template = (
        "{field}: this model was trained to be cut to {trained}; got {given}."
        if spec.matryoshka
        else "{field}: this model was not trained to be cut: its first numbers matter no more than the others; "
        "got {given}."
    ) + " Set {body.force_dimensions} to cut anyway."
    raise InvalidField(template, field="dimensions", given=dimensions, trained=", ".join(map(str, spec.matryoshka)))


def space_of(target: ModelOrComposite, dimensions: int | None, normalize: bool) -> str:
    """The name of the vector space: of the model, the width (None: the usual one) and normalization."""
    if isinstance(target, ServedModel) and dimensions is None:
        space = target.usual_space
    else:
        space = f"{target.fingerprint}{target.lead.spec.width_of_space(dimensions)}"
    return space if normalize else f"{space}:raw"


def check_precisions(precisions: Collection[Precision], *, normalize: bool) -> None:
    """Raises InvalidField for vectors of any length in a precision with a fixed scale."""
    if not normalize and not OF_UNIT_VECTORS.isdisjoint(precisions):
        raise InvalidField(
            "{field}: int8 and uint8 are for vectors of length 1; leave {body.normalize} on, or choose others.",
            field="precisions",
        )


def _check(parts: Sequence[tuple[ServedModel, frozenset[VectorKind]]], request: EmbedRequest, *, forced: bool) -> None:
    if request.dimensions is not None and "dense" not in request.outputs:
        raise InvalidField("{field} applies to dense vectors only.", field="dimensions")
    if request.precisions != ("float",) and "dense" not in request.outputs:
        raise InvalidField("{field} applies to dense vectors only.", field="precisions")
    check_precisions(request.precisions, normalize=request.normalize)
    check_specials(request.outputs, request.text)
    if request.colbert != COLBERT_ROWS and "colbert" not in request.outputs:
        raise InvalidField("{field} applies to ColBERT vectors only.", field="colbert")
    muvera = request.colbert.muvera
    if muvera is not None and len(request.inputs) * muvera.width > MAX_SHOWN_NUMBERS:
        template = "{field} may hold at most {limit} inputs with encodings of {width} numbers; got {given}."
        most = MAX_SHOWN_NUMBERS // muvera.width
        raise TooManyInputs(template, field="inputs", limit=most, given=len(request.inputs), width=muvera.width)
    if request.patches and "colbert" not in request.outputs:
        raise InvalidField("{field} applies to ColBERT vectors only.", field="patches")
    for served, kinds in parts:
        if "colbert" in kinds and (request.colbert != COLBERT_ROWS or request.patches):
            check_multivectors(served.spec, request)
        if "dense" in kinds:
            check_dimensions(served.spec, request.dimensions, forced=request.force_dimensions or forced)


async def vectors_by(
    served: ServedModel, kinds: frozenset[VectorKind], request: EmbedRequest, task: Task, *, shown: bool = False
) -> ModelVectors:
    """The vectors of `request.inputs` by one model, each by its network for such inputs. shown: as of `vectors_of`."""
    if served.spec.images is not None and served.spec.image_text is None:
        images = [i for i, one in enumerate(request.inputs) if isinstance(one, Media)]
        if images:
            return await _with_images(served, kinds, request, images, task, shown)
    reader = served if served.queries is None else served.reader_of(request.text)
    async with task.use(reader) as runner:
        if request.partial:
            return await _partial_vectors(runner, request, kinds, task)
        return await vectors_of(runner, request, kinds, task, shown=shown)


async def _with_images(
    served: ServedModel,
    kinds: frozenset[VectorKind],
    request: EmbedRequest,
    images: Sequence[int],
    task: Task,
    shown: bool,
) -> ModelVectors:
    """The dense vectors of inputs of which those at `images` are images: each network reads its own."""
    for field in ("prompt", "prompt_name"):
        if getattr(request.text, field):
            template = "{field} is for texts: this model reads an image without one; send images in another request."
            raise InvalidField(template, field=field)
    if served.images is None:
        template = "The model {model} reads images with Pillow, which is missing here: {command}"
        raise ModelCannot(template, field="inputs", index=images[0], model=served.name, command=installing("images"))

    async def read(reader: ServedModel, places: Sequence[int]) -> ModelVectors:
        part = replace(request, inputs=[request.inputs[i] for i in places])
        try:
            return await vectors_by(reader, kinds, part, task, shown=shown)
        except VectordError as error:
            if error.index is None:
                raise
            raise error.at(index=places[error.index]) from error.__cause__

    texts = sorted({*range(len(request.inputs))}.difference(images))
    parts = {reader: places for reader, places in ((served.images, images), (served, texts)) if places}
    made = await together([read(reader, places) for reader, places in parts.items()])
    rows = np.zeros((len(request.inputs), served.spec.dimensions), np.float32)
    lengths = [TextLength(0, 0)] * len(request.inputs)
    failures: dict[int, VectordError] = {}
    for places, vectors in zip(parts.values(), made, strict=True):
        rows[list(places)] = vectors.ran.rows("dense")
        for i, place in enumerate(places):
            lengths[place] = vectors.lengths[i]
        failures |= {places[i]: error.at(index=places[i]) for i, error in vectors.ran.failures.items()}
    ran = RunResult({"dense": rows}, failures, device=made[0].ran.device)
    return ModelVectors(served.spec, ran, TextLengths.of(lengths), None)


async def _finish_rows(made: ModelVectors, request: EmbedRequest) -> ColbertForms:
    assert made.colbert is not None
    if request.colbert == COLBERT_ROWS:
        return ColbertForms(made.colbert, None)
    convert = partial(converted, options=request.colbert, query=request.text.is_query)
    forms = [await _on_thread(partial(convert, [rows])) for rows in made.colbert]
    encodings = [form.encodings for form in forms if form.encodings is not None]
    return ColbertForms([form.rows[0] for form in forms], np.concatenate(encodings) if encodings else None)


async def _on_thread(call: Callable[[], T]) -> T:
    """The result of `call`, of one text: texts of other requests run in between, and a cancelled request stops."""
    return await asyncio.get_running_loop().run_in_executor(_multivectors, call)


MAX_SHOWN_NUMBERS = 2**24  # of the token vectors in a response: 64 MiB, as JSON 195 MB; 16,384 tokens of BGE-M3
MAX_HELD_NUMBERS = 2**27  # of the token vectors that scores are computed from: 512 MiB; 256 passages of 512 tokens


class ModelVectors(msgspec.Struct, frozen=True):
    spec: ModelSpec
    ran: RunResult
    lengths: TextLengths
    colbert: Sequence[Float32] | None  # of the tokens that count
    patches: Sequence[Float32 | None] = ()  # of their rows, as EmbedResult's


def check_specials(kinds: frozenset[VectorKind], options: TextOptions) -> None:
    """Raises InvalidField for ColBERT vectors without special tokens: those mark queries and documents."""
    if "colbert" in kinds and not options.add_special_tokens:
        raise InvalidField("{field} cannot be off for ColBERT vectors.", field="add_special_tokens")


async def vectors_of(
    runner: ModelRunner,
    request: EmbedRequest,
    kinds: frozenset[VectorKind],
    task: Task,
    *,
    shown: bool = False,
    texts: Texts | None = None,
) -> ModelVectors:
    """The vectors of all inputs, or of those of a partial response that could be read (`texts`). shown: they go into
    the response."""
    spec, options, is_partial = runner.spec, request.text, texts is not None
    if texts is None:
        texts = await task.read(runner, request_of(runner, request.inputs, options))
    _check_numbers(spec, texts, kinds, MAX_SHOWN_NUMBERS if shown else MAX_HELD_NUMBERS)
    lengths = texts.lengths
    if options.count_all and not is_partial:
        lengths = await task.whole_lengths(runner, request.inputs, lengths)
    if reads_by_table(runner, options):
        weights = runner.encoder.query_weights
        assert weights is not None, "only if reads_by_table"
        sparse = []
        for ids in np.split(texts.ids, texts.cu_seqlens[1:-1]):
            # The weight of each token that occurs, unless it is 0. Source: sentence-transformers SparseStaticEmbedding.
            indices = np.unique(ids)
            indices = indices[weights[indices] != 0]
            sparse.append(Sparse(indices.astype(np.int32), weights[indices]))
        ran = replace(NOTHING_RAN, answers={"sparse": sparse})
    else:
        ran = await task.run(runner, texts, kinds, partial=is_partial)
    colbert = await _colbert(spec, ran.each("colbert"), texts, options) if "colbert" in ran.answers else None
    return ModelVectors(spec, ran, lengths, colbert, texts.boxes or [None] * len(lengths.kept))


async def _partial_vectors(
    runner: ModelRunner, request: EmbedRequest, kinds: frozenset[VectorKind], task: Task
) -> ModelVectors:
    """The vectors of a response in which an input that cannot be read or run fails alone, with zeros or nothing as
    vectors."""
    spec, count = runner.spec, len(request.inputs)
    read = partial(_read_each, runner.encoder, request_of(runner, request.inputs, request.text))
    parts = await task.encode_parts(request.inputs, read, each=len(request.text.prompt or ""))
    failures: dict[int, VectordError] = {}
    readable: list[Texts] = []
    for one in chain.from_iterable(parts):
        if isinstance(one, Texts):
            readable.append(one)
        else:
            assert one.index is not None, "an error about an input"
            failures[one.index] = one.at(field="inputs")
    answers: dict[AnswerKind, Float32 | list[Any]] = {kind: _no_vectors(spec, kind, count) for kind in kinds}
    patches: list[Float32 | None] = [None] * count
    lengths, ran = TextLengths([0] * count), NOTHING_RAN
    if readable:
        texts = Texts.join(readable)
        made = await vectors_of(runner, request, kinds, task, shown=True, texts=texts)
        lengths, ran = made.lengths, made.ran
        if len(texts) < count:
            known = dict(zip(texts.indexes, made.lengths, strict=True))
            lengths = TextLengths.of([known.get(index, TextLength(0, 0)) for index in range(count)])
        each: dict[AnswerKind, Any] = {
            kind: made.colbert if kind == "colbert" else ran.each(kind) for kind in ran.answers
        }
        for i, index in enumerate(texts.indexes):
            patches[index] = made.patches[i]
            if i in ran.failures:
                failures[index] = ran.failures[i].at(field="inputs", index=index)
                continue
            for kind, rows in each.items():
                answers[kind][index] = rows[i]
    whole = RunResult(answers, failures, device=ran.device)
    return ModelVectors(spec, whole, lengths, whole.each("colbert") if "colbert" in kinds else None, patches)


def reads_by_table(runner: ModelRunner, options: TextOptions) -> bool:
    """Whether these are queries whose weights are in a table, which needs no forward pass."""
    return runner.encoder.query_weights is not None and runner.spec.is_query(options)


def request_of(runner: ModelRunner, inputs: Sequence[Input], options: TextOptions) -> ReadRequest:
    if reads_by_table(runner, options):
        options = replace(options, add_special_tokens=False)  # as SparseStaticEmbedding reads them
    return ReadRequest(inputs=inputs, options=options, truncate=options.truncates(runner.auto_truncate))


def _read_each(encoder: Encoder, request: ReadRequest, part: range) -> list[Texts | InvalidRequest]:
    """The texts of `part` in order, without those that cannot be read, and the errors of these."""
    try:
        return [encoder.read(request, part)]
    except InvalidRequest as error:
        if error.index is None:  # an option, such as a prompt that the model does not have
            raise
        if len(part) == 1:
            return [error.with_traceback(None)]  # the traceback would keep the tokens of this part in memory
    return [one for index in part for one in _read_each(encoder, request, range(index, index + 1))]


async def _colbert(spec: ModelSpec, each: list[Any], texts: Texts, options: TextOptions) -> list[Any]:
    """The vectors of the tokens that count, pooled if the model pools them; None: a text that failed."""
    if texts.rows:
        each = [
            vectors if rows is None or vectors is None else vectors[rows]
            for vectors, rows in zip(each, texts.rows, strict=True)
        ]
    pooling = None if spec.colbert is None else spec.colbert.token_pooling
    if pooling is None or ("query" if options.is_query else "document") not in pooling.tasks:
        return each
    pooled = partial(
        pool_tokens, factor=pooling.factor, protected=pooling.protected_tokens, normalize=pooling.normalizes
    )
    return [one if one is None else await _on_thread(partial(pooled, one)) for one in each]


def _no_vectors(spec: ModelSpec, kind: VectorKind, count: int) -> Float32 | list[Any]:
    match kind:
        case "dense":
            return np.zeros((count, spec.dimensions), np.float32)
        case "sparse":
            return [Sparse(np.zeros(0, np.int32), np.zeros(0, np.float32))] * count
        case "colbert":
            return [np.zeros((0, 0 if spec.colbert is None else spec.colbert.dimensions), np.float32)] * count
        case "tokens":
            return [np.zeros((0, spec.hidden_size), np.float32)] * count


def _check_numbers(spec: ModelSpec, texts: Texts, kinds: frozenset[VectorKind], max_numbers: int) -> None:
    """Raises TooManyInputs before any vector exists: one vector per token is a hundred times one vector per text."""
    width = 0
    if "tokens" in kinds:
        width += spec.hidden_size
    if "colbert" in kinds and spec.colbert is not None:
        width += spec.colbert.dimensions
    tokens = len(texts.ids)
    if tokens * width > max_numbers:
        raise TooManyInputs(  # without limit and given, which some products word as numbers of inputs
            "{field} may have at most {most} tokens in all where each gets vectors of {width} numbers; got {tokens}.",
            most=max_numbers // width,
            width=width,
            tokens=tokens,
        )
