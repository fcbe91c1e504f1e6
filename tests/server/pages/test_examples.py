"""The console's list of examples."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import orjson
from tests.dialects import all_dialects
from tests.server.fakes import FakeEngine

from vectord.products.common.dialect import Incoming
from vectord.schema import EmbedRequest, RerankRequest
from vectord.server.http.app import build_table
from vectord.server.pages.examples import examples
from vectord.server.pipeline import Shutdown

DIALECTS = all_dialects()
TABLE = build_table(FakeEngine(), DIALECTS, Shutdown(), None)
CALLS = examples(DIALECTS, TABLE)


def name(entry: dict[str, Any]) -> str:
    return f"{entry['dialect']} {entry['method']} {entry['path']}"


def test_every_product_has_examples() -> None:
    """Without admin routes and without placeholders."""
    assert {entry["dialect"] for entry in CALLS} == {one.name for one in all_dialects()}
    assert not [name(entry) for entry in CALLS if "{" in entry["path"] or "load" in entry["path"].split("/")]


def test_vectord_openai_and_tei_come_first() -> None:
    """As in /docs; the other products follow by title."""
    titles = list(dict.fromkeys(entry["title"] for entry in CALLS))
    assert titles[:3] == ["vectord", "OpenAI", "text-embeddings-inference"]
    assert titles[3:] == sorted(titles[3:], key=str.lower)


def test_each_path_is_answered_by_its_product() -> None:
    """With the example's body."""
    for entry in CALLS:
        body = b"" if entry["body"] is None else orjson.dumps(entry["body"])
        assert TABLE.find(entry["method"], entry["path"]).endpoint.choose(body).dialect.name == entry["dialect"], name(
            entry
        )


def test_texts_put_at_their_places_are_parsed() -> None:
    """One text if the example has one, two if it has a list."""
    for entry in [entry for entry in CALLS if entry.get("operation") in ("embed", "rerank")]:
        places, example = entry["places"], deepcopy(entry["body"])  # the original is the route's own example
        texts = _put(example, places["texts"], ["first", "second"])
        if "query" in places:
            _put(example, places["query"], ["asked"])
        body = orjson.dumps(example)
        choice = TABLE.find(entry["method"], entry["path"]).endpoint.choose(body)
        request = choice.route.parse(Incoming(body=body)).request
        if isinstance(request, EmbedRequest):
            assert list(request.inputs) == texts, name(entry)
        else:
            assert isinstance(request, RerankRequest), name(entry)
            assert (request.query, list(request.passages)) == ("asked", texts), name(entry)


def _put(body: Any, place: list[str], texts: list[str]) -> list[str]:
    """Writes into `body` as code.js does; returns the texts used."""
    above = body
    for key in place[:-1]:
        above = above[key]
    old = above[place[-1]]
    if not isinstance(old, list):
        above[place[-1]] = texts[0]
        return texts[:1]
    above[place[-1]] = [{"text": text} for text in texts] if isinstance(old[0], dict) else texts
    return texts
