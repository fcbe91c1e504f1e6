"""What is checked, and what a check can say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from vectord.tools.probe.forms import EmbedForm, RerankForm
from vectord.tools.probe.server import Reply, Server

Verdict: TypeAlias = Literal["passed", "failed", "not offered"]


class NotOffered(Exception):
    """The server does not claim to do this."""


class Failed(Exception):
    """It does, and what came is wrong. The text says what came."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator says the server allows; None: nothing is said, and nothing is checked."""

    max_sentences: int | None = None
    max_sentence_chars: int | None = None
    max_total_chars: int | None = None
    max_rerank_passages: int | None = None
    max_rerank_text_chars: int | None = None
    max_rerank_total_chars: int | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    server: Server
    model: str | None
    openapi: Mapping[str, Any] | None
    embeds: EmbedForm | None
    reranks: RerankForm | None
    limits: Limits
    backpressure_requests: int

    @property
    def embed_form(self) -> EmbedForm:
        if self.embeds is None:
            raise NotOffered("no route gives vectors")
        return self.embeds

    @property
    def rerank_form(self) -> RerankForm:
        if self.reranks is None:
            raise NotOffered("no route gives scores")
        return self.reranks

    def offered(self, method: str, path: str, body: object = None) -> Reply:
        """The answer there. Raises NotOffered if nothing is served there under that method."""
        reply = self.server.get(path) if method == "GET" else self.server.post(path, body)
        if reply.status in (404, 405, 501):
            raise NotOffered(f"{method} {path} is {reply.status}")
        return reply


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    run: Callable[[Subject], None]  # raises NotOffered or Failed


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    verdict: Verdict
    why: str
    elapsed_ms: float


def demand(holds: object, why: str) -> None:
    """Raises Failed."""
    if not holds:
        raise Failed(why)
