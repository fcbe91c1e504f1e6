"""What a dialect is: routes, each a way to read a body and to write its answer, and one way to say what went wrong.

One module or package of this folder is one dialect and holds one `DIALECT`. compose loads those that `--dialects`
names, by folder.py; `server/` shares paths between them by body keys, then by their order, and serves each under
/dialects/NAME/ too. What several of them read or write alike is in wire/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from vectord.errors import VectordError
from vectord.schema import ModelInfo, Request, Result
from vectord.wire.rendered import Rendered


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """Limits of single dialects, as their products have them; None: no such limit."""

    max_text_chars: int | None = None  # Simple Inference Server's and OpenAI's routes
    max_sentences: int | None = None  # Smart Embedder's
    max_passages: int | None = None  # Smart Embedder's


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """One HTTP request, as far as a dialect may see it."""

    body: bytes = b""
    path: Mapping[str, str] = field(default_factory=dict)  # values of the path's {placeholders}
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    models: Sequence[ModelInfo] = ()  # those served, the default first
    guards: Guards = Guards()


@dataclass(frozen=True, slots=True)
class Call:
    """What a body asks for, and how its answer reads: `render` knows from the body what the request need not say.

    fields: the engine's word for a field ("dimensions") -> this body's ("output_dimension"), where they differ and the
    request has no place to say so.
    """

    request: Request
    render: Callable[[Result], Rendered]
    fields: Mapping[str, str] = field(default_factory=dict)

    def worded(self, error: VectordError) -> VectordError:
        """`error` in the body's words. Another object: one failure may be the answer to several requests."""
        own = self.fields.get(error.field or "")
        if own is None:
            return error
        other = copy(error)
        other.message = error.message.replace(f"`{error.field}", f"`{own}")
        other.field = own
        return other


Parse: TypeAlias = Callable[[Incoming], Call]  # raises VectordError
RenderError: TypeAlias = Callable[[VectordError], Rendered]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path.

    path: Starlette syntax, "/v1/models/{model:path}". Of several routes on one path answers, in the profile's order,
    the first that finds one of its `signs` in the body beside one of its `keys`; else the first that finds one of its
    `keys`; else the first. keys: top-level keys without which it cannot answer ("input"); signs: those that no other
    dialect's bodies have there ("output_dtype"). body, answer: the wire types, for OpenAPI. example: a body that shows
    what the route does, for docs/apis.md, whose examples the tests run. public: needs no key. admin: for the operator's
    key only; on a shared path that holds for all its routes.
    """

    method: str
    path: str
    parse: Parse
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: object | None = None
    example: Any = None
    keys: frozenset[str] = frozenset()
    signs: frozenset[str] = frozenset()
    public: bool = False
    admin: bool = False
    render_error: RenderError | None = None  # None: the dialect's


def post(
    *paths: str,
    parse: Parse,
    summary: str,
    body: type[msgspec.Struct],
    answer: object,
    example: Any,
    keys: Iterable[str],
    signs: Iterable[str] = (),
    render_error: RenderError | None = None,
) -> Iterator[Route]:
    """One route a path, all of them alike."""
    for path in paths:
        yield Route(
            method="POST",
            path=path,
            parse=parse,
            summary=summary,
            body=body,
            answer=answer,
            example=example,
            keys=frozenset(keys),
            signs=frozenset(signs),
            render_error=render_error,
        )


def get(*paths: str, parse: Parse, summary: str, answer: object | None = None, public: bool = False) -> Iterator[Route]:
    """One route a path, all of them alike."""
    for path in paths:
        yield Route(method="GET", path=path, parse=parse, summary=summary, answer=answer, public=public)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    name: str
    title: str
    routes: tuple[Route, ...]
    render_error: RenderError
