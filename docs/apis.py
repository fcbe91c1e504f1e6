"""Generates docs/apis.md, and a page for each product in docs/apis/, from their route tables. generate.py calls it."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, groupby
from pathlib import Path
from typing import cast

from docs.shapes import Row, rows

from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.observability.metrics import Metrics
from vectord.products.common.dialect import Dialect, Route, load_dialects
from vectord.server.http.app import build_table
from vectord.server.http.routing import Endpoint, Table
from vectord.server.pipeline import Shutdown

CLIENTS = Path(__file__).parent / "clients.toml"
PLAIN = re.compile(
    r"(?:any|object|string|boolean|number|integer|or|>= [01]|[^\w>])+"
)  # a type without words and limits
IN_PRODUCTS = 3  # products whose pages only name a field that docs/apis.md describes

PRODUCTS = {
    "cohere": "Cohere's API, v1 and v2: embed, rerank, tokenize, detokenize.",
    "embedding_server": "The Rust embedding server with `/api/v1/embed`: TEI's body, OpenAI's `data` and `usage`.",
    "google": "Google's embedding API for Gemini: `embedContent`, `batchEmbedContents`, `countTokens`, models.",
    "infinity": "infinity (michaelfeil/infinity): embeddings, rerank, classify, with `/v1` and without.",
    "jina": "Jina's API: embeddings with late chunking, token vectors, rerank. Also Xinference's rerank.",
    "llamacpp": "llama.cpp's server: its native routes, and OpenAI's routes with its response format.",
    "ollama": "Ollama: its embedding routes and its model lists.",
    "openai": "OpenAI's embeddings and models, with fields of NVIDIA's, Mixedbread's and Mistral's clients.",
    "semantic_explorer": "Semantic Explorer's embedding-inference-api; under `/api/`, the routes of its source. "
    "A `model` that is not served is rejected instead of being downloaded: models are configured at start "
    "(`--models`), and with `--model-loading first-use` each loads on its first request.",
    "simple_inference_server": "Simple Inference Server: OpenAI's embeddings with its limits, and its rerank.",
    "smart_embedder": "Smart Embedder 1.2: three vectors of BGE-M3 at once, rerank, and warnings for truncated texts.",
    "tei": "text-embeddings-inference 1.9: its own routes, and OpenAI's routes with its response format.",
    "vectord": "vectord's own API, which covers all features.",
    "vllm": "vLLM's pooling models: embeddings, pooling, score, rerank, classify, tokenize.",
    "voyage": "Voyage's API: embeddings, contextualized chunks, rerank.",
    "weaviate": "The inference containers of Weaviate's modules text2vec-transformers and reranker-transformers.",
    "nvidia": "The reranking route of NVIDIA's inference microservices. Their embeddings route is OpenAI's.",
    "mixedbread": "Mixedbread's reranking route. Its embeddings route is OpenAI's.",
}


COMMON_FIELDS = "../apis.md#common-fields"
OWN = "vectord"  # docs/api.md describes it, written by hand


_NO_ENGINE = cast(EngineClient, None)  # the pages use the engine only when they are requested


@cache
def _served() -> tuple[Mapping[str, Dialect], Table]:
    """The products by name, in the default order, and the table of all routes."""
    dialects = load_dialects(ServerConfig().dialects)
    table = build_table(_NO_ENGINE, dialects, Shutdown(), Metrics("0"))
    return {dialect.name: dialect for dialect in dialects}, table


def apis() -> str:
    """The page about all APIs."""
    dialects, table = _served()
    parts = [_head(), _common_fields(), _products(dialects.values()), _shared(table), _clients(), _own(table)]
    return "\n".join(chain.from_iterable(parts)) + "\n"


def product(name: str) -> str:
    """The page of one product."""
    dialects, table = _served()
    return "\n".join(_dialect(dialects[name], table)) + "\n"


def _head() -> list[str]:
    return [
        "# The APIs",
        "",
        "`make format` generates this page and those of the products. `/docs` and `/openapi.json` on a running server",
        "describe the same routes with all types and with examples.",
        "",
        "All APIs are served at once, on one port, with and without a slash at the end of a path. On a path that",
        "several products share, their order and the keys of the body decide ([below](#shared-paths)). The prefix",
        "`/dialects/NAME/` selects a product explicitly: `/dialects/tei/embed`. The setting `dialects` and the",
        "profiles ([migrating](migrating/index.md)) change the served products and their order.",
        "[api.md](api.md#headers) describes the headers of all responses, and vectors as bytes.",
        "",
        "LiteLLM's provider `infinity/` and infinity_client send paths without `/v1`. Their embeddings work under any",
        "profile; for other routes, use `--profile infinity` or the base URL `http://HOST:PORT/dialects/infinity`.",
        "",
        "In bodies, null equals an absent field, and keys that are not listed are ignored. Fields that contradict each",
        "other, such as two names of one option with different values, are refused. Without `model`, the first",
        "served model that supports the operation answers; one that failed to load does not count. `model` selects the",
        "model on every route, also where the product has no such field. A name that is not served gets 404, or the",
        "product's status for it. TEI, Embedding Server, Smart Embedder, Weaviate's containers, llama.cpp and infinity",
        "serve one model: their routes accept any name while one model is served, and those of the first three also",
        "under the product's profile. TEI's gRPC API has no such field: the first suitable model answers.",
        "",
        "The pages describe fields whose values have limits or whose meaning is not obvious, and name the others.",
        "Those have the meaning of the product, or of the next section. Of the fields of objects, the pages have",
        "those with an effect; fields for audio and video are refused, and those for images unless the model reads",
        "images. An image is a data URI, base64 or, with `allow_media_urls`, a URL; in an object, under `image`,",
        "`url`, `bytes`, `image_url` or `image_base64`.",
    ]


@cache
def _common() -> frozenset[Row]:
    """The fields with a meaning that at least IN_PRODUCTS products share."""
    dialects, _ = _served()
    counts = Counter(
        row
        for dialect in dialects.values()
        if dialect.name != OWN
        for row in {row for route in dialect.routes if route.body is not None for row in rows(route.body)}
        if row.meaning
    )
    common = [row for row, count in counts.items() if count >= IN_PRODUCTS]
    names = Counter(row.name for row in common)
    return frozenset(row for row in common if names[row.name] == 1)


@cache
def of_reranking() -> frozenset[str]:
    """The fields that every route has that reranks."""
    dialects, _ = _served()
    common = {row.name for row in _common()}
    for dialect in dialects.values():
        for route in dialect.routes:
            if dialect.name != OWN and route.computes == "rerank" and route.body is not None:
                common &= {row.name for row in rows(route.body)}
    return frozenset(common)


def _common_fields() -> list[str]:
    """The section on fields that several products share; their pages only name them."""
    ordered = sorted(filter(_has_effect, _common()), key=lambda row: (_about_field(row), row.name))
    everywhere = [row for row in ordered if row.name in of_reranking()]
    return [
        "",
        "## Common fields",
        "",
        *_field_items(row for row in ordered if row not in everywhere),
        "",
        "Every route that reranks has these fields too, which the pages do not name:",
        "",
        *_field_items(everywhere),
    ]


def _products(dialects: Iterable[Dialect]) -> list[str]:
    ranked = sorted(dialects, key=lambda each: (each.rank is None, each.rank or 0, each.title.lower()))
    lines = [
        f"- [{each.title}]({'api.md' if each.name == OWN else f'apis/{each.name}.md'}): `{each.name}`"
        for each in ranked
    ]
    return [
        "",
        "## Products",
        "",
        "The second name is that for `dialects`.",
        "",
        *lines,
    ]


# --- who answers ----------------------------------------------------------------------------------------------


def _shared(table: Table) -> list[str]:
    """The section on shared paths: the required keys on each path."""
    shared = [endpoint for endpoint in table if len({choice.dialect.name for choice in endpoint.choices}) > 1]
    rules: dict[tuple[str, ...], list[str]] = {}
    for endpoint in shared:
        rules.setdefault(tuple(_rules(endpoint)), []).append(endpoint.path)
    return [
        "",
        "## Shared paths",
        "",
        "The order of the setting `dialects` decides (under a profile, its product comes first): the first product",
        "whose required keys are in the body and that knows every other key answers. If no product knows every key,",
        "the first one with its required keys refuses the first key that it does not know. If none has its required",
        "keys, the path's first product reports what is missing. Keys that no product on the path has, or that have no",
        "effect in any of them, are disregarded.",
        "",
        "So `/v1/embeddings` with `input` and `model` gets OpenAI's response, with `task` as well Jina's, and with",
        "`task` and `output_dtype`, which no product has together, an error. Bodies that several products accept get",
        "the response of the first one: `/rerank` with `query` and `documents` Jina's, `/classify` with `input`",
        "vLLM's. For another product's response, start the server with its profile, or use the product's prefix.",
        "",
        "| path | required keys and products |",
        "|---|---|",
        *(_cells(_listed(paths), "; ".join(rule)) for rule, paths in rules.items()),
    ]


def _rules(endpoint: Endpoint) -> Iterator[str]:
    """The required keys, each with its products in their order."""
    products: dict[str, list[str]] = {}
    for choice in endpoint.choices:
        needed = " and ".join([*(f"`{key}`" for key in sorted(choice.route.required)), *_one_of(choice.route)])
        products.setdefault(needed, []).append(choice.dialect.title)
    return (f"{needed}: {', '.join(titles)}" for needed, titles in products.items())


def _one_of(route: Route) -> Iterator[str]:
    if route.one_of:
        yield _either(route.one_of)


def _clients() -> list[str]:
    tried: dict[str, list[str]] = {}
    for each in tomllib.loads(CLIENTS.read_text("utf-8"))["client"]:
        tried.setdefault(each["client"], []).append(each["version"])
    packages = [client.rpartition(": ")[2] for client, of in tried.items() if any(of)]
    replayed = [client for client, versions in tried.items() if not any(versions)]
    return [
        "",
        "## Tested clients",
        "",
        "These packages ran against a real server, in the versions of `docs/clients.toml`: "
        + ", ".join(packages)
        + ".",
        "",
        f"A test sends the requests of these clients and reads their fields of the responses: {', '.join(replayed)}.",
    ]


# --- one API --------------------------------------------------------------------------------------------------


def _dialect(dialect: Dialect, table: Table) -> list[str]:
    bodies = [rows(route.body) for route in dialect.routes if route.body is not None]
    named = (row.name for row in chain(*bodies) if "." not in row.name and not _is_described(row))
    others = dict.fromkeys(name for name in named if name not in of_reranking())
    lines = [f"# {dialect.title}", "", PRODUCTS[dialect.name]]
    if others:
        lines += ["", f"[The product's fields]({COMMON_FIELDS}): {_listed(others)}."]
    described: set[Row | str] = set()
    rest = []
    for routes in _alike(dialect.routes):
        paths, about = _paths(routes), " ".join(_about(routes, table))
        if body := _body(routes[0], described):
            lines += ["", f"## {paths}", "", about, *body]
        else:
            rest.append(f"- {paths}: {about}")
    return [*lines, *(["", "## Further routes", "", *rest] if rest else ())]


def _paths(routes: Sequence[Route]) -> str:
    return f"{routes[0].method} {', '.join(_plain(route.path) for route in routes)}"


def _alike(routes: Iterable[Route]) -> Iterable[Sequence[Route]]:
    """Groups the routes that differ only in their paths."""
    groups: dict[tuple[object, ...], list[Route]] = {}
    for route in routes:
        about = (route.method, route.summary, route.body, str(route.answer), route.one_of)
        groups.setdefault(about, []).append(route)
    return groups.values()


def _about(routes: Sequence[Route], table: Table) -> Iterator[str]:
    """Sentences: the summary, the selecting keys, the required key, and the default product of its paths."""
    first = routes[0]
    yield f"{first.summary}."
    if first.admin:
        yield "Requires the admin key."
    if first.public:
        yield "Requires no key."
    elsewhere: dict[str, list[str]] = {}
    for route in routes:
        if (other := _other(route, table)) is not None:
            elsewhere.setdefault(other, []).append(_plain(route.path))
    for other, paths in elsewhere.items():
        yield f"By default, {other} answers on {_listed(paths)}."


def _other(route: Route, table: Table) -> str | None:
    """The product that answers the example by default, or None if it is this one. The prefix selects this one."""
    endpoint = table.find(route.method, route.path).endpoint
    if endpoint.page is not None:
        return "a page of the server"
    chosen = endpoint.choose(json.dumps(route.example).encode())
    return None if chosen.route is route else chosen.dialect.title


def _body(route: Route, described: set[Row | str]) -> list[str]:
    """The fields of a body that have more to say than their names, and its notes, unless an earlier route has them."""
    if route.body is None:
        return []
    new = [row for row in _required_first(rows(route.body)) if row not in described and _is_described(row)]
    notes = " ".join((route.body.__doc__ or "").split())
    note = [notes] if notes and notes not in described else []
    described.update(new, note)
    return [*(["", *_field_items(new)] if new else ()), *(["", *note] if note else ())]


def _is_described(row: Row) -> bool:
    return bool(_about_field(row)) and row not in _common() and _has_effect(row)


def _has_effect(row: Row) -> bool:
    """Whether the page describes the row: a field of an object that is refused, has no effect, or is an image (which
    the page of all APIs describes) is left out."""
    return "." not in row.name or not row.meaning.startswith(("no effect", "refused:", "an image: a data URI"))


def _field_items(fields: Iterable[Row]) -> Iterator[str]:
    """An item for each field, or for neighbours with one meaning."""
    for about, group in groupby(fields, _about_field):
        yield f"- {_listed(row.name for row in group)}: {' '.join(about.split())}"


def _about_field(row: Row) -> str:
    """What the page says of a field: its type unless it is a plain one, its default, and its meaning."""
    kind = "" if PLAIN.fullmatch(row.kind) else row.kind
    default = f"default `{row.default}`" if row.default not in ("", "required", "false", "[]", "{}") else ""
    return "; ".join(filter(None, (kind, default, row.meaning)))


def _required_first(fields: Sequence[Row]) -> Sequence[Row]:
    """Required fields first, each followed by the fields of its object."""
    required = {row.name for row in fields if row.default == "required"}
    return sorted(fields, key=lambda row: re.split(r"[.\[]", row.name)[0] not in required)


# --- the server itself ----------------------------------------------------------------------------------------


def _own(table: Table) -> list[str]:
    paths = [endpoint.path for endpoint in table if endpoint.page is not None and endpoint.page.summary]
    return [
        "",
        "## Pages of the server",
        "",
        f"Pages with GET: {_listed(paths)}. They require no key, except `/metrics` with the setting `metrics_key`.",
        "[operations.md](operations.md#probes) describes the probes.",
    ]


# --- text -----------------------------------------------------------------------------------------------------


def _plain(path: str) -> str:
    return path.replace(":path}", "}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _either(keys: Iterable[str]) -> str:
    names = sorted(keys)
    return f"{_listed(names[:-1])} or `{names[-1]}`" if names[1:] else _listed(names)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
