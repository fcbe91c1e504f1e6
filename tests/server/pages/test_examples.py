"""The console's list of examples."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import orjson
from tests.dialects import all_dialects
from tests.server.fakes import FakeEngine

from vectord.products.common.dialect import Incoming
from vectord.schema import EmbedRequest, RerankRequest, TokenizeRequest
from vectord.server.http.app import build_table
from vectord.server.pages.examples import examples
from vectord.server.pipeline import Shutdown

DIALECTS = all_dialects()
TABLE = build_table(FakeEngine(), DIALECTS, Shutdown(), None)
CALLS = examples(DIALECTS, TABLE)


def test_a_form_means_the_same_in_every_api() -> None:
    """The parsed request has the texts, the truncation and the kind that the console puts into its body."""
    assert len({entry["label"].split(": ")[0] for entry in CALLS}) > 12
    for form in CALLS:
        name = form["label"]
        for truncate, cut in form["truncate"]:
            for kind, use in form["kind"]:
                body = deepcopy(form["body"]) | cut | use
                texts = _put(body, form["places"]["texts"], ["first", "second"])
                if "query" in form["places"]:
                    _put(body, form["places"]["query"], ["asked"])
                encoded = orjson.dumps(body)
                choice = TABLE.find("POST", form["path"]).endpoint.choose(encoded)
                assert choice.dialect.title == name.split(": ")[0]
                match choice.route.parse(Incoming(body=encoded)).request:
                    case EmbedRequest() as request:
                        assert list(request.inputs) == texts, name
                        assert (request.text.truncate, request.text.kind) == (truncate, kind), name
                        assert (request.normalize, request.dimensions, request.precisions) == (True, None, ("float",))
                    case RerankRequest() as request:
                        assert (request.query, list(request.passages)) == ("asked", texts), name
                        assert (request.text.truncate, request.raw) == (truncate, form["raw"]), name
                    case request:
                        assert isinstance(request, TokenizeRequest)
                        assert list(request.inputs) == texts, name


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
