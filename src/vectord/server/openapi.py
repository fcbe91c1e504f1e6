"""Describes every route in OpenAPI 3.1, from the table that serves them and the structs that read and write them.

Built when it is first asked for, on the event loop, and kept. Errors are shown as the dialect renders them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec
import orjson

from vectord.dialects.base import Rendered, Route
from vectord.errors import (
    EmptyInput,
    FingerprintMismatch,
    Forbidden,
    InferenceFailed,
    InputTooLong,
    InvalidField,
    MalformedBody,
    ModelNotFound,
    Overloaded,
    PayloadTooLarge,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    VectordError,
    WrongType,
)
from vectord.server import length_headers, result_headers
from vectord.server.handler import EXPECT_FINGERPRINT, LANE
from vectord.server.request_id import HEADER as REQUEST_ID
from vectord.server.routing import Endpoint, Page, Table

Json = dict[str, Any]

_ANY_REQUEST: Sequence[VectordError] = (
    Unauthorized("The key is not one of this server's."),
    ModelNotFound("No served model has that name."),
    Overloaded("The queue is full.", retry_after_s=2.0),
    Unavailable("The server is shutting down."),
    InferenceFailed("The model failed on this request."),
    InvalidField(f"The header {LANE} must be interactive or bulk.", field=LANE),
)
_ANY_BODY: Sequence[VectordError] = (
    MalformedBody("The body is not JSON."),
    PayloadTooLarge("The body is larger than 33554432 bytes."),
    UnsupportedMediaType("Content-Encoding must be gzip, deflate or identity."),
    EmptyInput("`input` cannot be empty.", field="input"),
    WrongType("`input` must be a string, strings or token ids.", field="input"),
    FingerprintMismatch("The vectors belong to another space than the one expected.", field="expect_fingerprint"),
    InputTooLong("Input 0 has 600 tokens; the model reads 512.", field="input", index=0, limit=512, given=600),
)

_ADMIN: Sequence[VectordError] = (Forbidden("This key may not load or unload models; that takes the admin key."),)

_PARAMETERS: Mapping[str, Json] = {
    REQUEST_ID: {"type": "string"},
    LANE: {"type": "string", "enum": ["interactive", "bulk"]},
    EXPECT_FINGERPRINT: {"type": "string", "pattern": "^[0-9a-f:]{1,40}$"},
}
_RESULT_HEADERS: Mapping[str, str] = {
    length_headers.TOKENS_SEEN: "Tokens the inputs have",
    length_headers.TOKENS_KEPT: "Tokens the model read",
    length_headers.TRUNCATED: "How many inputs were cut",
    length_headers.TRUNCATED_INPUTS: f"Which inputs were cut, the first {length_headers.MAX_INDICES}",
    result_headers.FINGERPRINT: "The space the vectors belong to",
    result_headers.SCORE_KIND: "What kind of number the scores are",
    result_headers.QUERY_TRUNCATED: "Whether the query to rank by was cut",
}


def openapi_pages(table: Callable[[], Table], version: str) -> Sequence[Page]:
    """table: called when the description is first asked for, since the table holds these pages too."""

    @cache
    def described() -> bytes:
        return orjson.dumps(openapi(table(), version))

    def show(headers: Mapping[str, str]) -> Rendered:
        return Rendered(body=described())

    summary = "This API in OpenAPI 3.1"
    return (
        Page(path="/openapi.json", show=show, summary=summary),
        Page(path="/api-doc/openapi.json", show=show, summary=summary + ", where text-embeddings-inference has it"),
    )


def openapi(table: Table, version: str) -> Json:
    described = [endpoint for endpoint in table if endpoint.page is None or endpoint.page.summary]
    endpoints = sorted(described, key=_place)
    schemas, components = _schemas(endpoints)
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        operation = _page_operation(endpoint.page) if endpoint.page else _operation(endpoint, schemas)
        paths.setdefault(_plain_path(endpoint.path), {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "vectord", "version": version, "description": "A self-hosted server for retrieval models."},
        "tags": [{"name": name} for name in dict.fromkeys(map(_tag, endpoints))],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        # The empty one: a server that was started without a key asks for none.
        "security": [{"bearer": []}, {"x-api-key": []}, {}],
    }


def _schemas(endpoints: Iterable[Endpoint]) -> tuple[Mapping[int, Json], Json]:
    """The schema of each wire type, by its identity, and the components they refer to."""
    types = {id(kind): kind for kind in _wire_types(endpoints)}
    schemas, components = msgspec.json.schema_components(types.values(), ref_template="#/components/schemas/{name}")
    return dict(zip(types, schemas, strict=True)), components


def _wire_types(endpoints: Iterable[Endpoint]) -> Iterator[Any]:
    for endpoint in endpoints:
        for choice in endpoint.choices:
            yield from (kind for kind in (choice.route.body, choice.route.answer) if kind is not None)


def _place(endpoint: Endpoint) -> tuple[bool, bool, str, str]:
    """Where an endpoint stands: dialects, then the server's own pages, then dialects under their prefixes."""
    return endpoint.path.startswith("/dialects/"), endpoint.page is not None, _tag(endpoint), endpoint.path


def _page_operation(page: Page) -> Json:
    return {"summary": page.summary, "tags": ["server"], "security": [], "responses": {"200": {"description": "OK"}}}


def _operation(endpoint: Endpoint, schemas: Mapping[int, Json]) -> Json:
    routes = [choice.route for choice in endpoint.choices]
    operation: Json = {
        "summary": " / ".join(dict.fromkeys(route.summary for route in routes)),
        "tags": [_tag(endpoint)],
        "parameters": [*_path_parameters(endpoint.path), *_header_parameters()],
        "responses": {"200": _success(routes, schemas), **_failures(endpoint)},
    }
    if endpoint.admin:
        operation["security"] = [{"bearer": []}, {"x-api-key": []}]
    bodies = [route.body for route in routes if route.body is not None]
    if bodies:
        content = {"application/json": {"schema": _any_of(bodies, schemas)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _tag(endpoint: Endpoint) -> str:
    if endpoint.page is not None:
        return "server"
    name = endpoint.choices[0].dialect.title
    return f"{name} under its own prefix" if endpoint.path.startswith("/dialects/") else name


def _success(routes: Sequence[Route], schemas: Mapping[int, Json]) -> Json:
    headers = {name: _header(meaning) for name, meaning in _RESULT_HEADERS.items()}
    response: Json = {"description": "OK", "headers": {REQUEST_ID: _header("The request's name in the log"), **headers}}
    answers = [route.answer for route in routes if route.answer is not None]
    if answers:
        response["content"] = {"application/json": {"schema": _any_of(answers, schemas)}}
    return response


def _failures(endpoint: Endpoint) -> Json:
    """Each error that can happen, under its status, as the path's owner renders it."""
    owner = endpoint.choices[0]
    with_body = _ANY_BODY if owner.route.body is not None else ()
    responses: dict[str, Json] = {}
    for error in (*_ANY_REQUEST, *(_ADMIN if endpoint.admin else ()), *with_body):
        rendered = owner.render_error(error)
        response = responses.setdefault(str(rendered.status), _failure(rendered))
        if rendered.body:
            response.setdefault("content", {}).setdefault(rendered.content_type, {"example": _example(rendered)})
    return responses


def _failure(rendered: Rendered) -> Json:
    headers = {name: _header() for name in (REQUEST_ID, *rendered.headers)}
    return {"description": HTTPStatus(rendered.status).phrase, "headers": headers}


def _example(rendered: Rendered) -> Any:
    return orjson.loads(rendered.body) if rendered.content_type == "application/json" else rendered.body.decode()


def _any_of(kinds: Iterable[object], schemas: Mapping[int, Json]) -> Json:
    found = [schemas[id(kind)] for kind in kinds]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _path_parameters(path: str) -> Iterator[Json]:
    for name in re.findall(r"\{(\w+)", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _header_parameters() -> Iterator[Json]:
    for name, kind in _PARAMETERS.items():
        yield {"name": name, "in": "header", "required": False, "schema": kind}


def _header(meaning: str = "") -> Json:
    return {"description": meaning, "schema": {"type": "string"}} if meaning else {"schema": {"type": "string"}}


def _plain_path(path: str) -> str:
    return path.replace(":path}", "}")
