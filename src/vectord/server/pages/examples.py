"""The examples of every product, for the console's code tab (curl, Python, JavaScript). Called by console.py.

The operation of a route, and the places of the texts in its body, are found by parsing its example with its own
`parse`, so a new product needs no change here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import orjson

from vectord.products.common.batches import BatchRequest
from vectord.products.common.dialect import Dialect, Incoming, Route
from vectord.schema import EmbedRequest, Request, RerankRequest, SimilarityRequest, TokenizeRequest
from vectord.server.http.routing import Table

Path: TypeAlias = list[str]  # the keys that lead to a value in a body


def examples(dialects: Sequence[Dialect], table: Table) -> list[dict[str, Any]]:
    """One entry per example, without aliases of a path, and one per GET route. The products as /docs orders them."""
    ordered = sorted(dialects, key=lambda dialect: (*dialect.place, dialect.title.lower()))
    return [
        _entry(dialect, route, table)
        for dialect in ordered
        for route in distinct_routes(dialect)
        if not route.admin and "{" not in route.path and (route.method == "GET" or route.example is not None)
    ]


def distinct_routes(dialect: Dialect) -> Iterator[Route]:
    """The routes of a product without aliases: the first path of each operation."""
    seen: set[bytes] = set()
    for route in dialect.routes:
        placeholders = sorted(re.findall(r"\{\w+", route.path))
        identity = orjson.dumps([route.method, route.summary, route.example, placeholders])
        if identity not in seen:
            seen.add(identity)
            yield route


def _entry(dialect: Dialect, route: Route, table: Table) -> dict[str, Any]:
    body = b"" if route.example is None else orjson.dumps(route.example)
    endpoint = table.find(route.method, route.path).endpoint
    is_shown = bool(endpoint.choices) and endpoint.choose(body).dialect is dialect  # on the short path
    return {
        "dialect": dialect.name,
        "title": dialect.title,
        "method": route.method,
        "path": route.path if is_shown else f"/dialects/{dialect.name}{route.path}",
        "summary": route.summary,
        "body": route.example,
        "takes_model": route.body is not None and "model" in route.body.__struct_fields__,
        **({} if route.example is None else _operation(route, body)),
    }


def _operation(route: Route, body: bytes) -> dict[str, Any]:
    """The operation, and the places of its texts; empty for operations that the console has no form for."""
    request = route.parse(Incoming(body=body)).request
    places = {name: _find(route.example, value) for name, value in _texts(request).items()}
    if not places or None in places.values():
        return {}
    outputs = sorted(request.outputs) if isinstance(request, EmbedRequest) else []
    return {"operation": type(request).__name__.removesuffix("Request").lower(), "outputs": outputs, "places": places}


def _texts(request: Request | BatchRequest) -> dict[str, Any]:
    match request:
        case EmbedRequest() | TokenizeRequest():
            return {"texts": list(request.inputs)}
        case RerankRequest():
            return {"query": request.query, "texts": list(request.passages)}
        case SimilarityRequest():
            return {"query": request.source, "texts": list(request.sentences)}
        case _:
            return {}


def _find(body: Any, value: Any, above: Sequence[str] = ()) -> Path | None:
    """The place of `value` in a body: unchanged, as the only item of a list, or as objects with a `text` each."""
    are_objects = isinstance(body, list) and all(isinstance(item, dict) for item in body)
    if value in (body, [body]) or (are_objects and [item.get("text") for item in body] == value):
        return list(above)
    if not isinstance(body, dict):
        return None
    found = (_find(item, value, (*above, key)) for key, item in body.items())
    return next((place for place in found if place is not None), None)
