"""All checks of a server, one after another: `run_checks`. In the command's thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from vectord.tools.check import embedding, manners, reranking
from vectord.tools.check.examples import example_checks
from vectord.tools.check.subject import Check, Failed, Finding, Limits, NotOffered, Subject, Verdict
from vectord.tools.probe.forms import find_embed_form, find_rerank_form
from vectord.tools.probe.server import Server


def open_subject(server: Server, *, model: str | None, limits: Limits, backpressure_requests: int) -> Subject:
    """What the server is and offers. Raises ConfigError where nothing answers at all."""
    server.check_reachable("--url")
    model = model or server.find_model()
    return Subject(
        server=server,
        model=model,
        openapi=_openapi(server),
        embeds=find_embed_form(server, model),
        reranks=find_rerank_form(server, model),
        limits=limits,
        backpressure_requests=backpressure_requests,
    )


def _openapi(server: Server) -> dict[str, Any] | None:
    said = server.get("/openapi.json").json()
    return said if isinstance(said, dict) else None


def run_checks(subject: Subject) -> Iterator[Finding]:
    """A finding as soon as it is known."""
    checks = (*manners.CHECKS, *embedding.CHECKS, *reranking.CHECKS, *manners.limit_checks(subject))
    for check in (*checks, *example_checks(subject), *manners.LAST):
        yield _find(check, subject)


def _find(check: Check, subject: Subject) -> Finding:
    began_s = time.perf_counter()
    verdict: Verdict = "passed"
    why = ""
    try:
        check.run(subject)
    except NotOffered as told:
        verdict, why = "not offered", str(told)
    except Failed as told:
        verdict, why = "failed", str(told)
    return Finding(check.name, verdict, why, round((time.perf_counter() - began_s) * 1e3, 1))
