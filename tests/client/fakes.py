"""vectord without sockets or models: its own API, content negotiation and headers with a small fake engine.

The vectors, weights and scores of a text depend only on its letters, so a test knows the right ones.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import httpx
import numpy as np
from tests.products.results import model_list

from vectord.errors import InputTooLong, ModelCannot, VectordError
from vectord.products.common.dialect import Call, Incoming
from vectord.products.vectord import DIALECT
from vectord.schema import (
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
    Float32,
    ListModels,
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
    Token,
    TokenizeRequest,
    TokenizeResult,
    Usage,
)
from vectord.server.http.negotiation import negotiated
from vectord.server.results import result_headers

MODEL = "fake-model"
FINGERPRINT = "0123456789abcdef"
WIDTH = 4
MAX_CHARACTERS = 1000  # a longer text is refused, or cut if that may be

Fault = Exception | httpx.Response


class FakeServer:
    """A handler for httpx.MockTransport. Safe to call from several threads.

    faults: the outcomes of the first requests, instead of a response. spaces: the fingerprints of the responses; the
    last one repeats.
    """

    def __init__(self, faults: Sequence[Fault] = (), spaces: Sequence[str] = (FINGERPRINT,)) -> None:
        self.requests: list[httpx.Request] = []
        self._faults = list(faults)
        self._spaces = list(spaces)
        self._lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            self.requests.append(request)
            fault = self._faults.pop(0) if self._faults else None
            space = self._spaces.pop(0) if len(self._spaces) > 1 else self._spaces[0]
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:  # a response can be read by one client only
            return httpx.Response(fault.status_code, headers=fault.headers, content=fault.content)
        return self._answer(request, space)

    def _answer(self, request: httpx.Request, space: str) -> httpx.Response:
        try:
            call = negotiated(call_of(request), request.headers)
            result = answer(call.request, space)
        except VectordError as error:
            rendered = DIALECT.render_error(error)
            return httpx.Response(rendered.status, headers=dict(rendered.headers), content=rendered.body)
        rendered = call.render(result)
        headers = {**rendered.headers, **result_headers(result), "content-type": rendered.content_type}
        return httpx.Response(200, headers=headers, content=rendered.body)

    @property
    def inputs(self) -> list[int]:
        """The number of texts of each request."""
        return [len(call_of(request).request.inputs) for request in self.requests]


def call_of(request: httpx.Request) -> Call:
    """The call that the server parses from a request."""
    path = request.url.path
    route = next(route for route in DIALECT.routes if (route.method, route.path) == (request.method, path))
    body = request.content
    return route.parse(Incoming(body=gzip.decompress(body) if "content-encoding" in request.headers else body))


def answer(request: Request, space: str = FINGERPRINT) -> Result:
    return ANSWERS[type(request)](request, space)


# --- texts ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=10_000)
def vector_of(text: str, rows: int | None = None) -> Float32:
    """(WIDTH,), or (rows, WIDTH); length 1."""
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    vectors = rng.standard_normal((rows or 1, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors if rows else vectors[0]


def vectors_of(texts: Sequence[str]) -> Float32:
    """(N, WIDTH)"""
    return np.stack([vector_of(text) for text in texts])


def sparse_of(text: str) -> Mapping[int, float]:
    """A weight for each letter, by its code."""
    return {ord(letter): float(np.float32(text.count(letter) / 3)) for letter in text}


HIGHEST_SCORE = np.float32(3 / 7)  # of a passage: higher logits have this score


def score_of(text: str) -> float:
    """A passage's logit, and a class's score: one of 7 values, so that some texts have equal ones."""
    return float(np.float32(zlib.crc32(text.encode()) % 7 / 7))


def usage(texts: Sequence[str], *, truncate: bool | None, field: str) -> Usage:
    for index, text in enumerate(texts):
        if len(text) > MAX_CHARACTERS and not truncate:
            raise InputTooLong(
                f"`{field}[{index}]` must have at most {MAX_CHARACTERS} tokens; got {len(text)}",
                field=field,
                index=index,
                limit=MAX_CHARACTERS,
                given=len(text),
            )
    lengths = [TextLength(len(text), min(len(text), MAX_CHARACTERS)) for text in texts]
    return Usage(lengths=TextLengths.of(lengths), characters=sum(map(len, texts)))


# --- answers --------------------------------------------------------------------------------------------------


def _embed(request: EmbedRequest, space: str) -> EmbedResult:
    texts = list(map(str, request.inputs))
    used = usage(texts, truncate=request.text.truncate, field="inputs")
    dense = vectors_of(texts)
    precisions = {
        "float": dense,
        "int8": np.rint(dense * 127).astype(np.int8),
        "ubinary": np.packbits(dense > 0, axis=1),
    }
    weights = [sparse_of(text) for text in texts]
    sparse = [Sparse(np.array(list(one), np.int32), np.array(list(one.values()), np.float32)) for one in weights]
    each = [vector_of(text, rows=len(text) + 1) for text in texts]
    wanted = request.outputs
    return EmbedResult(
        model=MODEL,
        fingerprint=space,
        usage=used,
        lengths={MODEL: used.lengths},
        dense={name: precisions[name] for name in request.precisions} if "dense" in wanted else {},
        sparse=sparse if "sparse" in wanted else None,
        colbert=each if "colbert" in wanted else None,
        tokens=each if "tokens" in wanted else None,
    )


def _documents(request: DocumentsRequest, space: str) -> DocumentsResult:
    """One chunk for each letter except spaces."""
    used = usage(request.documents, truncate=request.text.truncate, field="documents")
    documents = []
    for text in request.documents:
        chunks = [
            DocumentChunk(span=Span(start, start + 1), tokens=1) for start, letter in enumerate(text) if letter != " "
        ]
        vectors = np.stack([vector_of(text[chunk.span.start]) for chunk in chunks])
        mean = vector_of(text) if request.mean else None
        documents.append(ChunkedDocument(chunks=chunks, vectors={"float": vectors}, mean=mean))
    return DocumentsResult(model=MODEL, fingerprint=space, documents=documents, usage=used)


def _rerank(request: RerankRequest, space: str) -> RerankResult:
    passages = list(map(str, request.passages))
    used = usage(passages, truncate=request.text.truncate, field="passages")
    logits = np.array([score_of(passage) for passage in passages], np.float32)
    return RerankResult(
        model=MODEL,
        fingerprint=space,
        scores=np.minimum(logits, HIGHEST_SCORE),
        logits=logits,
        kind="logit",
        usage=used,
        query=TextLength(3, 2 if request.text.truncate else 3),
        passages=used.lengths,
        max_tokens=MAX_CHARACTERS,
        spans=[Span(0, len(passage)) for passage in passages] if request.chunks else None,
    )


def _classify(request: ClassifyRequest, space: str) -> ClassifyResult:
    texts = ["".join(item) for item in request.inputs]
    first = np.array([score_of(text) for text in texts], np.float32)
    return ClassifyResult(
        model=MODEL,
        fingerprint=space,
        labels=("glad", "sad"),
        scores=np.stack([first, 1 - first], axis=1),
        kind="probability",
        usage=usage(texts, truncate=True, field="inputs"),
    )


def _similarity(request: SimilarityRequest, space: str) -> SimilarityResult:
    scores = vectors_of(request.sentences) @ vector_of(request.source)
    used = usage(request.sentences, truncate=True, field="sentences")
    return SimilarityResult(model=MODEL, fingerprint=space, scores=scores, usage=used)


def _tokenize(request: TokenizeRequest, space: str) -> TokenizeResult:
    """One token for each letter."""
    tokens = [[Token(ord(letter), letter, False, 0, 1) for letter in text] for text in request.inputs]
    return TokenizeResult(model=MODEL, tokens=tokens, usage=usage(request.inputs, truncate=True, field="inputs"))


def _decode(request: DecodeRequest, space: str) -> DecodeResult:
    return DecodeResult(model=MODEL, texts=["".join(map(chr, ids)) for ids in request.ids])


def _models(request: ListModels, space: str) -> Result:
    if request.model is not None:
        raise ModelCannot("this fake lists all or nothing")
    return model_list(MODEL, "other")


ANSWERS: Mapping[type[Request], Callable[..., Result]] = {
    EmbedRequest: _embed,
    DocumentsRequest: _documents,
    RerankRequest: _rerank,
    ClassifyRequest: _classify,
    SimilarityRequest: _similarity,
    TokenizeRequest: _tokenize,
    DecodeRequest: _decode,
    ListModels: _models,
}
