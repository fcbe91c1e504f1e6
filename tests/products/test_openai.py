"""OpenAI's bodies, answers and errors, as its SDKs and other clients send and read them."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.products.results import VECTORS, embed_result, got, incoming, model_list, parsed, route_of, usage

from vectord.errors import (
    EmptyInput,
    FingerprintMismatch,
    ForeignIds,
    InputTooLong,
    InvalidField,
    ModelNotFound,
    NotAcceptable,
    Overloaded,
    TooManyCharacters,
    Unavailable,
    VectordError,
)
from vectord.products.common.dialect import Guards, Incoming, Rendered
from vectord.products.common.vectors import to_base64
from vectord.products.openai import DIALECT, Embeddings, render_error
from vectord.schema import EmbedRequest, EmbedResult, ListModels, TextOptions

PATH = "/v1/embeddings"


def parse(**body: object) -> EmbedRequest:
    request = parsed(DIALECT, PATH, body).request
    assert isinstance(request, EmbedRequest)
    return request


def answered(result: EmbedResult, **body: object) -> Rendered:
    return parsed(DIALECT, PATH, {"input": "a", **body}).answered(result)


def answer(result: EmbedResult, **body: object) -> dict:
    return json.loads(answered(result, **body).body)


def shown(error: VectordError) -> dict:
    return json.loads(render_error(error).body)["error"]


# --- requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        pytest.param("a", ["a"], id="text"),
        pytest.param(["a", "b"], ["a", "b"], id="texts"),
        pytest.param([1, 2], [[1, 2]], id="ids"),
        pytest.param([[1, 2], [3]], [[1, 2], [3]], id="id lists"),
        pytest.param([{"text": "a", "image": None}, "b"], ["a", "b"], id="objects of Jina's clients"),
        pytest.param("", [""], id="langchain's empty text"),
        pytest.param(["", "a"], ["", "a"], id="empty text among texts"),
    ],
)
def test_inputs_are_read_in_order(value, inputs):
    """The SDK's four forms, Jina's objects, and the empty text that LangChain sends."""
    assert list(parse(input=value).inputs) == inputs


def test_a_minimal_body_has_the_defaults():
    """Dify sends one without a model: floats, unit vectors, and the server's truncation."""
    assert parse(input="a") == EmbedRequest(inputs=("a",))


def test_null_is_the_same_as_absent():
    """LiteLLM sends null for unset fields."""
    options = dict.fromkeys(
        (
            "model",
            "encoding_format",
            "dimensions",
            "force_dimensions",
            "user",
            "truncate",
            "truncation",
            "truncate_prompt_tokens",
            "normalized",
            "prompt_name",
            "task",
            "input_type",
            "output_dtype",
            "output_dimension",
            "embedding_type",
            "expect_fingerprint",
            "partial_results",
            "unknown",
        )
    )
    assert parse(input="a", **options) == parse(input="a")


def test_unknown_keys_are_ignored():
    """RAGFlow sends drop_params."""
    assert parse(input="a", drop_params=True, extra={"deep": [1]}) == parse(input="a")


def test_every_option_is_read():
    """Into the canonical request."""
    request = parse(
        input="a",
        model="m",
        dimensions=8,
        force_dimensions=True,
        output_dtype="int8",
        user="u",
        truncate=True,
        truncate_prompt_tokens=64,
        normalized=False,
        prompt_name="query",
        task="retrieval.query",
        expect_fingerprint="0123456789abcdef:8",
        partial_results=True,
    )
    assert request == EmbedRequest(
        inputs=("a",),
        model="m",
        dimensions=8,
        force_dimensions=True,
        precisions=("int8",),
        normalize=False,
        expect_fingerprint="0123456789abcdef:8",
        partial=True,
        text=TextOptions(truncate=True, max_tokens=64, prompt_name="query", kind="query", task="retrieval.query"),
    )


@pytest.mark.parametrize(
    ("body", "truncate"),
    [
        pytest.param({}, None, id="unset"),
        pytest.param({"truncate": True}, True, id="truncate"),
        pytest.param({"truncation": False}, False, id="truncation, as Voyage says"),
        pytest.param({"truncate": "true"}, True, id="string"),
        pytest.param({"truncation": "False"}, False, id="capitalised string"),
    ],
)
def test_truncation_has_two_names(body, truncate):
    """A switch may be a string."""
    assert parse(input="a", **body).text.truncate is truncate


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param({"task": "retrieval.query"}, "query", id="Jina's query"),
        pytest.param({"input_type": "query"}, "query", id="Voyage's query"),
        pytest.param({"task": "text-matching"}, None, id="another task"),
        pytest.param({"task": "text-matching", "input_type": "query"}, "query", id="one of them known"),
        pytest.param({"task": "nl2code.query"}, "query", id="Jina's query for code"),
    ],
)
def test_task_and_input_type_select_the_prompt(body, kind):
    """The task also names an adapter."""
    text = parse(input="a", **body).text
    assert (text.kind, text.task) == (kind, body.get("task"))


@pytest.mark.parametrize(
    ("tokens", "options"),
    [
        pytest.param(-1, TextOptions(truncate=True), id="as many as the model reads"),
        pytest.param(8, TextOptions(truncate=True, max_tokens=8), id="so many"),
    ],
)
def test_truncate_prompt_tokens_truncates(tokens, options):
    """vLLM's option."""
    assert parse(input="a", truncate_prompt_tokens=tokens).text == options


@pytest.mark.parametrize(
    ("body", "dimensions"),
    [
        pytest.param({"dimensions": 0}, None, id="infinity's 0 for all"),
        pytest.param({"output_dimension": 64}, 64, id="Voyage's word"),
        pytest.param({"dimensions": 64, "output_dimension": 64}, 64, id="both"),
        pytest.param({"dimensions": 0, "output_dimension": 64}, 64, id="0 says nothing"),
    ],
)
def test_dimensions_have_two_names(body, dimensions):
    """`dimensions` and Voyage's `output_dimension`."""
    assert parse(input="a", **body).dimensions == dimensions


@pytest.mark.parametrize(
    ("body", "precision"),
    [
        pytest.param({}, "float", id="unset"),
        pytest.param({"output_dtype": "uint8"}, "uint8", id="Voyage's word"),
        pytest.param({"embedding_type": "binary"}, "binary", id="Jina's word"),
        pytest.param({"embedding_type": "base64"}, "float", id="Jina's base64 is of floats"),
        pytest.param({"embedding_type": "base64", "output_dtype": "int8"}, "int8", id="both"),
    ],
)
def test_the_type_of_numbers_has_two_names(body, precision):
    """Voyage's `output_dtype` and Jina's `embedding_type` select one precision."""
    assert parse(input="a", **body).precisions == (precision,)


@pytest.mark.parametrize(
    ("body", "partly"),
    [
        pytest.param({}, False, id="unset"),
        pytest.param({"partial_results": True}, True, id="requested"),
        pytest.param({"partial_results": "false"}, False, id="string"),
    ],
)
def test_partial_results_must_be_requested(body, partly):
    """OpenAI's clients expect no errors inside `data`."""
    assert parse(input="a", **body).partial is partly


def test_token_ids_may_be_of_another_vocabulary():
    """LangChain sends ids of OpenAI's models, so the engine checks them, unless the operator knows better."""
    assert parse(input=[[9906, 1917]]).text.own_ids is False
    assert parsed(DIALECT, PATH, {"input": [[5]]}, guards=Guards(own_ids=True)).request.text.own_ids


def test_a_text_of_too_many_characters_is_rejected():
    """The sentence is Simple Inference Server's. Token ids are not counted."""
    with pytest.raises(TooManyCharacters) as caught:
        parsed(DIALECT, PATH, {"input": ["four", "sixsix"]}, guards=Guards(max_text_chars=5))
    error = caught.value
    assert error.message == "Input at index 1 exceeds max length 5 chars"
    assert (error.field_name, error.index, error.limit, error.given) == ("input", 1, 5, 6)
    assert render_error(error).status == 400
    assert parsed(DIALECT, PATH, {"input": ["fives", [1, 2, 3, 4, 5, 6]]}, guards=Guards(max_text_chars=5))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({}, "input", id="no input"),
        pytest.param({"input": None}, "input", id="null input"),
        pytest.param({"input": {"text": "a"}}, "input", id="bare object"),
        pytest.param({"input": [{"image": "a"}]}, "input.text", id="object without text"),
        pytest.param({"input": [[["a"]]]}, "input", id="too many lists"),
        pytest.param({"input": "a", "encoding_format": "int7"}, "encoding_format", id="encoding"),
        pytest.param({"input": "a", "encoding_format": 1}, "encoding_format", id="encoding's type"),
        pytest.param({"input": "a", "dimensions": -1}, "dimensions", id="negative dimensions"),
        pytest.param({"input": "a", "dimensions": 8.5}, "dimensions", id="fractional dimensions"),
        pytest.param({"input": "a", "dimensions": "8"}, "dimensions", id="dimensions in a string"),
        pytest.param({"input": "a", "dimensions": 2**31}, "dimensions", id="endless dimensions"),
        pytest.param({"input": "a", "output_dimension": -1}, "output_dimension", id="negative output dimension"),
        pytest.param({"input": "a", "output_dtype": "int4"}, "output_dtype", id="output dtype"),
        pytest.param({"input": "a", "embedding_type": "hex"}, "embedding_type", id="embedding type"),
        pytest.param({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", id="cut to nothing"),
        pytest.param({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", id="cut to less"),
        pytest.param({"input": "a", "partial_results": "some"}, "partial_results", id="partial results' word"),
        pytest.param({"input": "a", "truncate": "MIDDLE"}, "truncate", id="truncate's word"),
        pytest.param({"input": "a", "normalized": 1}, "normalized", id="normalized's type"),
        pytest.param({"input": "a", "model": ["m"]}, "model", id="model's type"),
        pytest.param({"input": "a", "expect_fingerprint": "zq"}, "expect_fingerprint", id="no fingerprint"),
    ],
)
def test_an_invalid_field_is_named(body, field):
    """The status is 400."""
    with pytest.raises(InvalidField) as caught:
        parsed(DIALECT, PATH, body)
    assert f"`{field.partition('.')[0]}" in caught.value.message
    assert render_error(caught.value).status == 400


@pytest.mark.parametrize("value", [[], [[]], ["a", []]], ids=str)
def test_an_empty_list_of_inputs_is_rejected(value):
    """The SDK raises on an empty `data`."""
    with pytest.raises(EmptyInput):
        parse(input=value)


# --- answers --------------------------------------------------------------------------------------------------


def test_the_answer_has_every_key():
    """OpenAI's keys, Simple Inference Server's completion_tokens, and id and created, which some clients read."""
    rendered = answered(embed_result(used=usage([(3, 3), (4, 4)])))
    whole = json.loads(rendered.body)
    assert whole.pop("id").startswith("embd-")
    assert whole.pop("created") > 1_700_000_000
    assert whole == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": json.loads("[0.1, -0.2, 0.33333334]")},
            {"object": "embedding", "index": 1, "embedding": json.loads("[1e-45, 3.4028235e38, -0.0]")},
        ],
        "model": "served",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    assert (rendered.status, rendered.content_type) == (200, "application/json")


@pytest.mark.parametrize("body", [{"encoding_format": "base64"}, {"embedding_type": "base64"}], ids=str)
def test_vectors_are_base64_on_request(body):
    """With the same bits."""
    whole = answer(embed_result(), **body)
    assert [item["embedding"] for item in whole["data"]] == [to_base64(vector) for vector in VECTORS]


def test_other_precisions_are_integers():
    """Numbers, or one byte each in base64, which Voyage's client reads by `output_dtype`."""
    rows = np.array([[-128, 0, 127]], dtype=np.int8)
    result = replace(embed_result(used=usage([(3, 3)])), dense={"int8": rows})
    assert answer(result, output_dtype="int8")["data"][0]["embedding"] == [-128, 0, 127]
    base64 = answer(result, output_dtype="int8", encoding_format="base64")["data"][0]["embedding"]
    assert b64decode(base64) == rows.tobytes()


def test_the_usage_has_truncated_inputs():
    """With the number of processed tokens."""
    assert answer(embed_result(used=usage([(3, 3), (9, 4), (5, 5), (7, 4)])))["usage"] == {
        "prompt_tokens": 16,
        "total_tokens": 16,
        "truncated_inputs": [1, 3],
    }


def test_a_failed_input_has_an_error_in_its_place():
    """Other inputs have vectors."""
    failure = InputTooLong("`input[1]` has 900 tokens; the model reads 512.", field="input", index=1)
    whole = answer(replace(embed_result(), failures={1: failure}), partial_results=True)
    assert whole["data"] == [
        {"object": "embedding", "index": 0, "embedding": json.loads("[0.1, -0.2, 0.33333334]")},
        {
            "object": "error",
            "index": 1,
            "error": {
                "message": "`input[1]` has 900 tokens; the model reads 512.",
                "type": "invalid_request_error",
                "param": "input",
                "code": "context_length_exceeded",
            },
        },
    ]


@pytest.mark.parametrize(
    ("result", "body"),
    [
        pytest.param(embed_result(), {}, id="floats"),
        pytest.param(embed_result(), {"encoding_format": "base64"}, id="base64"),
        pytest.param(
            replace(embed_result(), failures={0: EmptyInput("empty")}), {"partial_results": True}, id="partial results"
        ),
    ],
)
def test_the_answer_fits_its_schema(result, body):
    """OpenAPI shows the type."""
    decoded = msgspec.json.decode(answered(result, **body).body, type=Embeddings, strict=True)
    assert [item.index for item in decoded.data] == [0, 1]


def test_a_view_of_wider_vectors_is_rendered():
    """The engine cuts dimensions without a copy."""
    wide = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert [item["embedding"] for item in answer(embed_result(wide[:, :2]))["data"]] == [[0, 1], [4, 5]]


# --- models ---------------------------------------------------------------------------------------------------


def test_models_are_listed():
    """With the keys of every product that shares the path."""
    listed = json.loads(got(DIALECT, "/v1/models", model_list("a", "org/b")).body)
    assert [model["id"] for model in listed["data"]] == ["a", "org/b"]
    assert set(listed) == {"object", "data", "embedding_models", "reranking_models"}


def test_one_model_is_shown_by_its_id():
    """The id may contain slashes, and the response is an item of the list."""
    call = route_of(DIALECT, "/v1/models/{model:path}").parse(Incoming(path={"model": "org/b"}))
    assert call.request == ListModels(model="org/b")
    models = model_list("org/b")
    listed = json.loads(got(DIALECT, "/v1/models", models).body)
    assert json.loads(call.answered(models).body) == listed["data"][0]


def test_every_path_exists_with_and_without_v1():
    """Clients differ in the base URL."""
    served = {(route.method, route.path) for route in DIALECT.routes}
    assert served == {
        (method, prefix + path)
        for prefix in ("", "/v1")
        for method, path in (("POST", "/embeddings"), ("GET", "/models"), ("GET", "/models/{model:path}"))
    } | {("POST", "/openai/deployments/{model:path}/embeddings")}


@pytest.mark.parametrize(
    ("word", "truncate", "side"),
    [("NONE", False, "right"), ("START", True, "left"), ("END", True, "right"), ("end", True, "right")],
)
def test_nvidias_words_choose_the_end_that_is_cut_off(word: str, truncate: bool, side: str):
    request = parse(input="a", truncate=word, input_type="passage")
    assert (request.text.truncate, request.text.truncate_side, request.text.kind) == (truncate, side, "document")


def test_azures_deployment_is_the_model():
    body = {"input": "a", "model": "text-embedding-3-small"}
    azure = route_of(DIALECT, "/openai/deployments/{model:path}/embeddings")
    request = azure.parse(incoming(body, path={"model": "org/name"})).request
    assert isinstance(request, EmbedRequest)
    assert request.model == "org/name"


# --- errors ---------------------------------------------------------------------------------------------------


def test_an_error_has_openais_object_and_simple_inference_servers_detail():
    """The clients of both use these routes."""
    rendered = render_error(ModelNotFound("There is no such model.", field="model"))
    assert rendered.status == 404
    assert json.loads(rendered.body) == {
        "error": {
            "message": "There is no such model.",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        },
        "detail": "There is no such model.",
    }


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        pytest.param(FingerprintMismatch("Another space."), 412, "fingerprint_mismatch", id="another vector space"),
        pytest.param(InputTooLong("too long"), 400, "context_length_exceeded", id="frameworks split texts by this"),
        pytest.param(TooManyCharacters("too long"), 400, "string_above_max_length", id="OpenAI's own guard"),
        pytest.param(ForeignIds("whose ids?"), 400, "foreign_token_ids", id="ids of another vocabulary"),
        pytest.param(NotAcceptable("no such form"), 406, None, id="no code of its own"),
    ],
)
def test_an_error_has_the_code_that_clients_read(error, status, code):
    """The type of a client's fault is invalid_request_error."""
    assert render_error(error).status == status
    assert (shown(error)["type"], shown(error)["code"]) == ("invalid_request_error", code)


def test_a_long_text_is_answered_with_the_ways_out():
    """A chunk of 300 words is a typical first request. A limit of characters cannot be truncated away."""
    sent = shown(InputTooLong("`input` must have at most {limit} tokens; got {given}", limit=256, given=302))["message"]
    assert sent.startswith("`input` must have at most 256 tokens; got 302. Send ")
    assert all(way in sent for way in ('"truncate": true', "/vectord/documents", "--auto-truncate"))
    for error in (TooManyCharacters("too many", limit=1, given=2), InputTooLong("too many", limit=1, given=2, chunk=0)):
        assert shown(error)["message"] == "too many"


@pytest.mark.parametrize(
    ("wait_s", "seconds", "milliseconds"),
    [
        pytest.param(0.05, "1", "50", id="short"),
        pytest.param(2.3, "3", "2300", id="rounded up"),
        pytest.param(600, "120", "120000", id="bounded"),
        pytest.param(0, "1", "1", id="never at once"),
    ],
)
@pytest.mark.parametrize(("kind", "status"), [(Overloaded, 429), (Unavailable, 503)])
def test_an_overload_has_a_wait(kind, status, wait_s, seconds, milliseconds):
    """Whole seconds in Retry-After, and milliseconds in retry-after-ms, which the SDK reads first."""
    rendered = render_error(kind("busy", retry_after_s=wait_s))
    assert rendered.status == status
    assert rendered.headers == {"retry-after": seconds, "retry-after-ms": milliseconds}
