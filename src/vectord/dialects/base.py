"""What a dialect is: routes, each two pure functions, and one way to say what went wrong.

One module of this folder is one dialect and holds one `DIALECT`. compose loads those that `--dialects` names, by
folder.py; `server/` shares paths between them by body keys, then by their order, and serves each under
/dialects/NAME/ too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from vectord.errors import VectordError
from vectord.schema import ModelInfo, Request, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """One HTTP request, as far as a dialect may see it."""

    body: bytes = b""
    path: Mapping[str, str] = field(default_factory=dict)  # values of the path's {placeholders}
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    models: Sequence[ModelInfo] = ()  # those served, the default first; only for routes that see them


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One HTTP answer. `headers` are the dialect's own; the server adds request id, length contract and such."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """parse: Incoming -> canonical request, raises VectordError. render: (request, result) -> Rendered.

    path: Starlette syntax, "/v1/models/{model:path}". keys: top-level body keys that tell this dialect from
    others on the same path; the first route in the profile's order whose key is present answers. body, answer: the
    wire types, for OpenAPI. sees_models: what the body means depends on which models are served. admin: for the
    operator's key only; on a shared path that holds for all its routes.
    """

    method: str
    path: str
    parse: Callable[[Incoming], Request]
    render: Callable[[Request, Result], Rendered]
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: object | None = None
    keys: frozenset[str] = frozenset()
    sees_models: bool = False
    admin: bool = False
    render_error: Callable[[VectordError], Rendered] | None = None  # None: the dialect's


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    name: str
    title: str
    routes: tuple[Route, ...]
    render_error: Callable[[VectordError], Rendered]
