"""A deterministic engine whose results make every field of a response visible, for tests/products/golden.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tests.products.results import VECTORS, model_info, model_list

from vectord import errors
from vectord.engine.operations.multivectors import converted
from vectord.errors import ModelNotFound, VectordError
from vectord.schema import (
    ANYONE,
    Caller,
    ChunkedDocument,
    ClassifyRequest,
    ClassifyResult,
    DecodeRequest,
    DecodeResult,
    DocumentChunk,
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    ImageFacts,
    Input,
    Item,
    ListModels,
    LoadModel,
    Media,
    ModelInfo,
    ModelList,
    MultiRequest,
    MultiResult,
    Operation,
    PullModel,
    PullResult,
    RemoveModel,
    RemoveResult,
    Request,
    RerankRequest,
    RerankResult,
    Result,
    SimilarityRequest,
    SimilarityResult,
    Span,
    Sparse,
    TextLength,
    TextLengths,
    Timings,
    Token,
    TokenizeRequest,
    TokenizeResult,
    UnloadModel,
    Usage,
    VectorKind,
)

T = TypeVar("T")

READ_TOKENS = 4  # of each text; each word is a token
READ_CHARACTERS = 60
# The rows of results, in turn.
DENSE: Mapping[str, npt.NDArray[Any]] = {
    "float": VECTORS,
    "int8": np.array([[-127, 0, 5], [1, 2, 3]], np.int8),
    "uint8": np.array([[0, 128, 255], [1, 2, 3]], np.uint8),
    "binary": np.array([[-41, 127], [-128, -127]], np.int8),
    "ubinary": np.array([[87, 255], [0, 1]], np.uint8),
}
SPARSE = (Sparse(np.array([7, 3], np.int32), np.array([0.1, 2], np.float32)), Sparse(*np.zeros((2, 0), np.int32)))
COLBERT = (np.array([[0.6, -0.8], [1, 0]], np.float32), np.array([[0, 1]], np.float32))
TOKENS = (np.array([[3, -4], [0, 0]], np.float32), np.array([[0, 2]], np.float32))
LABELS = ("sad", "glad", "mad")
CLASSES = np.array([[0.25, 0.5, 0.125], [0.5, 0.5, 0.25]], np.float32)  # the second has equal ones
LOGITS = np.array([[-1, 2, 0.5], [3, -2, 0]], np.float32)
PROBABILITIES = (0.25, 0.75, 0.5)
RAW_SCORES = (-1.5, 2.5, 0.5)
COSINES = (0.5, -1.0, 0.25)


@dataclass(frozen=True)
class Behaviour:
    """How the engine differs from the usual for one case.

    models: the served ones, by their name or by fields of ModelInfo. raises: a class of errors.py and its arguments.
    failures: the same by input, of a partial result. scores: of a ranking. vectors: dense, in place of DENSE's floats.
    starting, truncates: of `model_list`.
    """

    models: Sequence[ModelInfo] = (model_info("served"),)
    raises: VectordError | None = None
    failures: Mapping[int, VectordError] = field(default_factory=dict)
    scores: Sequence[float] = ()
    vectors: npt.NDArray[np.float32] | None = None
    starting: bool = False
    truncates: bool | None = None

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Behaviour:
        """From a case."""
        given = dict(written)
        if "models" in given:
            given["models"] = [_model(one) for one in given["models"]]
        if "raises" in given:
            given["raises"] = _error(given["raises"])
        if "failures" in given:
            given["failures"] = {int(index): _error(one) for index, one in given["failures"].items()}
        if "vectors" in given:
            given["vectors"] = np.array(given["vectors"], np.float32)
        return cls(**given)


def _model(written: str | Mapping[str, Any]) -> ModelInfo:
    if isinstance(written, str):
        return model_info(written)
    facts = {key: tuple(value) if isinstance(value, list) else value for key, value in written.items()}
    return model_info(**{key: frozenset(value) if key == "outputs" else value for key, value in facts.items()})


def _error(written: Mapping[str, Any]) -> VectordError:
    """{"InvalidField": {"template": "...", "field": "inputs"}}. The template is "m" by default."""
    ((name, facts),) = written.items()
    error: VectordError = getattr(errors, name)(facts.get("template", "m"), **_without(facts, "template"))
    return error


def _without(facts: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in names}


class GoldenEngine:
    """An EngineClient that keeps the requests that it received since `begin`."""

    def __init__(self) -> None:
        self.received: list[Request] = []
        self._behaviour = Behaviour()

    def begin(self, behaviour: Behaviour) -> None:
        self.received = []
        self._behaviour = behaviour

    async def answer(self, request: Request, caller: Caller) -> Result:
        self.received.append(request)
        if self._behaviour.raises is not None:
            raise self._behaviour.raises
        return self._result(request)

    async def check_busy(self, operation: Operation, caller: Caller) -> None:
        pass

    def models(self, caller: Caller = ANYONE) -> ModelList:
        chosen = self._behaviour
        return model_list(*chosen.models, truncates=chosen.truncates, starting=chosen.starting)

    def readiness(self) -> dict[str, str]:
        return {info.name: info.state for info in self._behaviour.models}

    async def drain(self) -> None:
        pass

    def _result(self, request: Request) -> Any:
        match request:
            case EmbedRequest():
                return self._embedded(request)
            case DocumentsRequest():
                return _chunked(request)
            case RerankRequest():
                return self._ranked(request)
            case ClassifyRequest():
                return _classified(request)
            case SimilarityRequest():
                scores = np.array(_turns(COSINES, len(request.sentences)), np.float32)
                return SimilarityResult(**SERVED, scores=scores, usage=_usage([request.source, *request.sentences]))
            case TokenizeRequest():
                texts = request.inputs or ["a conversation"] * len(request.conversations)
                tokens = [list(_tokens(text, request.add_special_tokens)) for text in texts]
                return TokenizeResult(model="served", tokens=tokens, usage=_usage(texts), max_input_tokens=256)
            case DecodeRequest():
                return DecodeResult(model="served", texts=[" ".join(map(str, ids)) for ids in request.ids])
            case MultiRequest():
                results = [self._result(one) for one in request.requests]
                lengths = TextLengths.join([result.usage.lengths for result in results])
                used = Usage(lengths=lengths, characters=40, timings=_timings(len(lengths)), device="cpu")
                return MultiResult(results=results, usage=used)
            case ListModels() | LoadModel() | UnloadModel():
                return self._listed(request.model)
            case PullModel():
                return PullResult(model=request.model, state="pulling", done_bytes=3, total_bytes=9)
            case RemoveModel():
                return RemoveResult(model=request.model, freed_bytes=9)
        raise AssertionError(request)

    def _listed(self, model: str | None) -> ModelList:
        models = self.models()
        found = [info for info in models.models if model in (None, *info.names)]
        if model is not None and not found:
            raise ModelNotFound("No such model.", field="model")
        return model_list(*found, truncates=models.limits.truncates, starting=models.starting)

    def _embedded(self, request: EmbedRequest) -> EmbedResult:
        inputs = request.inputs or ["a conversation"] * len(request.conversations)
        count = len(inputs)
        rows = {**DENSE, **({} if self._behaviour.vectors is None else {"float": self._behaviour.vectors})}
        dense = {name: rows[name][_turns(range(len(rows[name])), count)] for name in request.precisions}
        lengths = TextLengths.of([_length(one) for one in inputs])
        sources = self._sources(request)
        multi = converted(_turns(COLBERT, count), request.colbert, query=request.text.is_query)
        return EmbedResult(
            **SERVED,
            dense=dense if "dense" in request.outputs else {},  # type: ignore[arg-type]
            sparse=_turns(SPARSE, count) if "sparse" in request.outputs else None,
            colbert=multi.rows if "colbert" in request.outputs and request.colbert.rows else None,
            muvera=multi.encodings,
            tokens=_turns(TOKENS, count) if "tokens" in request.outputs else None,
            sources=sources,
            lengths=dict.fromkeys(sources.values(), lengths),
            limits=dict.fromkeys(sources.values(), READ_TOKENS),
            failures=self._behaviour.failures,
            usage=_usage(inputs),
        )

    def _sources(self, request: EmbedRequest) -> dict[VectorKind, str]:
        """The model of each kind of vectors."""
        named = [info for info in self._behaviour.models if info.name == request.model]
        members = named[0].sources if named else {}
        return {kind: members.get(kind, "served") for kind in sorted(request.outputs)}

    def _ranked(self, request: RerankRequest) -> RerankResult:
        usual = RAW_SCORES if request.raw else PROBABILITIES
        scores = _turns(self._behaviour.scores or usual, len(request.passages))
        return RerankResult(
            **SERVED,
            scores=np.array(scores, np.float32),
            kind="logit" if request.raw else "probability",
            usage=_usage([f"{_words_of(request.query)} {_words_of(passage)}" for passage in request.passages]),
            query=_length(request.query),
            passages=TextLengths.of([_length(passage) for passage in request.passages]),
            max_tokens=512,
            spans=[Span(0, 1) for _ in request.passages] if request.chunks else None,
        )


# --- results --------------------------------------------------------------------------------------------------

SERVED: Mapping[str, Any] = {"model": "served", "fingerprint": "f00d"}


def _turns(values: Iterable[T], count: int) -> list[T]:
    return list(islice(cycle(values), count))


def _words_of(item: Item) -> str:
    """The text; an image is a word."""
    if isinstance(item, str | Media):
        return item if isinstance(item, str) else "image"
    return " ".join(map(_words_of, item))


def _length(one: Input) -> TextLength:
    """A text has a token for each word, and an image a row for each byte of its file."""
    if isinstance(one, Media):
        facts = ImageFacts(width=100, height=len(one.data), format="png", bit_depth=24)
        return TextLength(len(one.data), len(one.data), images=(facts,), image_tokens=len(one.data))
    seen = len(one.split() if isinstance(one, str) else one)
    beyond = max(0, len(one) - READ_CHARACTERS)
    return TextLength(seen, min(seen, READ_TOKENS), characters_cut=beyond)


def _usage(inputs: Sequence[Input]) -> Usage:
    lengths = TextLengths.of([_length(one) for one in inputs])
    characters = sum(len(one) for one in inputs if not isinstance(one, Media))
    return Usage(lengths=lengths, characters=characters, timings=_timings(len(lengths)), device="cpu")


def _timings(texts: int) -> Timings:
    return Timings(tokenizing_s=0.0019 * texts, first_s=0.0029999, last_s=0.0380999, ended_s=1.2345)


def _chunked(request: DocumentsRequest) -> DocumentsResult:
    """A chunk for each word, or of rows for so many words, unless the request has the chunks."""
    size = request.chunks.max_tokens if request.chunks is not None and request.chunks.by == "rows" else 1
    words = [_words(one) for one in request.documents]
    parts = [[own[place : place + size] for place in range(0, len(own), size)] for own in words]
    spans = request.spans or [[Span(part[0][1], part[-1][2]) for part in own] for own in parts]
    documents = []
    for own in spans:
        vectors = (
            {name: DENSE[name][_turns(range(2), len(own))] for name in request.precisions} if request.vectors else {}
        )
        chunks = [DocumentChunk(span=span, tokens=2) for span in own]
        mean = np.array([0.5, 0.25], np.float32) if request.mean else None
        documents.append(ChunkedDocument(chunks=chunks, vectors=vectors, mean=mean))
    return DocumentsResult(**SERVED, documents=documents, usage=_usage(request.documents))


def _classified(request: ClassifyRequest) -> ClassifyResult:
    texts: Sequence[Any] = request.ids or request.inputs or ["a conversation"] * len(request.conversations)
    inputs = [" ".join(text) if isinstance(text, tuple) else text for text in texts]
    used = _usage(inputs)
    counts = used.lengths.kept if request.each_token else []
    rows = LOGITS if request.raw else CLASSES
    scores = rows[_turns(range(2), sum(counts) or len(inputs))]
    kind = "logit" if request.raw else "probability"
    return ClassifyResult(**SERVED, labels=LABELS, scores=scores, tokens=counts, kind=kind, usage=used)  # type: ignore[arg-type]


def _words(text: str) -> list[tuple[str, int, int]]:
    """Each word with its place."""
    found, stop = [], 0
    for word in text.split():
        start = text.index(word, stop)
        stop = start + len(word)
        found.append((word, start, stop))
    return found


def _tokens(text: str, specials: bool) -> Iterable[Token]:
    if specials:
        yield Token(101, "[CLS]", True, None, None)
    for place, (word, start, stop) in enumerate(_words(text)):
        yield Token(7 + place, word, False, len(text[:start].encode()), len(text[:stop].encode()))
