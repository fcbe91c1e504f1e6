"""embedding_server: TEI's request, OpenAI's answer with Rust's durations, and its document's statuses."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.products.results import embed_result, incoming, model_list, parsers, usage

from vectord import errors
from vectord.errors import EmptyInput, InvalidField, WrongType
from vectord.products.common.dialect import Incoming
from vectord.products.common.models import Info
from vectord.products.embedding_server import DIALECT, EmbedAnswer, render_embed, render_error, rust_duration
from vectord.schema import EmbedRequest, ListModels, TextOptions

parse_embed = parsers(DIALECT)["/embed"]
REJECTS = TextOptions(own_ids=True)  # over-long texts, by default

# --- requests -------------------------------------------------------------------------------------------------


def test_the_documents_single_input():
    """The document's first curl, key by key."""
    body = {
        "inputs": "Hello world",
        "truncate": True,
        "truncation_direction": "Right",
        "prompt_name": None,
        "normalize": True,
        "dimensions": None,
    }
    assert parse_embed(incoming(body)).request == EmbedRequest(
        inputs=("Hello world",), text=TextOptions(truncate=True, own_ids=True)
    )


def test_the_documents_batch():
    """The document's second curl."""
    body = {"inputs": ["First document", "Second document"], "truncate": True}
    assert parse_embed(incoming(body)).request == EmbedRequest(
        inputs=["First document", "Second document"], text=TextOptions(truncate=True, own_ids=True), waits=True
    )


@pytest.mark.parametrize(
    ("inputs", "waits"),
    [
        pytest.param("a", False, id="one text"),
        pytest.param([101, 102], False, id="one list of ids"),
        pytest.param(["a"], True, id="a batch of one"),
        pytest.param([[101], [102]], True, id="a batch of ids"),
    ],
)
def test_a_batch_waits_where_a_single_input_is_rejected(inputs, waits):
    """On a full server, as in the product."""
    assert parse_embed(incoming({"inputs": inputs})).request.waits is waits


def test_every_option_has_its_canonical_field():
    """Each with a value other than its default."""
    body = {
        "inputs": ["a", [101, 102]],
        "truncate": False,
        "truncation_direction": "Left",
        "prompt_name": "query",
        "normalize": False,
        "dimensions": 64,
        "force_dimensions": True,
    }
    assert parse_embed(incoming(body)).request == EmbedRequest(
        inputs=["a", [101, 102]],
        text=TextOptions(truncate=False, truncate_side="left", prompt_name="query", own_ids=True),
        normalize=False,
        dimensions=64,
        force_dimensions=True,
        waits=True,
    )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="absent"),
        pytest.param(
            dict.fromkeys(("truncate", "truncation_direction", "prompt_name", "normalize", "dimensions")), id="null"
        ),
        pytest.param({"input": "y", "extra": {}}, id="unknown"),
    ],
)
def test_null_options_are_ignored(options):
    """Unit vectors of full width, without truncation: the document's AUTO_TRUNCATE is off."""
    assert parse_embed(incoming({"inputs": "a"} | options)).request == EmbedRequest(inputs=("a",), text=REJECTS)


@pytest.mark.parametrize("direction", ["Left", "left", "LEFT"])
def test_truncation_direction_ignores_case(direction):
    """Later versions of TEI use lower case."""
    request = parse_embed(incoming({"inputs": "a", "truncation_direction": direction})).request
    assert request.text.truncate_side == "left"


@pytest.mark.parametrize(
    ("body", "kind", "field"),
    [
        pytest.param(
            {"inputs": "a", "truncation_direction": "up"}, InvalidField, "truncation_direction", id="direction"
        ),
        pytest.param({"inputs": []}, EmptyInput, "inputs", id="empty batch"),
        pytest.param({"inputs": ["a", ""]}, EmptyInput, "inputs", id="empty text"),
        pytest.param({"inputs": [1, "a"]}, InvalidField, "inputs", id="ids among texts"),
        pytest.param({"inputs": "a", "dimensions": -1}, WrongType, "dimensions", id="negative width"),
        pytest.param({}, WrongType, "inputs", id="no inputs"),
    ],
)
def test_invalid_bodies_are_rejected(body, kind, field):
    """The error names the field."""
    with pytest.raises(kind) as refused:
        parse_embed(incoming(body))
    assert refused.value.field == field


# --- answers --------------------------------------------------------------------------------------------------


def test_the_documents_answer():
    """data, usage and timings, with OpenAI's keys, TEI's headers and the truncated inputs."""
    rendered = render_embed(embed_result())
    assert rendered.status == 200
    assert rendered.body.decode() == (
        '{"object":"list","data":['
        '{"object":"embedding","index":0,"embedding":[0.1,-0.2,0.33333334]},'
        '{"object":"embedding","index":1,"embedding":[1e-45,3.4028235e+38,-0.0]}],'
        '"model":"served","usage":{"prompt_tokens":7,"total_tokens":7,"truncated_inputs":[1]},'
        '"timings":{"tokenization":"1.9ms","queue":"2.9999ms","inference":"35.1ms"}}'
    )
    assert rendered.headers["x-compute-tokens"] == "7"
    assert rendered.headers["x-inference-time"] == "35"


def test_the_description_of_the_answer_is_complete():
    """OpenAPI shows the keys of the answer, and no other."""
    for used in (usage(), usage([(3, 3), (4, 4)])):
        body = render_embed(embed_result(used=used)).body
        assert msgspec.to_builtins(msgspec.json.decode(body, type=EmbedAnswer)) == json.loads(body)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(0.0, "0ns", id="none"),
        pytest.param(4e-10, "0ns", id="less than half a nanosecond"),
        pytest.param(950e-9, "950ns", id="nanoseconds"),
        pytest.param(1e-6, "1µs", id="one microsecond"),
        pytest.param(120e-6, "120µs", id="microseconds"),
        pytest.param(1.5e-6, "1.5µs", id="a fraction of them"),
        pytest.param(0.000999999, "999.999µs", id="just below a millisecond"),
        pytest.param(0.0009999996, "1ms", id="rounded up to one"),
        pytest.param(2e-3, "2ms", id="milliseconds"),
        pytest.param(0.0100205, "10.0205ms", id="zeros within"),
        pytest.param(1.0, "1s", id="one second"),
        pytest.param(2.000001, "2.000001s", id="seconds"),
        pytest.param(86400.5, "86400.5s", id="a day"),
    ],
)
def test_durations_have_rusts_form(seconds, text):
    """The largest unit below the duration, all digits but trailing zeros, and the micro sign U+00B5."""
    assert rust_duration(seconds) == text


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "status", "error_type"),
    [
        pytest.param(errors.TooManyInputs, 413, "Validation", id="batch size"),
        pytest.param(errors.EmptyInput, 400, "Empty", id="empty batch"),
        pytest.param(errors.Untokenizable, 422, "Tokenizer", id="tokenizer"),
        pytest.param(errors.InputTooLong, 422, "Validation", id="too long"),
        pytest.param(errors.InvalidField, 422, "Validation", id="field"),
        pytest.param(errors.MalformedBody, 400, "Validation", id="not JSON"),
        pytest.param(errors.InferenceFailed, 500, "Backend", id="inference"),
        pytest.param(errors.OutOfMemory, 500, "Backend", id="out of memory"),
        pytest.param(errors.Unauthorized, 401, "Unauthorized", id="key"),
    ],
)
def test_the_statuses_of_the_document(kind, status, error_type):
    """Every error has two keys."""
    rendered = render_error(kind("What went wrong."))
    assert rendered.status == status
    shown = json.loads(rendered.body)
    assert (set(shown), shown["error_type"]) == ({"error", "error_type"}, error_type)
    assert shown["error"].endswith("What went wrong.")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(
            errors.InputTooLong("ours", field="inputs", limit=512, given=600),
            "Input validation error: `inputs` must have less than 512 tokens. Given: 600",
            id="too long",
        ),
        pytest.param(
            errors.TooManyInputs("ours", limit=2, given=3),
            "batch size 3 > maximum allowed batch size 2",
            id="batch size",
        ),
    ],
)
def test_limits_have_teis_sentences(error, text):
    """The product is a fork of TEI."""
    assert json.loads(render_error(error).body)["error"] == text


def test_a_full_queue_is_429():
    """With Retry-After."""
    rendered = render_error(errors.Overloaded("The queue is full.", retry_after_s=1.2))
    assert (rendered.status, rendered.headers) == (429, {"retry-after": "2"})
    assert json.loads(rendered.body) == {"error": "Model is overloaded", "error_type": "Overloaded"}


@pytest.mark.parametrize(("setting", "shown"), [(None, False), (True, True), (False, False)])
def test_info_has_the_truncation_of_this_route(setting, shown):
    """TEI's own /info has another default."""
    call = parsers(DIALECT, "GET")["/info"](Incoming())
    assert call.request == ListModels()
    rendered = call.render(model_list(truncates=setting))
    assert msgspec.json.decode(rendered.body, type=Info).auto_truncate is shown


def test_both_routes_of_the_document():
    """The curl's, the feature list's, and TEI's /info; the example is accepted."""
    embeds = [route for route in DIALECT.routes if route.body]
    assert [(route.method, route.path) for route in embeds] == [("POST", "/api/v1/embed"), ("POST", "/embed")]
    assert [route.path for route in DIALECT.routes if not route.body] == ["/info"]
    for route in embeds:
        assert isinstance(route.parse(incoming(route.example)).request, EmbedRequest)
