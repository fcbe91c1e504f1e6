"""The server under test, and the result of a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from vectord.tools.probe import EmbedForm, ProbedServer, ProbeReply, RerankForm, find_embed_form, find_rerank_form

Verdict: TypeAlias = Literal["passed", "failed", "not offered"]


class NotOffered(Exception):
    """The server does not have this feature."""


class Failed(Exception):
    """The server has this feature, and its response is wrong. The message describes the response."""


@dataclass(frozen=True, slots=True)
class Subject:
    server: ProbedServer
    model: str | None
    openapi: Mapping[str, Any] | None
    embeds: EmbedForm | None
    reranks: RerankForm | None
    limits: Mapping[str, int | None]  # by name of the command's option; None: unknown, not tested
    backpressure_requests: int

    @property
    def embed_form(self) -> EmbedForm:
        if self.embeds is None:
            raise NotOffered("no route returns vectors")
        return self.embeds

    @property
    def rerank_form(self) -> RerankForm:
        if self.reranks is None:
            raise NotOffered("no route returns scores")
        return self.reranks

    def send(self, method: str, path: str, body: object = None) -> ProbeReply:
        """The reply of a route. Raises NotOffered if there is no such route."""
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


def open_subject(
    server: ProbedServer, *, model: str | None, limits: Mapping[str, int | None], backpressure_requests: int
) -> Subject:
    """The server and the forms that it accepts. Raises ConfigError if no server answers."""
    server.check_reachable("--url")
    model = model or server.find_model()
    openapi = server.get("/openapi.json").json()
    return Subject(
        server=server,
        model=model,
        openapi=openapi if isinstance(openapi, dict) else None,
        embeds=find_embed_form(server, model),
        reranks=find_rerank_form(server, model),
        limits=limits,
        backpressure_requests=backpressure_requests,
    )
