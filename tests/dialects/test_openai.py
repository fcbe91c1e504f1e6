"""OpenAI's bodies, answers and errors, as its SDKs and the clients of needs.md send and read them."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from tests.dialects.results import VECTORS, embed_result, incoming, model_list, usage

from vectord.dialects import openai
from vectord.dialects.base import Incoming
from vectord.dialects.vectors import to_base64
from vectord.errors import (
    EmptyInput,
    FingerprintMismatch,
    InputTooLong,
    InvalidField,
    ModelNotFound,
    Overloaded,
    Unavailable,
    WrongType,
)
from vectord.schema import EmbedRequest, ListModels, TextOptions


def parse(**body: object) -> EmbedRequest:
    return openai.parse_embeddings(incoming(body))


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
            "normalized",
            "prompt_name",
            "task",
            "input_type",
            "expect_fingerprint",
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
        encoding_format="base64",
        dimensions=8,
        force_dimensions=True,
        user="u",
        truncate=True,
        normalized=False,
        prompt_name="query",
        expect_fingerprint="0123456789abcdef:8",
    )
    assert request == EmbedRequest(
        inputs=("a",),
        model="m",
        encoding="base64",
        dimensions=8,
        force_dimensions=True,
        normalize=False,
        expect_fingerprint="0123456789abcdef:8",
        text=TextOptions(truncate=True, prompt_name="query"),
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


def test_zero_dimensions_are_all_dimensions():
    """infinity's clients send 0 for none."""
    assert parse(input="a", dimensions=0).dimensions is None


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
        pytest.param({"input": "a", "truncate": "END"}, "truncate", id="truncate's word"),
        pytest.param({"input": "a", "normalized": 1}, "normalized", id="normalized's type"),
        pytest.param({"input": "a", "model": ["m"]}, "model", id="model's type"),
        pytest.param({"input": "a", "expect_fingerprint": "zq"}, "expect_fingerprint", id="no fingerprint"),
    ],
)
def test_a_bad_field_is_named(body, field):
    """What is wrong is said by the field's name, and answered 400."""
    with pytest.raises(InvalidField) as caught:
        openai.parse_embeddings(incoming(body))
    assert f"`{field.partition('.')[0]}" in caught.value.message
    assert openai.render_error(caught.value).status == 400


@pytest.mark.parametrize("value", [[], [[]], ["a", []]], ids=str)
def test_nothing_to_embed_is_refused(value):
    """The SDK raises on an empty `data`, so an empty list is never answered 200."""
    with pytest.raises(EmptyInput):
        parse(input=value)


# --- answers --------------------------------------------------------------------------------------------------


def test_the_answer_has_every_key_of_the_contract():
    """OpenAI's keys, seed 002's null completion_tokens, and id and created that some clients read."""
    rendered = openai.render_embeddings(EmbedRequest(inputs=["a", "b"]), embed_result(used=usage([(3, 3), (4, 4)])))
    answer = json.loads(rendered.body)
    assert answer.pop("id").startswith("embd-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": json.loads("[0.1, -0.2, 0.33333334]")},
            {"object": "embedding", "index": 1, "embedding": json.loads("[1e-45, 3.4028235e38, -0.0]")},
        ],
        "model": "served",
        "usage": {"prompt_tokens": 7, "total_tokens": 7, "completion_tokens": None},
    }
    assert (rendered.status, rendered.content_type) == (200, "application/json")


def test_base64_when_asked():
    """A string for each vector, the same bits."""
    request = EmbedRequest(inputs=["a", "b"], encoding="base64")
    answer = json.loads(openai.render_embeddings(request, embed_result()).body)
    assert [item["embedding"] for item in answer["data"]] == [to_base64(vector) for vector in VECTORS]


def test_the_answer_says_which_inputs_were_cut():
    """usage counts tokens that were read, and names the inputs that had more."""
    used = usage([(3, 3), (9, 4), (5, 5), (7, 4)])
    answer = json.loads(openai.render_embeddings(EmbedRequest(inputs=["a"]), embed_result(used=used)).body)
    assert answer["usage"] == {
        "prompt_tokens": 16,
        "total_tokens": 16,
        "completion_tokens": None,
        "truncated_inputs": [1, 3],
    }


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_the_answer_fits_its_schema(encoding):
    """What OpenAPI promises is what is sent."""
    answer = openai.render_embeddings(EmbedRequest(inputs=["a", "b"], encoding=encoding), embed_result())
    assert msgspec.json.decode(answer.body, type=openai.Embeddings).model == "served"


def test_dimensions_cut_from_wider_rows_are_rendered():
    """The engine may hand on a view of wider vectors."""
    wide = np.arange(8, dtype=np.float32).reshape(2, 4)
    answer = json.loads(openai.render_embeddings(EmbedRequest(inputs=["a", "b"]), embed_result(wide[:, :2])).body)
    assert [item["embedding"] for item in answer["data"]] == [[0, 1], [4, 5]]


def test_models_are_listed():
    """OpenAI's item with 002's and vLLM's key beside."""
    assert openai.parse_models(Incoming()) == ListModels()
    rendered = openai.render_models(ListModels(), model_list("a", "org/b"))
    listed = msgspec.json.decode(rendered.body, type=openai.Models)
    assert [model.id for model in listed.data] == ["a", "org/b"]
    assert json.loads(rendered.body)["data"][0] == {
        "id": "a",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "local",
        "embedding_dimensions": 384,
        "max_model_len": 256,
    }


def test_one_model_by_an_id_with_a_slash():
    """The id is the rest of the path."""
    asked = openai.parse_model(Incoming(path={"model": "org/b"}))
    assert asked == ListModels(model="org/b")
    answer = openai.render_model(asked, model_list("org/b"))
    assert msgspec.json.decode(answer.body, type=openai.Model).id == "org/b"


# --- errors ---------------------------------------------------------------------------------------------------


def test_an_error_is_openais_object_and_seed_002s_detail():
    """message, type, param and code where the SDK looks, and the message once more where 002's clients look."""
    rendered = openai.render_error(ModelNotFound("There is no such model.", field="model"))
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


def test_another_vector_space_is_412():
    """Never 409, which the SDK would retry."""
    rendered = openai.render_error(FingerprintMismatch("Another space.", field="expect_fingerprint"))
    assert (rendered.status, json.loads(rendered.body)["error"]["code"]) == (412, "fingerprint_mismatch")


def test_too_long_carries_the_code_clients_look_for():
    """Frameworks that split long texts look for this code."""
    rendered = openai.render_error(InputTooLong("too long", field="input", index=1))
    assert rendered.status == 400
    assert json.loads(rendered.body)["error"]["code"] == "context_length_exceeded"


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
    rendered = openai.render_error(kind("busy", retry_after_s=wait_s))
    assert rendered.status == status
    assert rendered.headers == {"retry-after": seconds, "retry-after-ms": milliseconds}


def test_what_will_fail_again_is_never_retried():
    """The SDK retries 408, 409, 429 and 5xx: a client's own fault must be none of these."""
    with pytest.raises(WrongType) as caught:
        parse(input=1)
    assert openai.render_error(caught.value).status == 400
    retried = {status for status, _, _ in openai.ERRORS.values() if status in (408, 409, 429) or status >= 500}
    assert retried == {429, 500, 503}
