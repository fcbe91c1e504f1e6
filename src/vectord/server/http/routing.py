"""Finds the endpoint for a method and a path.

app.py builds the table once from the products and the server's pages; handler.py reads it for every request, on the
event loop. If several products have a path, their order and the top-level keys of the body decide (`Endpoint.choose`).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from vectord.errors import InvalidField, MethodNotAllowed, NoSuchRoute
from vectord.products.common.body import Content
from vectord.products.common.dialect import Call, Dialect, Incoming, Rendered, RenderError, Route
from vectord.schema import Operation
from vectord.server.admission.keys import NO_SUCH_PATH
from vectord.server.http.hardening.body import check_shape

NO_VALUES: Mapping[str, str] = MappingProxyType({})

_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw])
_placeholder = re.compile(r"\{(\w+)(:path)?\}")


class Page(msgspec.Struct, frozen=True, kw_only=True):
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


class Choice(msgspec.Struct, frozen=True, dict=True):
    """One product's route on a path."""

    dialect: Dialect
    route: Route

    @cached_property
    def render_error(self) -> RenderError:
        return self.route.render_error or self.dialect.render_error


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One method of one path: a page, one route, several routes, or the error of a path that is not served.

    path: the template, "" for a path that is not served. render_error: for errors before the body selects a product.
    """

    method: str
    path: str
    render_error: RenderError
    choices: tuple[Choice, ...] = ()  # the first owns the path
    page: Page | None = None
    error: NoSuchRoute | None = None

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

    @cached_property
    def effective(self) -> frozenset[str]:
        """The keys that can change the response of one of the products."""
        return frozenset().union(*(route.effective for route in self.routes))

    def choose(self, body: Content, max_inputs: int | None = None) -> Choice:
        """The first route whose required keys are in the body and that knows every other key.

        Keys that change no response here are disregarded. If none knows every key, the first route with its required
        keys refuses the first key that it does not know. If none has its required keys, the first route of all parses
        the body and reports what is missing. Raises PayloadTooLarge, see check_shape.
        """
        check_shape(body, max_inputs)
        if len(self.choices) == 1:
            return self.choices[0]
        try:
            values = _top_level.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):  # no JSON object
            values = {}
        keys = values.keys() & self.effective
        refusing: Choice | None = None
        for choice in self.choices:
            if choice.route.accepts(keys):
                if keys <= choice.route.known:
                    return choice
                refusing = refusing or choice
        return self.choices[0] if refusing is None else _refusing(refusing, values, keys)


def _refusing(choice: Choice, values: Mapping[str, msgspec.Raw], keys: Set[str]) -> Choice:
    """`choice` with a parser that refuses the first of `keys` that its route does not know, unless it is null."""
    unknown = keys - choice.route.known
    field = next((key for key in values if key in unknown and bytes(memoryview(values[key])[:1]) != b"n"), None)
    if field is None:
        return choice

    def refuse(incoming: Incoming) -> Call:
        raise InvalidField(
            "{field} does not go with the other fields: no API on this path has all of them. Remove it, or send the "
            "fields of one API.",
            field=field,
        )

    return replace(choice, route=replace(choice.route, parse=refuse))


class Found(msgspec.Struct, frozen=True):
    endpoint: Endpoint
    values: Mapping[str, str] = {}  # of the path's {placeholders}


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
        self._patterns: dict[re.Pattern[str], dict[str, Endpoint]] = {}
        shared = _endpoints(dialects)
        own = [Endpoint(method="GET", path=page.path, render_error=plain, page=page) for page in pages]
        prefixed = [each for dialect in dialects for each in _endpoints([dialect], f"/dialects/{dialect.name}")]
        for endpoint in (*own, *prefixed, *shared):
            self._add(endpoint)

    def __iter__(self) -> Iterator[Endpoint]:
        for methods in (*self._exact.values(), *self._patterns.values()):
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
            # The server's page below /dialects/NAME/: a client with that base URL looks for /health there.
            name, _, rest = path.removeprefix("/dialects/").partition("/")
            pages = self._exact.get(f"/{rest.rstrip('/')}", {}) if name in self._dialects else {}
            if any(endpoint.page for endpoint in pages.values()):
                methods, values = pages, NO_VALUES
        if endpoint := methods.get(method) or methods.get(needed):
            return Found(endpoint, values)
        if not methods:
            missing = NoSuchRoute(NO_SUCH_PATH)
            return Found(Endpoint(method=method, path="", render_error=self._renderer_of(path), error=missing))
        owner = next(iter(methods.values()))
        allowed = tuple(sorted({*methods, "HEAD"} if "GET" in methods else methods))
        error = MethodNotAllowed(f"This path accepts only {' and '.join(allowed)}.", allowed=allowed)
        return Found(Endpoint(method=method, path=owner.path, render_error=owner.render_error, error=error))

    def _other_form(self, path: str) -> str | None:
        """`path` without the server's prefix, and with a product's own prefix instead of an alias."""
        other = path.removeprefix(self._prefix) if path.startswith(f"{self._prefix}/") else path
        for alias, prefix in self._aliases.items():
            if other.startswith(alias):
                return prefix + other.removeprefix(alias)
        return other if other != path else None

    def _methods(self, needed: str, path: str) -> tuple[dict[str, Endpoint], Mapping[str, str]]:
        """The methods of `path`, and its placeholders. Of several templates the first with that method:
        /models/{model} matches /models/m/load, too, but GET and POST belong to different templates."""
        methods = self._exact.get(path)
        if methods is not None:
            return methods, NO_VALUES
        found = [(methods, match) for pattern, methods in self._patterns.items() if (match := pattern.fullmatch(path))]
        if not found:
            return {}, NO_VALUES
        methods, match = next((each for each in found if needed in each[0]), found[0])
        return methods, match.groupdict()

    def _add(self, endpoint: Endpoint) -> None:
        if "{" not in endpoint.path:
            methods = self._exact.setdefault(endpoint.path.rstrip("/") or "/", {})
        else:
            methods = self._patterns.setdefault(_compile(endpoint.path), {})
        # Pages come before products: GET / is the server's.
        methods.setdefault(endpoint.method, endpoint)

    def _renderer_of(self, path: str) -> RenderError:
        """The renderer for a path that is not served: of the product whose prefix it has, else the plain one."""
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
        # Without those that no body can select: a path with one choice left does not read the body's keys.
        reachable = tuple(
            choice
            for index, choice in enumerate(choices)
            if not any(_covers(earlier.route, choice.route) for earlier in choices[:index])
        )
        yield Endpoint(method=method, path=path, render_error=reachable[0].render_error, choices=reachable)


def _covers(earlier: Route, later: Route) -> bool:
    """Whether the earlier route answers every body that the later one could."""
    if not earlier.known >= later.known or not earlier.required <= later.required:
        return False
    if not earlier.one_of or not earlier.one_of.isdisjoint(later.required):
        return True
    return bool(later.one_of) and earlier.one_of >= later.one_of


def _compile(template: str) -> re.Pattern[str]:
    """Compiles a template in Starlette's syntax, {name} and {name:path}."""
    pattern, end = "", 0
    for match in _placeholder.finditer(template):
        pattern += re.escape(template[end : match.start()])
        pattern += f"(?P<{match[1]}>{'.+' if match[2] else '[^/]+'})"
        end = match.end()
    return re.compile(pattern + re.escape(template[end:]), re.DOTALL)
