"""docs/apis.md: every route of every dialect, from the tables that serve them. Called by generate.py."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import cast

import msgspec
from docs.shapes import Row, rows, shape

from vectord.config import DEFAULT_MODEL, ServerConfig
from vectord.engine.client import EngineClient
from vectord.observability.metrics import Metrics
from vectord.products.common.dialect import Dialect, Route, load_dialects
from vectord.server.http.app import build_table
from vectord.server.http.routing import Endpoint, Table
from vectord.server.http.shutdown import Shutdown

CLIENTS = Path(__file__).parent / "clients.toml"
LINE = 120
NEXT = "\n    "  # where a body that is too long for a line is broken: between its fields
MAX_LISTED = 4  # keys named one by one in a table of many

PRODUCTS = {
    "cohere": "Cohere's API, v1 and v2: embed, rerank, tokenize, detokenize.",
    "embedding_server": "The Rust embedding server with `/api/v1/embed`: TEI's body, OpenAI's `data` and `usage`.",
    "infinity": "infinity (michaelfeil/infinity): embeddings, rerank, classify, with `/v1` and without.",
    "jina": "Jina's API: embeddings with late chunking, a vector a token, rerank. Xinference's rerank, too.",
    "llamacpp": "llama.cpp's server: its native routes, and OpenAI's as it answers them.",
    "ollama": "Ollama: what it embeds with, and what tells of models.",
    "openai": "OpenAI's embeddings and models, with the words that Jina, Voyage and vLLM add to them.",
    "semantic_explorer": "Semantic Explorer's embedding-inference-api; under `/api/`, the routes of its source. "
    "A `model` that is not served is refused, not fetched on its first use: models are named at start (`--models`, "
    "`--rerankers`), and with `--model-loading first-use` none of them loads before it is asked for.",
    "simple_inference_server": "Simple Inference Server: OpenAI's embeddings with its guards, and its rerank.",
    "smart_embedder": "Smart Embedder 1.2: three vectors of BGE-M3 at once, rerank, a warning for all that was cut.",
    "tei": "text-embeddings-inference 1.9: its own routes, and OpenAI's as it answers them.",
    "vectord": "Our own API, which can ask for all there is: [api.md](api.md) explains it field by field.",
    "vllm": "vLLM's pooling models: embeddings, pooling, score, rerank, classify, tokenize.",
    "voyage": "Voyage's API: embeddings, contextualized chunks, rerank.",
    "weaviate": "The container that Weaviate's module text2vec-transformers asks.",
}


def apis() -> str:
    """The page."""
    dialects = load_dialects(ServerConfig().dialects)
    table = build_table(_NO_ENGINE, dialects, Shutdown(), Metrics("0"))
    parts = [_head(), _shared(table), _clients(), *(_dialect(dialect, table) for dialect in dialects), _own(table)]
    return "\n".join(chain.from_iterable(parts)) + "\n"


_NO_ENGINE = cast(EngineClient, None)  # the table's pages ask for it only when they are shown


def _head() -> list[str]:
    return [
        "# The APIs",
        "",
        "`make format` writes this page from the tables that serve the routes and the types that read and write them;",
        "tests/docs/test_apis.py sends every example. `/docs` on a running server has the same, to try.",
        "",
        "All APIs are served at once, on one port, with and without a slash at the end of a path. A path that several",
        "speak goes to one of them by the keys of the body, as the next table says. Under `/dialects/NAME/` only that",
        "one answers: `/dialects/tei/embed`. The setting `dialects` and the profiles, in",
        "[configuration.md](configuration.md), change which are served and who comes first. Headers that all answers",
        "have, vectors as bytes among them, are in [api.md](api.md#headers).",
        "",
        "In bodies null is the same as absent, unknown keys are ignored, and a `model` that is not said is the first",
        "served one that can do what is asked. Types are JSON's: `[integer]` is a list of integers, `{string: number}`",
        'an object with any keys, `"float"` that very string; `name?` is left out where there is nothing to say.',
    ]


# --- who answers ----------------------------------------------------------------------------------------------


def _shared(table: Table) -> list[str]:
    """Of every path that several dialects are told apart on, in what order they are."""
    rules: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for endpoint in table:
        if len({choice.dialect.name for choice in endpoint.choices}) > 1:
            rules.setdefault(tuple(_rules(endpoint)), []).append(endpoint.path)
    lines = [
        _cells("" if place else _listed(paths), *rule)
        for rule_set, paths in rules.items()
        for place, rule in enumerate(rule_set)
    ]
    return [
        "",
        "## Who answers on a path that several APIs have",
        "",
        "By default; of a path's lines the first that fits.",
        "",
        "| path | the body has | answers |",
        "|---|---|---|",
        *lines,
    ]


def _rules(endpoint: Endpoint) -> Iterator[tuple[str, str]]:
    """What a body must have, and who answers then; first those who are known by a sign, as Endpoint.choose has it."""
    for choice in endpoint.choices:
        signs, keys = choice.route.signs, choice.route.keys
        if signs:
            needed = "" if signs <= keys else f", beside {_either(keys)}"
            yield _either(signs, MAX_LISTED) + needed, choice.dialect.title
    taken: frozenset[str] = frozenset()
    for choice in endpoint.choices:
        if choice.route.keys - taken:
            yield _either(choice.route.keys - taken), choice.dialect.title
        taken |= choice.route.keys
    yield "none of these", f"{endpoint.choices[0].dialect.title}, with what is missing"


def _clients() -> list[str]:
    clients = tomllib.loads(CLIENTS.read_text("utf-8"))["client"]
    lines = [
        _cells(
            each["client"],
            each["version"],
            each["how"],
            _listed(each["routes"]),
            f"[{Path(each['test']).name}](../{each['test']})",
        )
        for each in clients
    ]
    return [
        "",
        "## Clients that were tried",
        "",
        "`package`: the client itself ran against this server; `replayed`: what its code sends was sent, and what it",
        "reads of the answer was read.",
        "",
        "| client | version | how | routes | by |",
        "|---|---|---|---|---|",
        *lines,
    ]


# --- one API --------------------------------------------------------------------------------------------------


def _dialect(dialect: Dialect, table: Table) -> list[str]:
    lines = ["", f"## {dialect.title} (`{dialect.name}`)", "", PRODUCTS[dialect.name]]
    described: dict[str, str] = {}  # a type, by its name, and the routes where it is written out
    for routes in _alike(dialect.routes):
        first = routes[0]
        title = f"{first.method} {', '.join(_plain(route.path) for route in routes)}"
        lines += ["", f"### {title}", "", " ".join(_about(routes, table))]
        if first.body is not None:
            lines += _once(f"{first.body}", "body", title, described, _body(first.body))
        if first.method == "GET" or first.body is not None:
            prefix = f"/dialects/{dialect.name}" if _other(first, table) else ""
            lines += ["", "```console", _curl(first, prefix), "```"]
        if first.answer is not None:
            lines += _once(f"{first.answer}", "answer", title, described, ["```", shape(first.answer), "```"])
    return lines


def _once(kind: str, name: str, title: str, described: dict[str, str], lines: Sequence[str]) -> list[str]:
    """`lines` about a type, or where in this dialect they are."""
    if described.setdefault(kind, title) != title:
        return ["", f"The {name} is that of {described[kind]}."]
    return ["", *lines] if name == "body" else ["", f"The {name}:", "", *lines]


def _alike(routes: Iterable[Route]) -> Iterable[Sequence[Route]]:
    """Routes that differ by their paths only, together."""
    groups: dict[tuple[object, ...], list[Route]] = {}
    for route in routes:
        about = (route.method, route.summary, route.body, str(route.answer), route.keys, route.signs)
        groups.setdefault(about, []).append(route)
    return groups.values()


def _about(routes: Sequence[Route], table: Table) -> Iterator[str]:
    """Sentences: what it does, by which keys it is known, who may ask, and who answers on its paths by default."""
    first = routes[0]
    yield f"{first.summary}."
    if any(len(table.find(route.method, route.path).endpoint.choices) > 1 for route in routes):
        yield f"Known by {_either(first.keys)}{_before(first)}."
    if first.admin:
        yield "Needs the admin key."
    if first.public:
        yield "Needs no key."
    elsewhere: dict[str, list[str]] = {}
    for route in routes:
        if (other := _other(route, table)) is not None:
            elsewhere.setdefault(other, []).append(_plain(route.path))
    for other, paths in elsewhere.items():
        yield f"By default {other} answers at {_listed(paths)}."


def _before(route: Route) -> str:
    """How it is known before others, whose keys the body has too."""
    if route.signs == route.keys:
        return ", before others"
    return f", and before others by {_either(route.signs)}" if route.signs else ""


def _other(route: Route, table: Table) -> str | None:
    """Who answers the example by default, where that is somebody else. Under its prefix it is the route itself."""
    endpoint = table.find(route.method, route.path).endpoint
    if endpoint.page is not None:
        return "a page of the server"
    chosen = endpoint.choose(json.dumps(route.example).encode())
    return None if chosen.route is route else chosen.dialect.title


def _body(body: type[msgspec.Struct]) -> list[str]:
    told = " ".join((body.__doc__ or "").split())
    return ["| field | type | default | |", "|---|---|---|---|", *map(_row, rows(body)), *(["", told] if told else ())]


def _row(row: Row) -> str:
    default = row.default if row.default in ("", "required") else f"`{row.default}`"
    return _cells(f"`{row.name}`", row.kind, default, row.meaning)


def _curl(route: Route, prefix: str) -> str:
    path = prefix + re.sub(r"\{\w+(:path)?\}", DEFAULT_MODEL, route.path)
    asked = f"$ curl localhost:8000{path}"
    if route.body is None:
        return asked
    short = f"{asked} -d {shlex.quote(json.dumps(route.example))}"
    if len(short) <= LINE:
        return short
    fields = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in route.example.items()]
    return f"{asked} -d {shlex.quote('{' + f',{NEXT}'.join(fields) + '}')}"


# --- the server itself ----------------------------------------------------------------------------------------


def _own(table: Table) -> list[str]:
    pages = [endpoint for endpoint in table if endpoint.page is not None and endpoint.page.summary]
    return [
        "",
        "## The server's own pages",
        "",
        "By GET, without a key.",
        "",
        "| path | |",
        "|---|---|",
        *(_cells(f"`{endpoint.path}`", endpoint.page.summary) for endpoint in pages if endpoint.page),
    ]


# --- words ----------------------------------------------------------------------------------------------------


def _plain(path: str) -> str:
    return path.replace(":path}", "}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _either(keys: Iterable[str], most: int | None = None) -> str:
    """Keys, one of which there must be; of many the first `most`."""
    names = sorted(keys)
    shown = names[:most]
    if left := len(names) - len(shown):
        return f"{_listed(shown)} or one of {left} more"
    return f"{_listed(shown[:-1])} or `{shown[-1]}`" if shown[1:] else _listed(shown)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
