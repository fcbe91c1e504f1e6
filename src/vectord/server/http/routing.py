"""Finds the endpoint for a method and a path.

app.py builds the table once from the products and the server's pages; handler.py reads it for every request, on the
event loop. If several products have a path, the first dialect answers every body with one of its keys; of the other
dialects, the body's top-level keys select one, then their order.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import msgspec

from vectord.errors import MethodNotAllowed, NoSuchRoute
from vectord.products.common.body import Content
from vectord.products.common.dialect import Dialect, Rendered, RenderError, Route
from vectord.schema import Operation
from vectord.server.admission.keys import NO_SUCH_PATH

NO_VALUES: Mapping[str, str] = MappingProxyType({})

_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw])
_placeholder = re.compile(r"\{(\w+)(:path)?\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of the server itself, for GET and HEAD. It needs no key unless it is guarded.

    show: from the request's headers. summary: for the API's description; "" leaves the page out of it. probe: answered
    on connections beyond the limits, too, and not rate-limited unless `limited`.
    """

    path: str
    show: Callable[[Mapping[str, str]], Rendered | Awaitable[Rendered]]
    summary: str
    guarded: bool = False
    probe: bool = False
    limited: bool = False


@dataclass(frozen=True)
class Choice:
    """One product's route on a path."""

    dialect: Dialect
    route: Route
    fallback: RenderError | None = None  # if the body did not select the product

    @cached_property
    def render_error(self) -> RenderError:
        return self.fallback or self.route.render_error or self.dialect.render_error


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One method of one path: a page, one route, several routes, or the error of a path that is not served.

    path: the template, "" for a path that is not served. render_error: for errors before the body selects a product.
    """

    method: str
    path: str
    render_error: RenderError
    choices: tuple[Choice, ...] = ()  # the first owns the path
    page: Page | None = None
    error: NoSuchRoute | None = None
    preferred: str = ""  # the product that answers every body with one of its keys; "": none

    @cached_property
    def owner(self) -> str:
        """The owner's name in logs and metrics: a product's, or "server"."""
        return self.choices[0].dialect.name if self.choices else "server"

    @cached_property
    def route(self) -> str:
        """The path in logs and metrics: without /dialects/NAME, since they have the owner's name."""
        return self.path.removeprefix(f"/dialects/{self.owner}")

    @cached_property
    def dialect(self) -> str | None:
        """The product that answers; None if the body selects it, or if there is none."""
        return self.choices[0].dialect.name if len(self.choices) == 1 else None

    @cached_property
    def computes(self) -> Operation | None:
        """What the first route computes; None if one of the routes computes nothing."""
        computes = [route.computes for route in self.routes]
        return computes[0] if computes and None not in computes else None

    @property
    def routes(self) -> list[Route]:
        return [choice.route for choice in self.choices]

    @cached_property
    def admin(self) -> bool:
        return any(route.admin for route in self.routes)

    @cached_property
    def form(self) -> bool:
        return any(route.form for route in self.routes)

    @cached_property
    def open_page(self) -> Page | None:
        """The page, if it needs no key."""
        return None if self.page is None or self.page.guarded else self.page

    @cached_property
    def public(self) -> bool:
        return bool(self.choices) and all(route.public for route in self.routes)

    @cached_property
    def probe(self) -> bool:
        return bool(self.choices) and all(route.probe for route in self.routes)

    def choose(self, body: Content) -> Choice:
        """The preferred product's route if it has a key in the body: one more key never selects another product.
        Else the first route with one of its signs and one of its keys in the body, else the first with one of its keys.
        If there is none, the owner parses the body, and its errors have the form of the path."""
        if len(self.choices) == 1:
            return self.choices[0]
        keys: Collection[str]
        try:
            keys = _top_level.decode(body).keys()
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):  # no JSON object
            keys = ()
        fitting = [choice for choice in self.choices if not choice.route.keys.isdisjoint(keys)]
        if not fitting:
            return replace(self.choices[0], fallback=self.render_error)
        fitting = [choice for choice in fitting if choice.dialect.name == self.preferred] or fitting
        return next((choice for choice in fitting if not choice.route.signs.isdisjoint(keys)), fitting[0])


@dataclass(frozen=True, slots=True)
class Found:
    endpoint: Endpoint
    values: Mapping[str, str] = field(default_factory=dict)  # of the path's {placeholders}


class Table:
    """Every endpoint of the server, by path and method. Paths answer with and without a trailing slash."""

    def __init__(
        self, dialects: Sequence[Dialect], pages: Sequence[Page], plain: RenderError, url_prefix: str = ""
    ) -> None:
        """dialects: in the profile's order; plain: renders errors of paths without an owner; url_prefix: a path
        under which all paths are served, too."""
        self._prefix = url_prefix.rstrip("/")
        self._dialects = {dialect.name: dialect for dialect in dialects}
        self._aliases = {alias: each.prefix for each in dialects if each.prefix for alias in each.aliases}
        self._plain = plain
        self._exact: dict[str, dict[str, Endpoint]] = {}
        self._patterns: list[tuple[re.Pattern[str], dict[str, Endpoint]]] = []
        shared = [self._with_first(endpoint, dialects[0]) for endpoint in _endpoints(dialects)] if dialects else []
        own = [Endpoint(method="GET", path=page.path, render_error=plain, page=page) for page in pages]
        prefixed = [each for dialect in dialects for each in _endpoints([dialect], f"/dialects/{dialect.name}")]
        for endpoint in (*own, *prefixed, *shared):
            self._add(endpoint)

    def __iter__(self) -> Iterator[Endpoint]:
        for methods in (*self._exact.values(), *(methods for _, methods in self._patterns)):
            yield from methods.values()

    def find(self, method: str, path: str) -> Found:
        """The endpoint of `path`; one with NoSuchRoute or MethodNotAllowed if there is none."""
        exact = self._exact.get(path)
        if exact is not None and (served := exact.get(method)) is not None:
            return Found(served)
        needed = "GET" if method == "HEAD" else method
        methods, values = self._methods(needed, path.rstrip("/") or "/")
        if not methods and (other := self._other_form(path)):
            methods, values = self._methods(needed, other.rstrip("/") or "/")
        if not methods and path.startswith("/dialects/"):
            methods, values = self._page_for(path), NO_VALUES
        endpoint = methods.get(method) or methods.get(needed)
        if endpoint is None:
            return Found(self._unserved(method, path, methods))
        return Found(endpoint, values)

    def _other_form(self, path: str) -> str | None:
        """`path` without the server's prefix, and with a product's own prefix instead of an alias."""
        other = path.removeprefix(self._prefix) if path.startswith(f"{self._prefix}/") else path
        for alias, prefix in self._aliases.items():
            if other.startswith(alias):
                return prefix + other.removeprefix(alias)
        return other if other != path else None

    def _page_for(self, path: str) -> dict[str, Endpoint]:
        """The server's page below /dialects/NAME/: a client with that base URL looks for /health there."""
        name, _, rest = path.removeprefix("/dialects/").partition("/")
        methods = self._exact.get(f"/{rest.rstrip('/')}", {}) if name in self._dialects else {}
        return methods if any(endpoint.page for endpoint in methods.values()) else {}

    def _methods(self, needed: str, path: str) -> tuple[dict[str, Endpoint], Mapping[str, str]]:
        """The methods of `path`, and its placeholders. Of several templates the first with that method:
        /models/{model} matches /models/m/load, too, but GET and POST belong to different templates."""
        methods = self._exact.get(path)
        if methods is not None:
            return methods, NO_VALUES
        found = [(methods, match) for pattern, methods in self._patterns if (match := pattern.fullmatch(path))]
        if not found:
            return {}, NO_VALUES
        methods, match = next((each for each in found if needed in each[0]), found[0])
        return methods, match.groupdict()

    def _add(self, endpoint: Endpoint) -> None:
        if "{" not in endpoint.path:
            methods = self._exact.setdefault(endpoint.path.rstrip("/") or "/", {})
        else:
            methods = self._pattern_methods(_compile(endpoint.path))
        # Pages come before products: GET / is the server's.
        methods.setdefault(endpoint.method, endpoint)

    def _pattern_methods(self, pattern: re.Pattern[str]) -> dict[str, Endpoint]:
        for known, methods in self._patterns:
            if known.pattern == pattern.pattern:
                return methods
        self._patterns.append((pattern, {}))
        return self._patterns[-1][1]

    def _unserved(self, method: str, path: str, methods: Mapping[str, Endpoint]) -> Endpoint:
        if not methods:
            error = NoSuchRoute(NO_SUCH_PATH)
            return Endpoint(method=method, path="", render_error=self._fallback_renderer(path), error=error)
        owner = next(iter(methods.values()))
        allowed = tuple(sorted({*methods, "HEAD"} if "GET" in methods else methods))
        error = MethodNotAllowed(f"This path accepts only {' and '.join(allowed)}.", allowed=allowed)
        return Endpoint(method=method, path=owner.path, render_error=owner.render_error, error=error)

    def _with_first(self, endpoint: Endpoint, first: Dialect) -> Endpoint:
        """Before the body selects a product, a shared path renders errors as the first product if that has the path,
        else in the plain form. The first product is preferred."""
        if endpoint.choices[0].dialect is first:
            return replace(endpoint, preferred=first.name)
        if len({choice.dialect.name for choice in endpoint.choices}) == 1:
            return endpoint
        return replace(endpoint, render_error=self._fallback_renderer(endpoint.path))

    def _fallback_renderer(self, path: str) -> RenderError:
        """The renderer of errors without a route: of the product whose prefix the path has, else the plain one."""
        for dialect in self._dialects.values():
            if dialect.prefix and path.startswith(dialect.prefix):
                return dialect.render_error
        if path.startswith("/dialects/"):
            named = self._dialects.get(path.split("/", 3)[2])
            return named.render_error if named else self._plain
        return self._plain


def _endpoints(dialects: Iterable[Dialect], prefix: str = "") -> Iterator[Endpoint]:
    """One endpoint per path and method of these products; its routes in order of precedence."""
    claimed: dict[tuple[str, str], list[Choice]] = {}
    for dialect in dialects:
        for route in dialect.routes:
            path = f"{prefix}{route.path}".rstrip("/") or "/"
            claimed.setdefault((route.method, path), []).append(Choice(dialect, route))
    for (method, path), choices in claimed.items():
        reachable = tuple(_reachable(choices))
        yield Endpoint(method=method, path=path, render_error=reachable[0].render_error, choices=reachable)


def _reachable(choices: Sequence[Choice]) -> Iterator[Choice]:
    """The choices that a body can select. Most paths have one, so that the body's keys are not read."""
    taken: frozenset[str] = frozenset()
    for index, choice in enumerate(choices):
        if index == 0 or choice.route.signs or not choice.route.keys <= taken:
            yield choice
        taken |= choice.route.keys


def _compile(template: str) -> re.Pattern[str]:
    """Compiles a template in Starlette's syntax, {name} and {name:path}."""
    pattern, end = "", 0
    for match in _placeholder.finditer(template):
        pattern += re.escape(template[end : match.start()])
        pattern += f"(?P<{match[1]}>{'.+' if match[2] else '[^/]+'})"
        end = match.end()
    return re.compile(pattern + re.escape(template[end:]), re.DOTALL)
