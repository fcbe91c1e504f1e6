"""The requests of the console's forms in the words of every API, for its code (curl, Python, JavaScript).

What a route's keys mean is found by parsing bodies with its own `parse`, so a new product needs no change here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import orjson
from msgspec.structs import replace

from vectord.errors import VectordError
from vectord.products.common.dialect import Dialect, Incoming, Route
from vectord.schema import EmbedRequest, RerankRequest, TextOptions, TokenizeRequest
from vectord.server.http.routing import Table

OWN = "vectord"  # the product whose requests the forms send

Path: TypeAlias = list[str]  # the keys that lead to a value in a body
FormRequest: TypeAlias = EmbedRequest | RerankRequest | TokenizeRequest  # what the console has forms for

# The keys with which products set a text option.
_TRUNCATE = [{name: value} for name in ("truncate", "truncation") for value in (True, False, "END", "NONE")]
_KIND = [{"input_type": word} for word in ("query", "document", "search_query", "search_document")]


def examples(dialects: Sequence[Dialect], table: Table) -> list[dict[str, Any]]:
    """An entry for each route that can say what a form says. The products as /docs orders them."""
    ordered = sorted(dialects, key=lambda dialect: (*dialect.place, dialect.title.lower()))
    return [
        entry
        for dialect in ordered
        for route in distinct_routes(dialect)
        if not route.admin and "{" not in route.path and route.example is not None and dialect.name != OWN
        if (entry := _entry(dialect, route, table)) is not None
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


def _entry(dialect: Dialect, route: Route, table: Table) -> dict[str, Any] | None:
    """A request of the forms in the words of this route. None for operations without a form, and for routes that always
    ask for something else, such as vectors that are not normalized."""
    body, request = route.example, _parse(route, route.example)
    for key in (*route.example, *route.example):  # twice: some keys can go only after others
        shorter = {name: value for name, value in body.items() if name != key}
        parsed = _parse(route, shorter)
        if parsed is not None and (request is None or _kind_and_texts(parsed) == _kind_and_texts(request)):
            body, request = shorter, parsed
    if request is None or not _is_plain(request):
        return None
    places = {name: _find(body, value) for name, value in _texts(request).items()}
    if None in places.values():
        return None
    text = _text_options(request)
    truncate = _choices(route, body, _TRUNCATE, lambda options: options.truncate)
    kind = _choices(route, body, _KIND, lambda options: options.kind)
    endpoint = table.find(route.method, route.path).endpoint
    bodies = [orjson.dumps(body | keys) for _, keys in (*truncate, *kind)]
    is_shown = bool(endpoint.choices) and all(endpoint.choose(each).dialect is dialect for each in bodies)  # short path
    return {
        "label": f"{dialect.title}: {route.path}",
        "path": route.path if is_shown else f"/dialects/{dialect.name}{route.path}",
        "operation": type(request).__name__.removesuffix("Request").lower(),
        "outputs": sorted(request.outputs) if isinstance(request, EmbedRequest) else [],
        "raw": request.raw if isinstance(request, RerankRequest) else None,
        "specials": request.add_special_tokens if isinstance(request, TokenizeRequest) else True,
        "body": body,
        "places": places,
        "takes_model": "model" in route.known,
        "truncates": bool(text.truncate or text.truncate_by_default),
        "truncate": truncate,
        "kind": kind,
    }


def _parse(route: Route, body: Any) -> FormRequest | None:
    """None if the body is incomplete, or no request of the console's forms."""
    try:
        request = route.parse(Incoming(body=orjson.dumps(body))).request
    except VectordError:
        return None
    return request if isinstance(request, FormRequest) else None


def _kind_and_texts(request: FormRequest) -> Any:
    return type(request), _texts(request), request.outputs if isinstance(request, EmbedRequest) else None


def _is_plain(request: FormRequest) -> bool:
    """Whether it sets nothing but what `_entry` describes. A limit of a passage's tokens counts as truncation."""
    text = replace(
        _text_options(request), truncate=None, truncate_by_default=False, kind=None, own_ids=False, count_all=False
    )
    match request:
        case EmbedRequest(inputs=inputs, outputs=outputs):
            plain: FormRequest = EmbedRequest(inputs=inputs, outputs=outputs)
            return replace(request, text=text, model=None, waits=False) == plain
        case RerankRequest(query=query, passages=passages, raw=raw):
            plain = RerankRequest(query=query, passages=passages, raw=raw)
            return replace(request, text=text, model=None, max_passage_tokens=None) == plain
        case TokenizeRequest():
            return request.prompt_name is None


def _choices(
    route: Route, body: dict[str, Any], keys: Iterable[dict[str, Any]], read: Callable[[TextOptions], Any]
) -> list[tuple[Any, dict[str, Any]]]:
    """The values of a text option that the route has a key for, each with the first such key."""
    found: dict[Any, dict[str, Any]] = {}
    for added in ({}, *keys):
        if added.keys() <= route.known and (request := _parse(route, body | added)) is not None:
            found.setdefault(read(_text_options(request)), added)
    return list(found.items())


def _text_options(request: FormRequest) -> TextOptions:
    return TextOptions() if isinstance(request, TokenizeRequest) else request.text


def _texts(request: FormRequest) -> dict[str, Any]:
    match request:
        case EmbedRequest() | TokenizeRequest():
            return {"texts": list(request.inputs)}
        case RerankRequest():
            return {"query": request.query, "texts": list(request.passages)}


def _find(body: Any, value: Any, above: Sequence[str] = ()) -> Path | None:
    """The place of `value` in a body: unchanged, as the only item of a list, or as objects with a `text` each."""
    are_objects = isinstance(body, list) and all(isinstance(item, dict) for item in body)
    if value in (body, [body]) or (are_objects and [item.get("text") for item in body] == value):
        return list(above)
    if not isinstance(body, dict):
        return None
    found = (_find(item, value, (*above, key)) for key, item in body.items())
    return next((place for place in found if place is not None), None)
