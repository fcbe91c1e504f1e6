"""Requests to a running server of any product, by the client's transport. Any thread.

`ProbedServer` sends a request and returns a ProbeReply, also for a failure. A `Form` is one API's path, body and
response format; the first form that a server answers with vectors or scores becomes its `ProbedRoute`.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from ssl import SSLContext, SSLError, create_default_context
from typing import Any, Self, TypeAlias
from urllib.parse import quote, urlsplit

import httpx
import numpy as np

from vectord.client.errors import ClientError, untrusted_certificate
from vectord.client.requests import HttpRequest, request_headers
from vectord.client.transport import ClientSettings, Sender, run_blocking
from vectord.errors import ConfigError, plain_reason

MAX_RESPONSE_BYTES = 256 * 2**20
FloatArray: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"  # (texts, D)

SAME_COSINE = 0.99  # least cosine of equal texts: half precision and padding stay above it

HELLO = ("Hello, world", "A second text")
QUERY = "What is machine learning?"
MAX_TEXTS_AT_ONCE = 16
PASSAGES = (
    "The weather is nice today.",
    "Machine learning is a subset of artificial intelligence that learns from data.",
    "My neighbour's cat sleeps on the roof.",
)


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """A response. Status 0 means that there is none; `problem` has the reason.

    is_untrusted: a server answers, with a certificate that is not trusted.
    """

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    problem: str | None = None
    is_untrusted: bool = False

    def json(self) -> Any:
        """The decoded body, or None if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def summary(self) -> str:
        """The status, and the start of an error's body."""
        if self.status == 0:
            return self.problem or "no response"
        text = " ".join(self.body[:160].decode(errors="replace").split())
        return f"{self.status} {text}" if self.status != 200 else "200"


def check_url(url: str, option: str) -> str:
    """`url` without its last slash. Raises ConfigError for anything but a plain URL of a server."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(f"{option}: expected http://HOST:PORT or https://HOST:PORT")
    return url.rstrip("/")


def trusted_authorities(file: str | None = None) -> SSLContext:
    """Trusts the authorities of a PEM file; without one, those of SSL_CERT_FILE and SSL_CERT_DIR, or the usual ones.

    Raises ConfigError if the file has none.
    """
    try:
        return httpx.create_ssl_context() if file is None else create_default_context(cafile=file)
    except (OSError, ValueError) as cause:  # SSLError is an OSError
        given = Path(file or os.environ.get("SSL_CERT_FILE", ""))
        reason = "no certificate" if isinstance(cause, SSLError) else plain_reason(cause)
        raise ConfigError(f"{'SSL_CERT_FILE' if file is None else '--cacert'}: {str(given)!r}: {reason}") from None


@dataclass(frozen=True, slots=True)
class CacheState:
    """The cache of vectors of a vectord server, from its metrics."""

    limit_bytes: int  # 0: no cache
    hits: int  # texts so far, from the shared cache too

    def summary(self) -> str:
        return f"{self.limit_bytes / 2**20:.1f} MiB" if self.limit_bytes else "off"


class ProbedServer:
    """A server by its URL (see check_url). A context manager."""

    def __init__(
        self, url: str, token: str | None = None, timeout_s: float = 60.0, tls: SSLContext | None = None
    ) -> None:
        """tls: None trusts the usual authorities. Raises ConfigError if SSL_CERT_FILE is invalid."""
        self.url = url
        self.token = token
        # No proxies from the environment: the caller names the server itself.
        self._http = httpx.AsyncClient(
            limits=httpx.Limits(), trust_env=False, verify=trusted_authorities() if tls is None else tls
        )
        settings = ClientSettings(base_url=url, api_key=token, timeout_s=timeout_s, max_answer_bytes=MAX_RESPONSE_BYTES)
        self._sender = Sender(self._http, settings)
        self._sender_without_token = Sender(self._http, replace(settings, api_key=None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        run_blocking(self._http.aclose())

    def check_reachable(self, option: str) -> None:
        """Raises ConfigError if no server answers. option: the command's option with the URL."""
        reply = self.get("/health")
        if reply.is_untrusted:
            raise ConfigError(
                f"{option}: {self.url}: {reply.problem}; name the PEM file of its authority with --cacert or in "
                "SSL_CERT_FILE"
            )
        if reply.status == 0:
            raise ConfigError(
                f"{option}: no server answers at {self.url} ({reply.problem}); start one with `vectord serve`, or set "
                "another address"
            )

    def find_model(self, named: str | None) -> str | None:
        """The model `named`, or the first that the server lists.

        Raises ConfigError if the server knows no such model: an API without a field for it would measure another one.
        """
        if named is not None:
            answer = self.get(f"/v1/models/{quote(named)}").json()
            error = answer.get("error") if isinstance(answer, dict) else None
            is_unknown = isinstance(error, dict) and error.get("code") == "model_not_found"
            if is_unknown and named.encode() not in self.get("/v1/models").body:  # it has adapters, too
                raise ConfigError(f"{self.url} serves no model {named}; name one that it lists at /v1/models")
            return named
        for path in ("/v1/models", "/models"):
            answer = self.get(path).json()
            rows = answer.get("data") if isinstance(answer, dict) else None
            if isinstance(rows, list) and rows and isinstance(rows[0], dict) and isinstance(rows[0].get("id"), str):
                return str(rows[0]["id"])
        answer = self.get("/info").json()
        name = answer.get("model_id") if isinstance(answer, dict) else None
        return name if isinstance(name, str) else None

    def read_cache(self) -> CacheState | None:
        """None for a server that does not report its cache."""
        sums: dict[str, float] = {}
        for line in self.get("/metrics").body.decode(errors="replace").splitlines():
            if line.startswith(("vectord_cache_", "vectord_shared_cache_")):
                series, _, value = line.rpartition(" ")
                name = series.partition("{")[0]
                try:
                    sums[name] = sums.get(name, 0.0) + float(value)
                except ValueError:
                    continue
        limit = sums.get("vectord_cache_limit_bytes", math.inf)
        hits = sums.get("vectord_cache_hits_total", 0.0) + sums.get("vectord_shared_cache_hits_total", 0.0)
        return CacheState(int(limit), int(hits)) if math.isfinite(limit) and math.isfinite(hits) else None

    def get(self, path: str) -> ProbeReply:
        return self.send("GET", path, None)

    def post(self, path: str, body: object) -> ProbeReply:
        return self.send("POST", path, json.dumps(body).encode())

    def send(self, method: str, path: str, body: bytes | None, *, with_token: bool = True) -> ProbeReply:
        return run_blocking(self.exchange(method, path, body, with_token=with_token))

    async def exchange(self, method: str, path: str, body: bytes | None, *, with_token: bool = True) -> ProbeReply:
        """As `send`, for concurrent requests within `run_blocking`."""
        headers = request_headers() | ({} if body is None else {"content-type": "application/json"})
        request = HttpRequest(method=method, path=path, headers=headers, content=body, statuses=None)
        try:
            reply = await (self._sender if with_token else self._sender_without_token).send(request)
        except ClientError as problem:
            reason = plain_reason(problem.__cause__) if problem.__cause__ else str(problem)
            return ProbeReply(0, problem=reason, is_untrusted=untrusted_certificate(problem) is not None)
        return ProbeReply(reply.status, reply.body, reply.headers)


def row_cosines(ours: FloatArray, theirs: FloatArray) -> FloatArray:
    """The cosine of each text's two vectors: (texts,)."""
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines: FloatArray = np.einsum("td,td->t", ours, theirs) / np.maximum(lengths, 1e-12)
    return cosines


# --- forms ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """The requests and responses of one API that embeds or reranks."""

    name: str
    path: str
    texts_field: str  # of the texts or passages
    read: Callable[[Any], Any]  # decoded response to rows, or to scores by index; raises for a wrong shape
    names_model: bool = True
    options: Mapping[str, object] = field(default_factory=dict)

    def body(self, texts: object, model: str | None, query: str | None = None) -> dict[str, Any]:
        """query: of a rerank request."""
        body = {"model": model if self.names_model else None, "query": query, self.texts_field: texts, **self.options}
        return {name: value for name, value in body.items() if value is not None}


def openai_rows(answer: Any) -> list[Any]:
    return [row["embedding"] for row in sorted(answer["data"], key=lambda row: row["index"])]


def ollama_rows(answer: Any) -> list[Any]:
    return list(answer["embeddings"])


def smart_rows(answer: Any) -> list[Any]:
    return [row["embeddings"]["dense"] for row in sorted(answer["data"], key=lambda row: row["id"])]


def _scores(answer: Any) -> dict[int, float]:
    """The scores by passage, in the response's order."""
    rows = answer if isinstance(answer, list) else answer["results"]
    return {int(row["index"]): float(row.get("relevance_score", row.get("score"))) for row in rows}


_DENSE = {"return_dense": True, "return_sparse": False, "return_colbert": False}
_SMART = Form("Smart Embedder", "/embeddings/", "sentences", smart_rows, names_model=False, options=_DENSE)
_VECTORD = Form("vectord", "/vectord/embed", "inputs", lambda answer: [row["dense"] for row in answer["data"]])
_COHERE = {"input_type": "search_document", "embedding_types": ["float"]}
# vectord's own API comes last, since clients use the others.
EMBED_FORMS = (
    Form("OpenAI", "/v1/embeddings", "input", openai_rows),
    Form("text-embeddings-inference", "/embed", "inputs", list, names_model=False),
    Form("embedding-server", "/api/v1/embed", "inputs", openai_rows, names_model=False),
    _SMART,
    Form("infinity", "/embeddings", "input", openai_rows),
    Form("Embedding Inference API", "/embed", "input", ollama_rows),
    Form("Ollama", "/api/embed", "input", ollama_rows),
    Form("Cohere", "/v2/embed", "texts", lambda answer: list(answer["embeddings"]["float"]), options=_COHERE),
    _VECTORD,
)
# Dense, sparse and ColBERT vectors in one response.
FULL_FORMS = (
    replace(_VECTORD, options={"outputs": ["dense", "sparse", "colbert"]}),
    replace(_SMART, options=dict.fromkeys(_DENSE, True)),
)
RERANK_FORMS = (
    Form("text-embeddings-inference", "/rerank", "texts", _scores, names_model=False),
    Form("Smart Embedder", "/rerank", "passages", _scores, names_model=False),
    Form("Cohere, Jina, vLLM, Embedding Inference API", "/rerank", "documents", _scores),
    Form("Cohere, Jina, vLLM", "/v1/rerank", "documents", _scores),
    Form("Cohere", "/v2/rerank", "documents", _scores),
    Form("vectord", "/vectord/rerank", "passages", _scores),
)
WRONG_SHAPE = (KeyError, IndexError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True)
class ProbedRoute:
    """A form of a server, for one of its models."""

    server: ProbedServer
    form: Form
    model: str | None
    texts_at_once: int = MAX_TEXTS_AT_ONCE  # of `embed`, in one request

    def body(self, texts: object, query: str | None = None) -> dict[str, Any]:
        return self.form.body(texts, self.model, query)

    def post(self, body: object) -> ProbeReply:
        return self.server.post(self.form.path, body)

    def embed(self, texts: Sequence[str]) -> tuple[ProbeReply, FloatArray | None]:
        """The last reply, and the vectors if there is a finite vector for each text, all of one width."""
        parts: list[FloatArray] = []
        for start in range(0, len(texts), self.texts_at_once):
            some = texts[start : start + self.texts_at_once]
            reply = self.post(self.body(some))
            vectors = self.read_vectors(reply, len(some))
            if vectors is None or vectors.shape[1] != (parts or [vectors])[0].shape[1]:
                return reply, None
            parts.append(vectors)
        return reply, np.concatenate(parts)

    def read_vectors(self, reply: ProbeReply, texts: int) -> FloatArray | None:
        if reply.status != 200:
            return None
        try:
            rows = self.form.read(reply.json())
            decoded = [np.frombuffer(base64.b64decode(row), "<f4") if isinstance(row, str) else row for row in rows]
            vectors = np.array(decoded, np.float64)
        except WRONG_SHAPE:
            return None
        is_good = vectors.ndim == 2 and len(vectors) == texts and vectors.shape[1] > 0 and np.isfinite(vectors).all()
        return vectors if is_good else None

    def rerank(self, query: str, passages: Sequence[str]) -> tuple[ProbeReply, dict[int, float] | None]:
        """The reply, and its scores by index, in the reply's order, if it has a finite score for each passage."""
        reply = self.post(self.body(passages, query))
        if reply.status != 200:
            return reply, None
        try:
            scores: dict[int, float] = self.form.read(reply.json())
        except WRONG_SHAPE:
            return reply, None
        is_good = set(scores) == set(range(len(passages))) and all(np.isfinite(score) for score in scores.values())
        return reply, scores if is_good else None


def find_embed_route(
    server: ProbedServer, model: str | None, like: ProbedRoute | None = None, forms: Sequence[Form] = EMBED_FORMS
) -> ProbedRoute | None:
    """The first form that the server answers with vectors; the form of `like` is tried before the others."""
    forms = sorted(forms, key=lambda form: like is None or form is not like.form)
    routes = (ProbedRoute(server, form, model) for form in forms)
    found = next((route for route in routes if route.embed(HELLO)[1] is not None), None)
    if found is None or found.embed(HELLO * (MAX_TEXTS_AT_ONCE // len(HELLO)))[1] is not None:
        return found
    return replace(found, texts_at_once=len(HELLO))  # some servers accept two texts only


def find_rerank_route(server: ProbedServer, model: str | None, like: ProbedRoute | None = None) -> ProbedRoute | None:
    """The first form that the server answers with scores; the form of `like` is tried before the others."""
    forms = sorted(RERANK_FORMS, key=lambda form: like is None or form is not like.form)
    routes = (ProbedRoute(server, form, model) for form in forms)
    return next((route for route in routes if route.rerank(QUERY, PASSAGES)[1] is not None), None)
