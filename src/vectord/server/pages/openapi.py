"""Describes every route in OpenAPI 3.1, from the routing table and the wire types of the products.

Built in a thread at the first request, because it takes 0.15 s, and kept. A path that several products share has the
bodies, responses and errors of each. Errors have the form of their product, and the same words everywhere.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from threading import Lock
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace

from vectord import errors
from vectord.errors import VectordError
from vectord.products.common.dialect import EXAMPLE_MODEL, Incoming, Rendered, Route
from vectord.products.common.inputs import FINGERPRINT_PATTERN
from vectord.products.common.vectors import OCTETS
from vectord.server.admission.gate import EXPECT_FINGERPRINT, LANE, REQUEST_ID
from vectord.server.http.negotiation import negotiated
from vectord.server.http.routing import Choice, Endpoint, Page, Table
from vectord.server.pages.examples import distinct_routes
from vectord.server.results import MEANINGS

Json = dict[str, Any]

_PARAMETERS: Mapping[str, Json] = {
    REQUEST_ID: {"type": "string"},
    LANE: {"type": "string", "enum": ["interactive", "bulk"]},
    EXPECT_FINGERPRINT: {"type": "string", "pattern": f"^{FINGERPRINT_PATTERN}$"},
}
RESULT_HEADERS: Mapping[str, str] = {REQUEST_ID: "The id of the request in the log", **MEANINGS}
ERROR = "What was wrong, in one sentence."
# Before a product is selected: a missing key, a rate, a body that cannot be read.
EARLY_ERRORS: Sequence[VectordError] = (
    errors.Unauthorized(ERROR),
    errors.RateLimited(ERROR, retry_after_s=1.0, limit=60, period="minute"),
)
BODY_ERRORS: Sequence[VectordError] = (
    errors.PayloadTooLarge(ERROR),
    errors.UploadTooSlow(ERROR),
    errors.UnsupportedMediaType(ERROR),
)
ERRORS: Sequence[VectordError] = (
    errors.InvalidField(ERROR),
    errors.ModelNotFound(ERROR),
    errors.Unavailable(ERROR),
    errors.ModelFailed(ERROR),
    errors.ShuttingDown(),
    VectordError(errors.UNFORESEEN),
)
REQUEST_ERRORS: Sequence[VectordError] = (
    *(
        kind(ERROR)
        for kind in (
            errors.MalformedBody,
            errors.InvalidRequest,
            errors.WrongType,
            errors.MissingField,
            errors.EmptyInput,
            errors.TooManyInputs,
            errors.InputTooLong,
            errors.TooManyCharacters,
            errors.ImagesTooLong,
            errors.ForeignIds,
            errors.Untokenizable,
            errors.ModelCannot,
            errors.FingerprintMismatch,
            errors.TimedOut,
            errors.InferenceFailed,
            errors.OutOfMemory,
            errors.InferenceTimedOut,
        )
    ),
    errors.Overloaded(ERROR, retry_after_s=1.0),
    errors.QueueTimedOut(ERROR, retry_after_s=1.0),
)
OCTETS_HEADERS: Mapping[str, str] = {
    "x-vectord-dtype": f"For {OCTETS}: float32, float16, int8 or ubinary, as requested by the dtype in Accept",
    "x-vectord-shape": f"For {OCTETS}: rows,columns of the matrix",
    "x-vectord-rows": f"For {OCTETS} with a vector per token: the number of rows of each text",
    "x-vectord-model": f"For {OCTETS}: the model",
}


def openapi_pages(
    table: Callable[[], Table], version: str, model: Callable[[Mapping[str, str]], str | None]
) -> Sequence[Page]:
    """table: called at the first request, since the table contains these pages, too. model: from a request's headers to
    the name of a served model that its sender may see, for the examples of /docs."""

    building = Lock()  # once, also for requests at the same time

    @cache
    def document(*, brief: bool) -> bytes:
        return orjson.dumps(openapi(table(), version, brief=brief))

    def build(*, brief: bool) -> bytes:
        with building:
            return document(brief=brief)

    async def show(headers: Mapping[str, str]) -> Rendered:
        return Rendered(body=await asyncio.to_thread(build, brief=False))

    async def show_brief(headers: Mapping[str, str]) -> Rendered:
        body = await asyncio.to_thread(build, brief=True)
        if (name := model(headers)) is not None:
            body = body.replace(EXAMPLE_MODEL.encode(), orjson.dumps(name)[1:-1])
        return Rendered(body=body, headers={"vary": "authorization, x-api-key, api-key, x-goog-api-key"})

    summary = "This API in OpenAPI 3.1"  # the other paths are those of servers that vectord replaces
    return (
        Page(path="/openapi.json", show=show, summary=summary),
        Page(path="/api-doc/openapi.json", show=show, summary=summary),
        Page(path="/api/openapi.json", show=show, summary=summary),
        Page(path="/docs/openapi.json", show=show_brief, summary=""),
    )


def openapi(table: Table, version: str, *, brief: bool = False) -> Json:
    """brief: one path for each operation of a product, without aliases and without the products' own prefixes, each
    listed under all products that have it. vectord's routes and those of its usual clients come first."""
    described = [endpoint for endpoint in table if endpoint.page is None or endpoint.page.summary]
    tags = _brief_tags(described) if brief else {_key(endpoint): [_tag(endpoint)] for endpoint in described}
    if brief:  # /docs shows the example of an endpoint's first product
        endpoints = [
            replace(each, choices=tuple(sorted(each.choices, key=lambda choice: choice.dialect.place)))
            for each in described
            if _key(each) in tags
        ]
        endpoints.sort(key=lambda each: each.path.startswith("/dialects/"))
    else:  # products, then the server's pages, then products under their prefixes
        endpoints = sorted(
            described,
            key=lambda each: (each.path.startswith("/dialects/"), each.page is not None, _tag(each), each.path),
        )
    routes = [route for each in endpoints for route in each.routes]
    types = {id(kind): kind for route in routes for kind in (route.body, *route.answers) if kind}
    found, components = msgspec.json.schema_components(types.values(), ref_template="#/components/schemas/{name}")
    schemas = dict(zip(types, found, strict=True))  # by the identity of the type
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, schemas)
        if brief and endpoint.choices:
            operation["summary"] = endpoint.choices[0].route.summary
        operation["tags"] = tags[_key(endpoint)]
        paths.setdefault(endpoint.path.replace(":path}", "}"), {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "vectord", "version": version, "description": "A self-hosted server for retrieval models."},
        "tags": _ranked_tags(described) if brief else [{"name": name} for name in dict.fromkeys(map(_tag, endpoints))],
        "paths": paths,
        "components": {
            "schemas": components,
            "parameters": {name: _parameter(name, "header", kind) for name, kind in _PARAMETERS.items()},
            "headers": {name: _header(meaning) for name, meaning in {**RESULT_HEADERS, **OCTETS_HEADERS}.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        # The empty entry: a server without keys requires none.
        "security": [{"bearer": []}, {"x-api-key": []}, {}],
    }


def _tag(endpoint: Endpoint) -> str:
    if endpoint.page is not None:
        return "server"
    name = endpoint.choices[0].dialect.title
    return f"{name} under its own prefix" if endpoint.path.startswith("/dialects/") else name


def _key(endpoint: Endpoint) -> tuple[str, str]:
    return endpoint.method, endpoint.path


def _brief_tags(endpoints: Sequence[Endpoint]) -> Mapping[tuple[str, str], list[str]]:
    """The products of each endpoint that is listed: the first path of each of their operations."""
    found = {_key(endpoint): endpoint for endpoint in endpoints}
    tags: dict[tuple[str, str], list[str]] = {}
    for dialect in {id(choice.dialect): choice.dialect for each in endpoints for choice in each.choices}.values():
        for route in distinct_routes(dialect):
            shared = found.get((route.method, route.path.rstrip("/") or "/"))
            if shared is None or not shared.choices:
                shared = found[route.method, f"/dialects/{dialect.name}{route.path}".rstrip("/")]
            titles = tags.setdefault(_key(shared), [])
            titles += [dialect.title] if dialect.title not in titles else []
    shown: set[int] = set()
    for endpoint in endpoints:
        if endpoint.page is not None and id(endpoint.page.show) not in shown:
            shown.add(id(endpoint.page.show))
            tags[_key(endpoint)] = ["server"]
    return tags


def _ranked_tags(endpoints: Sequence[Endpoint]) -> list[Json]:
    """x-open: for /docs, which shows the other products collapsed."""
    dialects = {choice.dialect.title: choice.dialect for each in endpoints for choice in each.choices}
    ranked = sorted(dialects.values(), key=lambda dialect: (*dialect.place, dialect.title.lower()))
    return [{"name": each.title, "x-open": each.rank is not None} for each in ranked] + [{"name": "server"}]


def _operation(endpoint: Endpoint, schemas: Mapping[int, Json]) -> Json:
    if endpoint.page is not None:
        return {"summary": endpoint.page.summary, "security": [], "responses": {"200": {"description": "OK"}}}
    routes = endpoint.routes
    references = [{"$ref": f"#/components/parameters/{name}"} for name in _PARAMETERS]
    # An example if the body has one, so that /docs can send a request.
    example = {"example": EXAMPLE_MODEL} if any(route.body for route in routes) else {}
    names = re.findall(r"\{(\w+)", endpoint.path)
    success: Json = {"2XX": {"description": "OK; a body, if present, has no further content"}}
    if answers := [answer for route in routes for answer in route.answers]:
        has_bytes = any(map(_may_be_bytes, routes))
        headers = [*RESULT_HEADERS, *(OCTETS_HEADERS if has_bytes else ())]
        content = {"application/json": {"schema": _any_of(answers, schemas)}, **({OCTETS: {}} if has_bytes else {})}
        shown = {name: _header_reference(name) for name in headers}
        success = {"200": {"description": "OK", "headers": shown, "content": content}}
    operation: Json = {
        "summary": " / ".join(dict.fromkeys(route.summary for route in routes)),
        "parameters": [*(_parameter(name, "path", {"type": "string"}) | example for name in names), *references],
        "responses": {**success, **_failures(endpoint)},
    }
    if endpoint.admin:
        operation["security"] = [{"bearer": []}, {"x-api-key": []}]
    if endpoint.public:
        operation["security"] = []
    bodies = [route.body for route in routes if route.body is not None]
    if bodies:
        examples = {}
        for choice in endpoint.choices:
            has_others = sum(each.dialect is choice.dialect for each in endpoint.choices) > 1
            title = choice.dialect.title + (
                f", by {', '.join(sorted(choice.route.one_of or choice.route.required))}" if has_others else ""
            )
            examples[title] = {"value": choice.route.example}
        content = {"application/json": {"schema": _any_of(bodies, schemas), "examples": examples}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


# --- answers --------------------------------------------------------------------------------------------------


def _may_be_bytes(route: Route) -> bool:
    """Whether the vectors of its example can be one matrix."""
    if route.body is None:
        return False
    with suppress(VectordError):
        call = route.parse(Incoming(body=orjson.dumps(route.example)))
        return negotiated(call, {"accept": OCTETS}) is not call
    return False


# --- errors ---------------------------------------------------------------------------------------------------


def _failures(endpoint: Endpoint) -> Json:
    """The possible errors by status, with one example per product."""
    owner = endpoint.choices[0].dialect.title
    responses: dict[str, Json] = {}
    for error in early_errors(endpoint):
        _add_failure(responses, owner, endpoint.render_error(error))
    for choice in endpoint.choices:
        for error in late_errors(endpoint, choice):
            _add_failure(responses, choice.dialect.title, choice.render_error(error))
    return responses


def early_errors(endpoint: Endpoint) -> Iterator[VectordError]:
    """The errors before a product is selected, which belong to the endpoint's owner."""
    if not endpoint.public:
        yield from EARLY_ERRORS
    if endpoint.admin:
        yield errors.Forbidden(ERROR)
        yield errors.NoSuchRoute(ERROR)  # if no admin key is configured
    if endpoint.method != "GET":
        yield from BODY_ERRORS


def late_errors(endpoint: Endpoint, choice: Choice) -> Iterator[VectordError]:
    """The errors of the product's own route."""
    yield from ERRORS
    if not endpoint.public:
        yield EARLY_ERRORS[1]  # of the product's own rate
    if endpoint.method != "GET":
        yield from REQUEST_ERRORS
    if _may_be_bytes(choice.route):
        yield errors.NotAcceptable(ERROR, field="accept")


def _add_failure(responses: dict[str, Json], title: str, rendered: Rendered) -> None:
    """Add the status, headers, content type and body of a product's response."""
    headers = {REQUEST_ID: _header_reference(REQUEST_ID)}
    default = {"description": HTTPStatus(rendered.status).phrase, "headers": headers}
    response = responses.setdefault(str(rendered.status), default)
    response["headers"].update({name: _header() for name in rendered.headers})
    if rendered.body:
        is_json = rendered.content_type == "application/json"
        shown = orjson.loads(rendered.body) if is_json else rendered.body.decode()
        content = response.setdefault("content", {}).setdefault(rendered.content_type, {})
        content.setdefault("examples", {}).setdefault(title, {"value": shown})


# --- pieces ---------------------------------------------------------------------------------------------------


def _any_of(kinds: Iterable[object], schemas: Mapping[int, Json]) -> Json:
    found = [schemas[each] for each in dict.fromkeys(map(id, kinds))]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _parameter(name: str, place: str, kind: Json) -> Json:
    return {"name": name, "in": place, "required": place == "path", "schema": kind}


def _header(meaning: str = "") -> Json:
    return {"description": meaning, "schema": {"type": "string"}} if meaning else {"schema": {"type": "string"}}


def _header_reference(name: str) -> Json:
    return {"$ref": f"#/components/headers/{name}"}
