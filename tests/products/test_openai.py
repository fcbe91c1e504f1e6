"""OpenAI's bodies, answers and errors, as its SDKs and the clients of needs.md send and read them."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.products.results import VECTORS, embed_result, got, model_list, parsed, route_of, usage

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
    WrongType,
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
def test_the_shapes_of_input(value, inputs):
    """All four shapes of the SDK, Jina's objects, and the empty text that langchain sends."""
    assert list(parse(input=value).inputs) == inputs


def test_a_bare_request_takes_every_default():
    """No model, as Dify sends: the default model, floats, unit vectors, the server's truncation."""
    assert parse(input="a") == EmbedRequest(inputs=("a",))


def test_null_is_the_same_as_absent():
    """LiteLLM sends nulls for what its caller did not choose."""
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
    """RAGFlow's drop_params and whatever else comes along."""
    assert parse(input="a", drop_params=True, extra={"deep": [1]}) == parse(input="a")


def test_every_option_arrives():
    """Each option of the superset lands in its canonical place."""
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
        text=TextOptions(truncate=True, max_tokens=64, prompt_name="query", kind="query"),
    )


@pytest.mark.parametrize(
    ("body", "truncate"),
    [
        pytest.param({}, None, id="unsaid"),
        pytest.param({"truncate": True}, True, id="truncate"),
        pytest.param({"truncation": False}, False, id="truncation, as Voyage says"),
        pytest.param({"truncate": False, "truncation": True}, False, id="truncate goes first"),
        pytest.param({"truncate": "true"}, True, id="string"),
        pytest.param({"truncation": "False"}, False, id="capitalised string"),
    ],
)
def test_truncation_by_either_name(body, truncate):
    """`truncate` and `truncation` are one option, and string booleans count."""
    assert parse(input="a", **body).text.truncate is truncate


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param({"task": "retrieval.query"}, "query", id="Jina's query"),
        pytest.param({"task": "retrieval.passage"}, "document", id="Jina's passage"),
        pytest.param({"input_type": "query"}, "query", id="Voyage's query"),
        pytest.param({"input_type": "document"}, "document", id="Voyage's document"),
        pytest.param({"input_type": "passage"}, "document", id="NVIDIA's passage"),
        pytest.param({"input_type": "search_query"}, "query", id="Cohere's query"),
        pytest.param({"input_type": "search_document"}, "document", id="Cohere's document"),
        pytest.param({"task": "text-matching"}, None, id="another task"),
        pytest.param({"task": "text-matching", "input_type": "query"}, "query", id="one of them known"),
        pytest.param({"task": "retrieval.query", "input_type": "document"}, "query", id="task goes first"),
    ],
)
def test_queries_and_documents_by_any_products_words(body, kind):
    """They choose the model's prompt for such inputs; words that mean nothing here are ignored."""
    assert parse(input="a", **body).text.kind == kind


@pytest.mark.parametrize(
    ("tokens", "options"),
    [
        pytest.param(-1, TextOptions(truncate=True), id="as many as the model reads"),
        pytest.param(8, TextOptions(truncate=True, max_tokens=8), id="so many"),
    ],
)
def test_tokens_to_cut_to_as_vllm_says(tokens, options):
    """`truncate_prompt_tokens` truncates, whatever `truncate` says."""
    assert parse(input="a", truncate=False, truncate_prompt_tokens=tokens).text == options


@pytest.mark.parametrize(
    ("body", "dimensions"),
    [
        pytest.param({"dimensions": 0}, None, id="infinity's 0 for all"),
        pytest.param({"output_dimension": 64}, 64, id="Voyage's word"),
        pytest.param({"dimensions": 32, "output_dimension": 64}, 32, id="dimensions goes first"),
        pytest.param({"dimensions": 0, "output_dimension": 64}, 64, id="0 says nothing"),
    ],
)
def test_dimensions_by_either_name(body, dimensions):
    """`dimensions` and Voyage's `output_dimension` are one option."""
    assert parse(input="a", **body).dimensions == dimensions


@pytest.mark.parametrize(
    ("body", "precision"),
    [
        pytest.param({}, "float", id="unsaid"),
        pytest.param({"output_dtype": "uint8"}, "uint8", id="Voyage's word"),
        pytest.param({"embedding_type": "binary"}, "binary", id="Jina's word"),
        pytest.param({"embedding_type": "base64"}, "float", id="Jina's base64 is of floats"),
        pytest.param({"embedding_type": "base64", "output_dtype": "int8"}, "int8", id="both"),
        pytest.param({"embedding_type": "binary", "output_dtype": "int8"}, "int8", id="output_dtype goes first"),
    ],
)
def test_what_the_numbers_are_by_either_name(body, precision):
    """`output_dtype` and `embedding_type` choose the one precision that is asked for."""
    assert parse(input="a", **body).precisions == (precision,)


@pytest.mark.parametrize(
    ("body", "partly"),
    [
        pytest.param({}, False, id="unsaid"),
        pytest.param({"partial_results": True}, True, id="asked for"),
        pytest.param({"partial_results": "false"}, False, id="string"),
    ],
)
def test_partial_success_is_opt_in(body, partly):
    """OpenAI's clients know no errors inside `data`, so only who asks gets them."""
    assert parse(input="a", **body).partial is partly


def test_langchains_ids_are_not_taken_for_the_models():
    """They are of another vocabulary more often than not, so the engine has to look at them."""
    assert parse(input=[[9906, 1917]]).text.own_ids is False


def test_a_text_of_too_many_characters_is_refused():
    """In Simple Inference Server's words, by its place; one of just as many passes."""
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
        pytest.param({"input": "a", "truncate": "END"}, "truncate", id="truncate's word"),
        pytest.param({"input": "a", "normalized": 1}, "normalized", id="normalized's type"),
        pytest.param({"input": "a", "model": ["m"]}, "model", id="model's type"),
        pytest.param({"input": "a", "expect_fingerprint": "zq"}, "expect_fingerprint", id="no fingerprint"),
    ],
)
def test_a_bad_field_is_named(body, field):
    """What is wrong is said by the field's name, and answered 400."""
    with pytest.raises(InvalidField) as caught:
        parsed(DIALECT, PATH, body)
    assert f"`{field.partition('.')[0]}" in caught.value.message
    assert render_error(caught.value).status == 400


@pytest.mark.parametrize("value", [[], [[]], ["a", []]], ids=str)
def test_nothing_to_embed_is_refused(value):
    """The SDK raises on an empty `data`, so an empty list is never answered 200."""
    with pytest.raises(EmptyInput):
        parse(input=value)


# --- answers --------------------------------------------------------------------------------------------------


def test_the_answer_has_every_key_of_the_contract():
    """OpenAI's keys, Simple Inference Server's null completion_tokens, and id and created that some clients read."""
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
        "usage": {"prompt_tokens": 7, "total_tokens": 7, "completion_tokens": None},
    }
    assert (rendered.status, rendered.content_type) == (200, "application/json")


@pytest.mark.parametrize("body", [{"encoding_format": "base64"}, {"embedding_type": "base64"}], ids=str)
def test_base64_when_asked(body):
    """A string for each vector, the same bits."""
    whole = answer(embed_result(), **body)
    assert [item["embedding"] for item in whole["data"]] == [to_base64(vector) for vector in VECTORS]


def test_other_precisions_are_written_as_they_are():
    """Whole numbers, or in base64 one byte each, as Voyage's client reads them by `output_dtype`."""
    rows = np.array([[-128, 0, 127]], dtype=np.int8)
    result = replace(embed_result(used=usage([(3, 3)])), dense={"int8": rows})
    assert answer(result, output_dtype="int8")["data"][0]["embedding"] == [-128, 0, 127]
    base64 = answer(result, output_dtype="int8", encoding_format="base64")["data"][0]["embedding"]
    assert b64decode(base64) == rows.tobytes()


def test_the_answer_says_which_inputs_were_cut():
    """usage counts tokens that were read, and names the inputs that had more."""
    assert answer(embed_result(used=usage([(3, 3), (9, 4), (5, 5), (7, 4)])))["usage"] == {
        "prompt_tokens": 16,
        "total_tokens": 16,
        "completion_tokens": None,
        "truncated_inputs": [1, 3],
    }


def test_an_input_that_failed_alone_has_its_error_in_its_place():
    """The others are as always, and every index is there."""
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
    """What OpenAPI promises is what is sent."""
    decoded = msgspec.json.decode(answered(result, **body).body, type=Embeddings, strict=True)
    assert [item.index for item in decoded.data] == [0, 1]


def test_dimensions_cut_from_wider_rows_are_rendered():
    """The engine may hand on a view of wider vectors."""
    wide = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert [item["embedding"] for item in answer(embed_result(wide[:, :2]))["data"]] == [[0, 1], [4, 5]]


# --- models ---------------------------------------------------------------------------------------------------


def test_models_are_listed():
    """All that are served, as wire/models.py writes them for every dialect of the path."""
    listed = json.loads(got(DIALECT, "/v1/models", model_list("a", "org/b")).body)
    assert [model["id"] for model in listed["data"]] == ["a", "org/b"]
    assert set(listed) == {"object", "data", "embedding_models", "reranking_models"}


def test_one_model_by_an_id_with_a_slash():
    """The id is the rest of the path, and the answer is an item of the list."""
    call = route_of(DIALECT, "/v1/models/{model:path}").parse(Incoming(path={"model": "org/b"}))
    assert call.request == ListModels(model="org/b")
    models = model_list("org/b")
    listed = json.loads(got(DIALECT, "/v1/models", models).body)
    assert json.loads(call.answered(models).body) == listed["data"][0]


def test_every_path_is_there_with_and_without_v1():
    """Clients are given base URLs with and without /v1."""
    served = {(route.method, route.path) for route in DIALECT.routes}
    assert served == {
        (method, prefix + path)
        for prefix in ("", "/v1")
        for method, path in (("POST", "/embeddings"), ("GET", "/models"), ("GET", "/models/{model:path}"))
    }


# --- errors ---------------------------------------------------------------------------------------------------


def test_an_error_is_openais_object_and_simple_inference_servers_detail():
    """message, type, param and code where the SDK looks, the message where Simple Inference Server's clients do too."""
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
def test_codes_that_clients_look_for(error, status, code):
    """A client's own fault is invalid_request_error, with a code where clients act on it."""
    assert render_error(error).status == status
    assert (shown(error)["type"], shown(error)["code"]) == ("invalid_request_error", code)


@pytest.mark.parametrize(
    ("wait_s", "seconds", "milliseconds"),
    [
        pytest.param(0.05, "1", "50", id="short"),
        pytest.param(2.3, "3", "2300", id="rounded up"),
        pytest.param(600, "120", "120000", id="the SDK gives up above 120 s"),
        pytest.param(0, "1", "1", id="never at once"),
    ],
)
@pytest.mark.parametrize(("kind", "status"), [(Overloaded, 429), (Unavailable, 503)])
def test_a_refusal_for_now_says_when_to_come_back(kind, status, wait_s, seconds, milliseconds):
    """Whole seconds from 1 to 120 in Retry-After, the finer figure in retry-after-ms."""
    rendered = render_error(kind("busy", retry_after_s=wait_s))
    assert rendered.status == status
    assert rendered.headers == {"retry-after": seconds, "retry-after-ms": milliseconds}


def test_a_wrong_type_is_400():
    """What the SDK would not retry."""
    with pytest.raises(WrongType) as caught:
        parse(input=1)
    assert render_error(caught.value).status == 400
