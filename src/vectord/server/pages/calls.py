"""What the console can write down as curl, Python and JavaScript: every example of every dialect. Called by console.py.

Which operation a route does, and where in its body the texts stand, is found by reading its own example with its own
`parse`: a dialect that is added needs no line here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import orjson

from vectord.products.common.dialect import Dialect, Incoming, Route
from vectord.schema import EmbedRequest, Request, RerankRequest, SimilarityRequest, TokenizeRequest
from vectord.server.http.routing import Table

Place: TypeAlias = list[str]  # the keys that lead to a value of a body


def calls(dialects: Sequence[Dialect], table: Table) -> list[dict[str, Any]]:
    """One entry an example, aliases of a path left out; routes without a body are there where a GET answers them."""
    return [_call(dialect, route, table) for dialect in dialects for route in _shown(dialect)]


def _shown(dialect: Dialect) -> Iterator[Route]:
    seen: set[bytes] = set()
    for route in dialect.routes:
        told = orjson.dumps([route.method, route.summary, route.example])
        if told in seen or route.admin or "{" in route.path or (route.method == "POST" and route.example is None):
            continue
        seen.add(told)
        yield route


def _call(dialect: Dialect, route: Route, table: Table) -> dict[str, Any]:
    body = b"" if route.example is None else orjson.dumps(route.example)
    return {
        "dialect": dialect.name,
        "title": dialect.title,
        "method": route.method,
        "path": _path(dialect, route, body, table),
        "summary": route.summary,
        "body": route.example,
        "takes_model": route.body is not None and "model" in route.body.__struct_fields__,
        **({} if route.example is None else _meaning(route, body)),
    }


def _path(dialect: Dialect, route: Route, body: bytes, table: Table) -> str:
    """The short one if this body gets this dialect's answer there, else the one that is the dialect's alone."""
    endpoint = table.find(route.method, route.path).endpoint
    if endpoint.choices and endpoint.choose(body).dialect is dialect:
        return route.path
    return f"/dialects/{dialect.name}{route.path}"


def _meaning(route: Route, body: bytes) -> dict[str, Any]:
    """The operation, and the places of what it is asked about; nothing where the console has no tool for it."""
    request = route.parse(Incoming(body=body)).request
    places = {name: _place(route.example, value) for name, value in _texts(request).items()}
    if not places or None in places.values():
        return {}
    outputs = sorted(request.outputs) if isinstance(request, EmbedRequest) else []
    return {"operation": type(request).__name__.removesuffix("Request").lower(), "outputs": outputs, "places": places}


def _texts(request: Request) -> dict[str, Any]:
    match request:
        case EmbedRequest() | TokenizeRequest():
            return {"texts": list(request.inputs)}
        case RerankRequest():
            return {"query": request.query, "texts": list(request.passages)}
        case SimilarityRequest():
            return {"query": request.source, "texts": list(request.sentences)}
        case _:
            return {}


def _place(body: Any, wanted: Any, above: Sequence[str] = ()) -> Place | None:
    """Where `wanted` stands in a body: as it is, alone for a list of one, or as objects with a `text` each."""
    if wanted in (body, [body]) or _objects(body) == wanted:
        return list(above)
    if not isinstance(body, dict):
        return None
    found = (_place(value, wanted, (*above, key)) for key, value in body.items())
    return next((place for place in found if place is not None), None)


def _objects(value: Any) -> list[Any] | None:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        return None
    return [item.get("text") for item in value]
