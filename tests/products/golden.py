"""Requests to products and their responses, in one file per product: tests/products/cases/PRODUCT.json.

    python -m tests.products.golden [PRODUCT ...]

writes the outcomes anew, for test_golden.py to compare with. The diff is what a reviewer reads: each changed line is a
changed promise.

A file is a list of cases. A case has

    name        the promise
    send        method and path, or a list of them with one outcome: "POST /v1/rerank"
    body        JSON; or `raw`, a string that is sent as it is
    headers     of the request
    settings    of the server, where they differ from the defaults: fields of ServerConfig
    engine      what the fake engine does (see `Behaviour`)
    variants    further requests. Each changes keys of the case. Its `body` is merged into that of the case, and its
                `whole_body` replaces it; `case` says what is special

and an outcome, which the command writes:

    request     what the engine received, with the fields that differ from their defaults; not with an error
    status      of the response, if not 200
    answered    headers of the response that only some have
    response    JSON, text, or the bytes of another content type in hexadecimal digits

The outcome of a variant with another status is complete. With the same status it has only the keys that differ from the
case; headers or a response with the same keys have only those with other values. null stands for a key that it lacks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from tests.products.golden_engine import Behaviour, GoldenEngine
from tests.products.results import fits
from tests.server.asgi import call
from tests.server.live import Reply

from vectord import __version__
from vectord.config import ServerConfig
from vectord.errors import UNFORESEEN
from vectord.products.common.dialect import Route, load_dialects
from vectord.products.common.errors import render_any
from vectord.server.http.app import create_app
from vectord.server.http.routing import Table

CASES = Path(__file__).parent / "cases"
OUTCOME = ("request", "status", "answered", "response")
WIDTH = 120

# Headers of every response, which tests/server has.
COMMON = re.compile(r"content-length|x-request-id|server-timing|x-vectord-.*|vary")
RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=-)[0-9a-f]{32}")
PRESENT = re.compile(r'(?<="created":)\d{10}')  # JSON in a header

Case = dict[str, Any]


# --- one product ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """One product over the fake engine. Built once for all cases of a product that have the same settings."""

    app: Any
    engine: GoldenEngine
    table: Table


@cache
def served(product: str, settings: str) -> Served:
    """settings: fields of ServerConfig in JSON."""
    dialects = load_dialects([product])
    engine = GoldenEngine()
    app = create_app(engine, dialects, ServerConfig(**json.loads(settings)))
    return Served(app, engine, Table(dialects, [], render_any))


async def asked(product: str, case: Case) -> Case:
    """The outcome of one request, which is the same on each of its paths."""
    server = served(product, json.dumps(case.get("settings", {})))
    outcomes = []
    for line, route in routes_of(product, case):
        method, path, query = _parts(line)
        server.engine.begin(Behaviour.read(case.get("engine", {})))
        reply = await call(server.app, method, path, _content(case), headers=case.get("headers"), query_string=query)
        assert UNFORESEEN.encode() not in reply.body, line
        assert reply.status != 200 or not _is_json(reply) or route is None or fits(reply.body, route.answers), line
        outcomes.append(_outcome(server.engine, reply))
    assert all(outcome == outcomes[0] for outcome in outcomes), f"{case['send']} differ"
    return outcomes[0]


def routes_of(product: str, case: Case) -> list[tuple[str, Route | None]]:
    """Each "METHOD path" of a request, and its route; None for a page of the server."""
    table = served(product, "{}").table
    sent = [case["send"]] if isinstance(case["send"], str) else case["send"]
    endpoints = [(line, table.find(*_parts(line)[:2]).endpoint) for line in sent]
    return [(line, found.choose(_content(case)).route if found.choices else None) for line, found in endpoints]


def _parts(line: str) -> tuple[str, str, bytes]:
    """Method, path and query."""
    method, _, target = line.partition(" ")
    path, _, query = target.partition("?")
    return method, path, query.encode("ascii")


def _content(case: Case) -> bytes:
    if "raw" in case:
        return str(case["raw"]).encode()
    return json.dumps(case["body"]).encode() if "body" in case else b""


def _outcome(engine: GoldenEngine, reply: Reply) -> Case:
    requests = [_request(request) for request in engine.received]
    shown: Case = {}
    if requests and reply.status < 400:
        shown["request"] = requests[0] if len(requests) == 1 else requests
    if reply.status != 200:
        shown["status"] = reply.status
    kept = {name: _stable(value) for name, value in reply.headers.items() if not COMMON.fullmatch(name)}
    if kept.get("content-type") == "application/json":
        del kept["content-type"]
    if kept:
        shown["answered"] = kept
    if reply.body:
        shown["response"] = _stable(_shown(reply))
    return shown


def _is_json(reply: Reply) -> bool:
    return reply.headers.get("content-type") == "application/json"


def _shown(reply: Reply) -> Any:
    if _is_json(reply):
        return reply.json
    return reply.body.decode() if reply.headers["content-type"].startswith("text/") else reply.body.hex()


def _stable(value: Any) -> Any:
    """Without what differs each time: random ids, the present time and the version."""
    if isinstance(value, str):
        return PRESENT.sub("<now>", RANDOM.sub("<random>", value)).replace(__version__, "<version>")
    if isinstance(value, Mapping):
        return {key: "<now>" if _is_now(key, inner) else _stable(inner) for key, inner in value.items()}
    return [_stable(inner) for inner in value] if isinstance(value, list) else value


def _is_now(key: str, value: Any) -> bool:
    return key in ("created", "unix") and abs(time.time() - value) < 3600


def _request(request: Any) -> Case:
    """A request's class with its fields that differ from their defaults."""
    return {type(request).__name__: _changed(request)}


def _changed(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        pairs = ((field, getattr(value, field.name)) for field in msgspec.structs.fields(value))
        return {
            field.name: _changed(inner)
            for field, inner in pairs
            if inner != (field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default)
        }
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_request(inner) if type(inner).__name__.endswith("Request") else _changed(inner) for inner in value]
    return value


# --- cases ----------------------------------------------------------------------------------------------------


async def completed(product: str, case: Case) -> Case:
    """The case with its outcomes as they are now."""
    first, *others = requests_of(case)
    outcome = await asked(product, first)
    whole = {**first, **outcome}
    for variant, request in zip(case.get("variants", ()), others, strict=True):
        differing = _difference(await asked(product, request), outcome)
        whole.setdefault("variants", []).append({**_without(variant, *OUTCOME), **differing})
    return whole


def requests_of(case: Case) -> list[Case]:
    """The request of the case and those of its variants, without outcomes."""
    first = _without(case, *OUTCOME, "variants")
    return [first, *(_merged(first, _without(variant, *OUTCOME)) for variant in case.get("variants", ()))]


def _without(case: Case, *keys: str) -> Case:
    return {key: value for key, value in case.items() if key not in keys}


def _difference(own: Case, outcome: Case) -> Case:
    if own.get("status") != outcome.get("status"):
        whole = {"status": 200, **own}
        return {key: whole[key] for key in OUTCOME if key in whole}
    differing = {key: own.get(key) for key in OUTCOME if not _same(own.get(key), outcome.get(key))}
    for key in ("answered", "response"):
        one, other = differing.get(key), outcome.get(key)
        if isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other):
            differing[key] = {name: value for name, value in one.items() if not _same(value, other[name])}
    return differing


def _merged(case: Case, changes: Case) -> Case:
    merged = {**case, **changes}
    if "whole_body" in changes:
        merged["body"] = merged.pop("whole_body")
    elif isinstance(case.get("body"), dict) and isinstance(changes.get("body"), dict):
        merged["body"] = {**case["body"], **changes["body"]}
    return merged


def _same(one: Any, other: Any) -> bool:
    """Also of the order of keys, and 1 is not 1.0."""
    return json.dumps(one) == json.dumps(other)


def read_cases(product: str) -> list[Case]:
    cases: list[Case] = json.loads((CASES / f"{product}.json").read_text("utf-8"))
    return cases


def products() -> list[str]:
    return sorted(path.stem for path in CASES.glob("*.json"))


def written(value: Any, indent: int = 0, before: int = 0) -> str:
    """JSON with one line for each value that fits. before: characters on its line, left and right of it."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + before + len(line) <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    pad = " " * (indent + 1)
    if isinstance(value, list):
        return "[\n" + ",\n".join(pad + written(inner, indent + 1, 1) for inner in value) + f"\n{' ' * indent}]"
    pairs = ((json.dumps(key, ensure_ascii=False) + ": ", inner) for key, inner in value.items())
    lines = (pad + key + written(inner, indent + 1, len(key) + 1) for key, inner in pairs)
    return "{\n" + ",\n".join(lines) + f"\n{' ' * indent}}}"


async def rewrite(product: str) -> None:
    cases = [await completed(product, case) for case in read_cases(product)]
    (CASES / f"{product}.json").write_text(written(cases) + "\n", "utf-8")


if __name__ == "__main__":
    logging.disable()  # of the failures in the cases
    for name in sys.argv[1:] or products():
        asyncio.run(rewrite(name))
