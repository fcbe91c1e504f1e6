"""Every domain error has a rendering in every dialect, and no parse lets anything else out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dialects.results import incoming

from vectord.dialects import openai, plain, tei_errors, vectord_errors
from vectord.dialects.folder import dialect_names, load_dialects
from vectord.errors import MethodNotAllowed, Overloaded, StartError, VectordError

DIALECTS = load_dialects(dialect_names())
RENDERERS = {
    "plain": plain.render_error,
    **{dialect.name: dialect.render_error for dialect in DIALECTS},
    **{
        f"{dialect.name} {route.path}": route.render_error
        for dialect in DIALECTS
        for route in dialect.routes
        if route.render_error is not None
    },
}
MESSAGE = "What went wrong."


def subclasses(kind: type[VectordError]) -> set[type[VectordError]]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


def instance(kind: type[VectordError]) -> VectordError:
    if issubclass(kind, MethodNotAllowed):
        return kind(MESSAGE, allowed=("GET", "POST"))
    if issubclass(kind, Overloaded):
        return kind(MESSAGE, retry_after_s=2.0)
    return kind(MESSAGE)


KINDS = sorted(subclasses(VectordError), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("renderer", RENDERERS)
def test_every_error_has_an_answer(renderer, kind):
    """4xx or 5xx, and JSON objects but where TEI has plain text or nothing."""
    rendered = RENDERERS[renderer](instance(kind))
    assert 400 <= rendered.status < 600
    if rendered.content_type == "application/json" and rendered.body:
        assert isinstance(json.loads(rendered.body), dict)
    else:
        assert renderer.startswith("tei")


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(set(openai.ERRORS), id="openai"),
        pytest.param({*tei_errors.ERRORS, *tei_errors.TEXT_ERRORS, *tei_errors.BARE_STATUS}, id="tei"),
        pytest.param(set(vectord_errors.ERRORS), id="vectord"),
        pytest.param(set(plain.ERRORS), id="plain"),
    ],
)
def test_the_tables_are_whole(table):
    """Whoever adds an error decides what each dialect says; errors of the start never meet a client."""
    assert table == subclasses(VectordError) - subclasses(StartError)


@pytest.mark.parametrize("renderer", RENDERERS)
def test_what_http_asks_for_stands_in_the_headers(renderer):
    """Allow beside 405, Retry-After beside 429."""
    wrong_method = RENDERERS[renderer](instance(MethodNotAllowed))
    assert (wrong_method.status, wrong_method.headers["allow"]) == (405, "GET, POST")
    busy = RENDERERS[renderer](instance(Overloaded))
    assert (busy.status, busy.headers["retry-after"]) == (429, "2")


def test_the_plain_shape_has_everyones_keys():
    """Before a dialect is chosen the message is under each key that some client reads."""
    rendered = plain.render_error(VectordError(MESSAGE))
    assert json.loads(rendered.body) == {
        "detail": MESSAGE,
        "error": MESSAGE,
        "error_type": "Backend",
        "message": MESSAGE,
    }


MARK = "zq"  # in every string a client sends below, and in none of our words
KEYS = [
    *("input", "inputs", "ids", "text", "source_sentence", "sentences", "parameters"),
    *("model", "encoding_format", "dimensions", "normalized", "normalize", "prompt_name", "user"),
    *("truncate", "truncation", "truncation_direction", "add_special_tokens", "skip_special_tokens"),
    *("task", "input_type", "expect_fingerprint", "query", "texts", "raw_scores", "return_text", "raw", "late", "mean"),
    *("outputs", "precisions", "encoding", "kind", "prompt", "truncate_side", "force_dimensions", "instruction"),
    *("passages", "method", "weights", "scores", "chunk", "top_n", "return_passages", "documents", "source"),
    *("max_tokens", "by", "overlap_tokens", "dense", "sparse", "colbert"),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4).map(lambda text: MARK + text),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)
POSTS = [
    pytest.param(dialect, route, id=f"{dialect.name} {route.path}")
    for dialect in DIALECTS
    for route in dialect.routes
    if route.body is not None
]


@pytest.mark.parametrize(("dialect", "route"), POSTS)
def test_any_json_is_a_request_or_a_domain_error(dialect, route):
    """No parse raises anything but domain errors; none of them holds a client's string, and none is a 5xx."""
    render_error = route.render_error or dialect.render_error

    @settings(max_examples=100, deadline=None)
    @given(
        st.fixed_dictionaries(dict.fromkeys(route.keys, VALUES)),
        st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3),
    )
    def check(body, options):
        try:
            route.parse(incoming(options | body))
        except VectordError as error:
            rendered = render_error(error)
            assert rendered.status in (400, 422)
            assert MARK.encode() not in rendered.body

    check()
