"""What a dialect is: routes, each a way to read a body and to write its answer, and one way to say what went wrong.

One module or package of this folder is one dialect and holds one `DIALECT`. compose loads those that `--dialects`
names, by folder.py; `server/` shares paths between them by body keys, then by their order, and serves each under
/dialects/NAME/ too. What several of them read or write alike is in wire/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec

from vectord.errors import VectordError
from vectord.products.common.rendered import Rendered
from vectord.products.common.wording import worded
from vectord.schema import EmbedResult, ModelInfo, ModelList, Request, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """Limits of single dialects, as their products have them; None: no such limit."""

    max_inputs: int | None = None  # the engine's own of every request, for who must name it before any other fault
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

    fields: the engine's word for a field ("dimensions") -> this body's ("output_dimension", "config.dimensions"), where
    they differ; the engine's are the names that schema.py has. part_fields: the same of one part of `Several`, by its
    place ("inputs" -> "instances[3].inputs"). binary: whether the engine's numbers are the answer's own, so that they
    may go out as bytes; not where `render` scales or checks them.
    """

    request: Request
    render: Callable[[Result], Rendered]
    fields: Mapping[str, str] = field(default_factory=dict)
    part_fields: Callable[[int], Mapping[str, str]] | None = None
    binary: bool = True

    def worded(self, error: VectordError) -> VectordError:
        """An error of the engine in the body's words."""
        if error.part is None or self.part_fields is None:
            return worded(error, self.fields)
        return worded(error, self.part_fields(error.part))

    def answered(self, result: Result) -> Rendered:
        """`result` as it goes out; what has failed alone in it is in the body's words, too."""
        if isinstance(result, EmbedResult) and result.failures:
            failures = {index: self.worded(error) for index, error in result.failures.items()}
            result = replace(result, failures=failures)
        return self.render(result)


Parse: TypeAlias = Callable[[Incoming], Call]  # raises VectordError
RenderError: TypeAlias = Callable[[VectordError], Rendered]
Health: TypeAlias = Callable[[ModelList, bool], Mapping[str, Any]]  # the served models, whether the server is ready


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


@dataclass(frozen=True, slots=True)
class Rate:
    """How often a client may ask: `amount` in `period_s` (1 or 60) in the long run, `burst` at once."""

    amount: int
    period_s: int
    burst: int
    per_key: bool = False  # a client is who brings the same key; False: who has the same address


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    name: str
    title: str
    routes: tuple[Route, ...]
    render_error: RenderError
    rate: Rate | None = None  # on its own routes, as its product has it
    prefix: str | None = None  # unserved paths below it are refused in this dialect's form
    health: Health | None = None  # further keys of the server's /health
    ready_lines: Callable[[Sequence[ModelInfo]], Sequence[str]] | None = None  # logged once models answer
