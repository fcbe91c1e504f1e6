"""The interface between a product and the server: routes, calls, responses, and one renderer of errors.

A product is a module or package of `vectord.products` that holds one `DIALECT`. compose.py loads the products that
`--dialects` names. server/ serves each at its own paths and under /dialects/NAME/; if several products have a path, the
first one that knows every key of the body answers (server/http/routing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, cached_property
from importlib import import_module
from random import Random
from types import MappingProxyType, UnionType
from typing import Any, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
from msgspec.structs import replace

from vectord.errors import ConfigError, VectordError
from vectord.observability.instruments import MetricFamilies
from vectord.products import ORDER
from vectord.products.common.batches import BatchRequest, BatchResult, StoredContent
from vectord.products.common.body import DECODE_ERRORS, Content, fault_of
from vectord.products.common.fields import RefusedField, fields_without_effect, refusals_of
from vectord.products.common.inputs import read_switch, switches_of
from vectord.schema import EmbedResult, ListModels, ModelInfo, ModelList, Operation, Request, Result

Names: TypeAlias = Mapping[str, str]  # canonical field (schema.py) -> the product's field
NO_NAMES: Names = MappingProxyType({})
EXAMPLE_MODEL = "sentence-transformers/all-MiniLM-L6-v2"  # in the examples of bodies


class Guards(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that only some products check; None: no limit."""

    max_inputs: int | None = None  # the engine's limit, for products that check it before any other fault
    alone: str | None = None  # the product that has its profile, or the server's only API
    own_ids: bool = False  # lists of token ids are the model's own, also where OpenAI's clients send theirs
    product: Mapping[str, Any] = {}  # settings of the profile's product


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an HTTP request that a product reads."""

    body: Content = b""
    path: Mapping[str, str] = {}  # values of the path's {placeholders}
    query: str = ""  # of the URL, as sent
    headers: Mapping[str, str] = {}  # names in lower case
    models: Sequence[ModelInfo] = ()  # the served models, the default first
    guards: Guards = Guards()


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP response of a product. The server adds headers of its own, such as the request id."""

    body: bytes
    status: int = 200
    file: StoredContent | None = None  # sent in place of the body, in pieces
    headers: Mapping[str, str] = {}
    content_type: str = "application/json"


Render: TypeAlias = Callable[[Any], Rendered]  # takes the result of the call's request
RenderError: TypeAlias = Callable[[VectordError], Rendered]


class Call(msgspec.Struct, frozen=True):
    """The request that a body contains, and the renderer of its result.

    names: fields whose name in this body differs from the canonical one, "dimensions" -> "config.dimensions".
    part_names: the same for one part of a `MultiRequest`, by its index: "inputs" -> "instances[3].inputs".
    binary: whether the result's vectors may be sent as bytes instead; False if `render` scales or checks them.
    """

    request: Request | BatchRequest
    render: Render
    names: Names = {}
    part_names: Callable[[int], Names] | None = None
    binary: bool = True

    def named(self, error: VectordError) -> VectordError:
        """`error` with the field names of this body."""
        if error.part is None or self.part_names is None:
            return error.named(self.names)
        return error.named(self.part_names(error.part))

    def answered(self, result: Result | BatchResult) -> Rendered:
        """The response for `result`. Errors of single inputs get the field names of this body."""
        if isinstance(result, EmbedResult) and result.failures:
            failures = {index: self.named(error) for index, error in result.failures.items()}
            result = replace(result, failures=failures)
        return self.render(result)


_ids = Random()  # noqa: S311 - no secrets; os.urandom would let another thread take the interpreter


def random_id() -> str:
    """32 random hexadecimal digits, for a request or a response."""
    return f"{_ids.getrandbits(128):032x}"


Parse: TypeAlias = Callable[[Incoming], Call]  # raises VectordError
# (served models, whether the server is ready) -> keys of /health
HealthKeys: TypeAlias = Callable[[ModelList, bool], Mapping[str, Any]]


class Route(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One method of one path. Products declare routes with `Routes`.

    path: Starlette syntax, "/v1/models/{model:path}".
    one_of: keys of which a body has at least one, besides the required fields of its type.
    computes: the operation of a request that needs a forward pass; a busy engine refuses it before its body is read.
        None: the request needs none, or may wait for one.
    body, answer: the wire types, for OpenAPI. example: a body for docs/apis.md, whose examples the tests send.
    form: the body is multipart/form-data, not JSON.
    public: needs no key. probe: a health check, which is never rate-limited. admin: needs the operator's key; on a
        shared path this holds for every route.
    """

    method: str
    path: str
    parse: Parse
    summary: str
    computes: Operation | None = None
    body: type[msgspec.Struct] | None = None
    answer: object | None = None
    example: Any = None
    one_of: frozenset[str] = frozenset()
    form: bool = False
    public: bool = False
    probe: bool = False
    admin: bool = False
    render_error: RenderError | None = None  # None: the product's

    @cached_property
    def required(self) -> frozenset[str]:
        """The keys that every body has."""
        fields = () if self.body is None else msgspec.structs.fields(self.body)
        return frozenset(field.encode_name for field in fields if field.required)

    @cached_property
    def known(self) -> frozenset[str]:
        """The keys that its bodies may have."""
        return frozenset(() if self.body is None else self.body.__struct_encode_fields__)

    @cached_property
    def effective(self) -> frozenset[str]:
        """The known keys that can change the response."""
        return frozenset() if self.body is None else self.known - fields_without_effect(self.body)

    def accepts(self, keys: Set[str]) -> bool:
        """Whether a body with these keys has the required ones."""
        return self.required <= keys and (not self.one_of or not self.one_of.isdisjoint(keys))

    @property
    def answers(self) -> tuple[object, ...]:
        """`answer`, or the types of a union of objects: msgspec describes only one object in a union."""
        kinds = get_args(self.answer) if isinstance(self.answer, UnionType) else ()
        objects = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
        if len(objects) > 1:
            return kinds
        return () if self.answer is None else (self.answer,)


Body = TypeVar("Body", bound=msgspec.Struct)
BodyParser: TypeAlias = Callable[[Body, Incoming], Call]
RenderModels: TypeAlias = Callable[[ModelList], Rendered]


class Routes:
    """Collects a product's routes in the order of their declaration; `tuple(ROUTES)` goes into its `Dialect`.

    `@ROUTES.post(...)` decorates the function that parses a decoded body into a `Call`. Stack decorators for routes
    that differ in `one_of` only. `@ROUTES.get(...)` decorates the function that renders the served models; a path with
    {model:path} lists that model alone. products/openai and products/weaviate.py are examples.

    names: canonical fields -> this body's fields. They apply to every error of the call, also to those that the parser
    raises. So parsers, and the readers of products/common, raise templates with canonical names:
    `InvalidField("{field} must be ...", field="dimensions")`. Names that depend on the body go into `Call(names=...)`.
    """

    def __init__(self, names: Names = NO_NAMES) -> None:
        """names: of all routes."""
        self._names = names
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def add(self, method: str, *paths: str, **facts: Any) -> None:
        """Adds a route for each path. facts: the other fields of Route."""
        self._routes += [Route(method=method, path=path, **facts) for path in paths]

    def post(
        self,
        *paths: str,
        computes: Operation | None = "embed",
        one_of: Iterable[str] = (),
        names: Names = NO_NAMES,
        **facts: Any,
    ) -> Callable[[BodyParser[Body]], BodyParser[Body]]:
        """Adds a route for each path. The type of the parser's first parameter, `body`, is that of its bodies."""

        def declare(parser: BodyParser[Body]) -> BodyParser[Body]:
            body: type[Body] = get_type_hints(parser)["body"]
            parse = _parse_with(parser, body, {**self._names, **names})
            self.add("POST", *paths, parse=parse, body=body, computes=computes, one_of=frozenset(one_of), **facts)
            return parser

        return declare

    def get(
        self, *paths: str, public: bool = False, probe: bool = False, **facts: Any
    ) -> Callable[[RenderModels], RenderModels]:
        """Adds a route for each path, with a renderer of the served models. A probe is public."""

        def declare(render: RenderModels) -> RenderModels:
            def parse(incoming: Incoming) -> Call:
                return Call(ListModels(model=incoming.path.get("model")), render)

            self.add("GET", *paths, parse=parse, public=public or probe, probe=probe, **facts)
            return render

        return declare


def _parse_with(parser: BodyParser[Body], body: type[Body], names: Names) -> Parse:
    """A parser of requests: decodes their bodies, refuses fields, reads switches, and calls `parser`."""

    @cache  # with the first request: all routes together take 0.1 s
    def read_declarations() -> tuple[msgspec.json.Decoder[Body], Sequence[RefusedField], Sequence[str]]:
        return msgspec.json.Decoder(body), refusals_of(body), switches_of(body)

    def parse(incoming: Incoming) -> Call:
        decoder, refusals, switches = read_declarations()
        try:
            decoded = decoder.decode(incoming.body)
        except DECODE_ERRORS as error:
            raise fault_of(error, incoming.body, body) from None
        for refusal in refusals:
            value: Any = decoded
            for name in refusal.path:
                value = getattr(value, name, None)
            if value is not None and value not in refusal.harmless:
                raise refusal.error
        try:
            for name in switches:
                if isinstance(word := getattr(decoded, name), str):
                    setattr(decoded, name, read_switch(word, name))
            call = parser(decoded, incoming)
        except VectordError as error:
            raise error.named(names) from error.__cause__
        return replace(call, names={**names, **call.names}) if names else call

    return parse


class Rate(msgspec.Struct, frozen=True):
    """A client's request rate: `amount` in each `period_s` (1 or 60) on average, `burst` at once."""

    amount: int
    period_s: int
    burst: int
    per_key: bool = False  # count requests by key; False: by address


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """A product's API."""

    name: str
    title: str
    routes: tuple[Route, ...]
    render_error: RenderError
    batch_routes: tuple[Route, ...] = ()  # further routes of a server that stores files and batches
    rate: Rate | None = None  # the product's own limit, on its own routes
    requires_scheme: bool = False  # under its profile `Authorization: KEY`, without the word Bearer, is refused
    prefix: str | None = None  # errors of unserved paths below it have this product's form
    aliases: tuple[str, ...] = ()  # other prefixes of the paths below `prefix`, of every product
    # The rest applies only while the server imitates this product (`ServerConfig.imitates`).
    health: HealthKeys | None = None  # keys that /health also has, some in place of vectord's own
    ready_lines: Callable[[Sequence[ModelInfo]], Sequence[str]] | None = None  # logged once models answer
    log_events: Mapping[str, str] = {}  # its names of "settings" and "warmup" in the log
    # Further fields of "settings". Takes the settings of each section by name, and the models in their order.
    logged_settings: Callable[[Mapping[str, Mapping[str, Any]], Sequence[str]], Mapping[str, object]] | None = None
    metrics: Callable[[Mapping[str, Any]], MetricFamilies] | None = None  # takes the settings of [model] by name
    figures_path: str | None = None  # of a page that needs no key and shows the figures of `metrics`
    rank: int | None = None  # in /docs, which opens ranked products and collapses the others

    @property
    def place(self) -> tuple[bool, int]:
        """The sort key of the products in /docs and the console: those without a rank are last."""
        return self.rank is None, self.rank or 0


# --- the products by name -------------------------------------------------------------------------------------


def load_dialects(names: Sequence[str]) -> list[Dialect]:
    """The dialects of these names, in this order; without names, all of them in ORDER.

    Raises ConfigError, which lists all names, for an unknown name.
    """
    if unknown := [name for name in names if name not in ORDER]:
        known = ", ".join(sorted(ORDER))
        raise ConfigError(f"There is no dialect {unknown[0]!r}; there are: {known}.", field="dialects")
    return [import_module(f"vectord.products.{name}").DIALECT for name in names or ORDER]


def find_dialect(dialects: Iterable[Dialect], name: str | None) -> Dialect | None:
    return next((dialect for dialect in dialects if dialect.name == name), None)
