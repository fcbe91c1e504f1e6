"""Cohere's bodies, answers and errors, v1 and v2."""

from __future__ import annotations

import json
import uuid
from base64 import b64decode
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.products.results import VECTORS, embed_result, incoming, rerank_result, usage

from vectord.errors import (
    EmptyInput,
    InputTooLong,
    InvalidField,
    MalformedBody,
    ModelNotFound,
    Overloaded,
    VectordError,
    WrongType,
)
from vectord.products import cohere
from vectord.products.cohere import DetokenizeAnswer, EmbedAnswer, RerankAnswer, TokenizeAnswer
from vectord.products.common.dialect import Call
from vectord.schema import (
    DecodeRequest,
    DecodeResult,
    EmbedRequest,
    EmbedResult,
    RerankRequest,
    TextLength,
    TextOptions,
    Token,
    TokenizeRequest,
    TokenizeResult,
)

ROUTES = {route.path: route for route in cohere.DIALECT.routes}
QUESTION = {"query": "q", "documents": ["a", "b", "c"]}
ROWS = np.array([[1, 2], [3, 4]])


def call(path: str, **body: Any) -> Call:
    return ROUTES[path].parse(incoming(body))


def embed_request(path: str, **body: Any) -> EmbedRequest:
    request = call(path, **body).request
    assert isinstance(request, EmbedRequest)
    return request


def rerank_request(path: str, **body: Any) -> RerankRequest:
    request = call(path, **body).request
    assert isinstance(request, RerankRequest)
    return request


def answer(parsed: Call, result: Any) -> dict[str, Any]:
    """The response without its `id`, which must be a UUID if there is one."""
    rendered = parsed.render(result)
    assert (rendered.status, rendered.content_type) == (200, "application/json")
    shown = json.loads(rendered.body)
    if "id" in shown:
        uuid.UUID(shown.pop("id"))
    return shown


def every_precision() -> EmbedResult:
    dense = {
        "float": VECTORS,
        "int8": (ROWS - 3).astype(np.int8),
        "uint8": ROWS.astype(np.uint8),
        "binary": (ROWS[:, :1] - 128).astype(np.int8),
        "ubinary": ROWS[:, :1].astype(np.uint8),
    }
    return EmbedResult(model="served", fingerprint="f00d", dense=dense, usage=usage([(3, 3), (4, 4)]))


def read(tokens: int) -> dict[str, int]:
    return {"input_tokens": tokens, "output_tokens": 0}


# --- embed: requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed"])
def test_every_field_of_embed_is_read(path):
    """Both versions read the fields of both, since they share the type of the body."""
    request = embed_request(
        path,
        model="m",
        texts=["a", "b"],
        input_type="search_query",
        embedding_types=["float", "ubinary", "float"],
        truncate="START",
        max_tokens=99,
        output_dimension=64,
        priority=7,
        surprise=1,
    )
    assert request == EmbedRequest(
        inputs=["a", "b"],
        model="m",
        text=TextOptions(truncate=True, truncate_by_default=True, truncate_side="left", kind="query", max_tokens=99),
        dimensions=64,
        precisions=("float", "ubinary"),
    )


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed"])
def test_null_is_the_same_as_absent(path):
    """SDKs of other languages send null for unset fields."""
    null = dict.fromkeys(
        ("model", "inputs", "images", "input_type", "embedding_types", "truncate", "max_tokens", "output_dimension")
    )
    assert embed_request(path, texts=["a"], **null, priority=None) == embed_request(path, texts=["a"])


@pytest.mark.parametrize(
    ("truncate", "options"),
    [
        pytest.param("END", {"truncate": True, "truncate_side": "right"}, id="END"),
        pytest.param("START", {"truncate": True, "truncate_side": "left"}, id="START"),
        pytest.param("NONE", {"truncate": False}, id="NONE"),
        pytest.param(None, {"truncate": None}, id="unset: the server's setting, else END"),
    ],
)
def test_truncate_selects_the_end_that_is_cut_off(truncate, options):
    """The default is END, unless the operator has set another."""
    request = embed_request("/v2/embed", texts=["a"], truncate=truncate)
    assert request.text == TextOptions(truncate_by_default=True, **options)


@pytest.mark.parametrize(
    ("input_type", "kind"),
    [
        ("search_query", "query"),
        ("search_document", "document"),
        ("classification", "classification"),
        ("clustering", "clustering"),
        ("image", None),
        (None, None),
    ],
)
def test_an_input_type_selects_the_prompt(input_type, kind):
    """Other types select none. The field is optional here, also in v2."""
    assert embed_request("/v2/embed", texts=["a"], input_type=input_type).text.kind == kind


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed"])
def test_an_unknown_input_type_is_refused(path):
    """A word that is misspelled would embed a query as a document."""
    with pytest.raises(InvalidField, match="Unsupported input_type: `input_type` must be") as raised:
        embed_request(path, texts=["a"], input_type="serch_query")
    assert raised.value.field_name == "input_type"


def test_the_parts_of_an_input_are_joined_by_newlines():
    """v2's `inputs`: several text parts are one text."""
    parts = [{"type": "text", "text": "title"}, {"type": "text", "text": "body"}]
    request = embed_request("/v2/embed", inputs=[{"content": parts}, {"content": parts[:1]}])
    assert request.inputs == ["title\nbody", "title"]


@pytest.mark.parametrize(
    ("types", "precisions"),
    [
        (None, ("float",)),
        ([], ("float",)),
        (["base64"], ("float",)),
        (["base64", "float"], ("float",)),
        (["int8", "uint8", "binary", "ubinary"], ("int8", "uint8", "binary", "ubinary")),
    ],
)
def test_each_precision_is_requested_once(types, precisions):
    """base64 is another encoding of float, and not another precision."""
    assert embed_request("/v1/embed", texts=["a"], embedding_types=types).precisions == precisions


def test_zero_dimensions_are_all_of_them():
    """`force_dimensions` allows any width."""
    request = embed_request("/v2/embed", texts=["a"], output_dimension=0, force_dimensions=True)
    assert (request.dimensions, request.force_dimensions) == (None, True)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({"texts": "a"}, "texts", id="one text, not in a list"),
        pytest.param({"texts": [None]}, "texts", id="null among texts"),
        pytest.param({"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "inputs", id="both"),
        pytest.param({"images": ["data:image/png;base64,AA"]}, "images", id="images"),
        pytest.param({"inputs": [{"content": [{"type": "image_url", "image_url": {}}]}]}, "inputs", id="image part"),
        pytest.param({"inputs": [{"content": [{"type": "text"}]}]}, "inputs", id="text part without text"),
        pytest.param({"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types", id="unknown type"),
        pytest.param({"texts": ["a"], "truncate": "end"}, "truncate", id="truncate's word"),
        pytest.param({"texts": ["a"], "max_tokens": 0}, "max_tokens", id="no tokens"),
        pytest.param({"texts": ["a"], "output_dimension": -1}, "output_dimension", id="negative dimensions"),
        pytest.param({"texts": ["a"], "output_dimension": 10**30}, "output_dimension", id="endless dimensions"),
        pytest.param({"texts": ["a"], "priority": 1000}, "priority", id="priority past its range"),
        pytest.param({"texts": ["a"], "model": 1}, "model", id="model's type"),
    ],
)
def test_an_invalid_field_of_embed_is_named(body, field):
    """The status is 400."""
    with pytest.raises(InvalidField) as caught:
        call("/v2/embed", **body)
    assert f"`{field}" in caught.value.message
    assert cohere.DIALECT.render_error(caught.value).status == 400


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param({}, "`texts` or `inputs` is required.", id="neither"),
        pytest.param({"texts": None, "images": []}, "`texts` or `inputs` is required.", id="nulls"),
        pytest.param({"inputs": [{"content": []}]}, "`inputs[0].content` cannot be empty.", id="no parts"),
    ],
)
def test_a_body_without_inputs_is_rejected(body, message):
    """The engine rejects an empty `texts`."""
    with pytest.raises(EmptyInput) as caught:
        call("/v2/embed", **body)
    assert caught.value.message == message


# --- embed: responses ------------------------------------------------------------------------------------------


def test_v1_returns_floats_without_a_type():
    """Without embedding_types. The SDK recognizes the form by response_type, and reads `texts`."""
    parsed = call("/v1/embed", texts=["a", "b"])
    assert answer(parsed, embed_result(VECTORS, usage([(3, 3), (4, 4)]))) == {
        "response_type": "embeddings_floats",
        "embeddings": [json.loads("[0.1, -0.2, 0.33333334]"), json.loads("[1e-45, 3.4028235e38, -0.0]")],
        "texts": ["a", "b"],
        "meta": {"api_version": {"version": "1"}, "billed_units": {"input_tokens": 7}, "tokens": read(7)},
    }


@pytest.mark.parametrize(("path", "version"), [("/v1/embed", "1"), ("/v2/embed", "2")])
def test_embeddings_are_listed_by_type(path, version):
    """Each type has a list with a row for each text."""
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    shown = answer(call(path, texts=["a", "b"], embedding_types=types), every_precision())
    written = shown["embeddings"].pop("base64")
    assert [np.frombuffer(b64decode(row), "<f4").tolist() for row in written] == VECTORS.tolist()
    assert shown == {
        "response_type": "embeddings_by_type",
        "embeddings": {
            "float": [json.loads("[0.1, -0.2, 0.33333334]"), json.loads("[1e-45, 3.4028235e38, -0.0]")],
            "int8": [[-2, -1], [0, 1]],
            "uint8": [[1, 2], [3, 4]],
            "binary": [[-127], [-125]],
            "ubinary": [[1], [3]],
        },
        "texts": ["a", "b"],
        "meta": {"api_version": {"version": version}, "billed_units": {"input_tokens": 7}, "tokens": read(7)},
    }


def test_v2_returns_floats_with_their_type():
    """Without embedding_types, the type is `float`."""
    shown = answer(call("/v2/embed", texts=["a", "b"]), embed_result())
    assert list(shown["embeddings"]) == ["float"]


def test_truncated_texts_are_in_the_warnings():
    """Cohere's place is `meta.warnings`. Only processed tokens are billed."""
    parsed = call("/v2/embed", texts=["a", "b", "c"])
    shown = answer(parsed, embed_result(used=usage([(9, 4), (3, 3), (7, 4)])))
    assert shown["meta"] == {
        "api_version": {"version": "2"},
        "billed_units": {"input_tokens": 11},
        "tokens": read(11),
        "warnings": ["`texts` truncated: 0, 2."],
    }


def test_inputs_are_returned_as_texts():
    """The joined text of each."""
    parsed = call("/v2/embed", inputs=[{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])
    assert answer(parsed, embed_result(VECTORS[:1]))["texts"] == ["a\nb"]


@pytest.mark.parametrize("path", [path for path in ROUTES if path.endswith("embed")])
@pytest.mark.parametrize("types", [None, ["float", "binary", "base64"]], ids=str)
def test_an_embed_answer_fits_its_schema(path, types):
    """OpenAPI shows the type."""
    rendered = call(path, texts=["a", "b"], embedding_types=types).render(every_precision())
    assert msgspec.json.decode(rendered.body, type=EmbedAnswer).texts == ["a", "b"]


# --- rerank ---------------------------------------------------------------------------------------------------


def test_every_field_of_rerank_is_read():
    """Of v1 and v2. Scores are probabilities, and texts are truncated unless the server's setting differs."""
    request = rerank_request(
        "/v1/rerank",
        model="m",
        query="q",
        documents=["a", {"text": "b", "id": 7}],
        top_n=1,
        rank_fields=None,
        return_documents=False,
        max_chunks_per_doc=10,
        max_tokens_per_doc=99,
        priority=0,
        surprise=1,
    )
    assert request == RerankRequest(
        query="q",
        passages=["a", "b"],
        model="m",
        text=TextOptions(truncate_by_default=True),
        raw=False,
        max_passage_tokens=99,
    )


def test_v2_truncates_documents_to_4096_tokens():
    """The documented default; v1 has none."""
    assert rerank_request("/v2/rerank", **QUESTION).max_passage_tokens == 4096
    assert rerank_request("/v2/rerank", **QUESTION, max_tokens_per_doc=None).max_passage_tokens == 4096
    assert rerank_request("/v1/rerank", **QUESTION).max_passage_tokens is None


OTHER = {"text": "other words", "title": "O", "kind": "k"}


@pytest.mark.parametrize(
    ("rank_fields", "passage"),
    [
        pytest.param(None, "words", id="text by default"),
        pytest.param([], "words", id="an empty list is none"),
        pytest.param(["text"], "text: words", id="one field"),
        pytest.param(["title", "text"], "title: T\ntext: words", id="in the given order"),
        pytest.param(["text", "kind", "title"], "text: words\ntitle: T", id="strings that are there"),
    ],
)
def test_documents_are_ranked_by_the_given_fields(rank_fields, passage):
    """One line `name: value` for each, in the order of rank_fields. A string document is ranked unchanged."""
    document = {"text": "words", "title": "T", "year": 1999}
    request = rerank_request("/v1/rerank", query="q", documents=[document, OTHER, "plain"], rank_fields=rank_fields)
    assert request.passages[::2] == [passage, "plain"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({"query": "q"}, "documents", id="no documents"),
        pytest.param({"documents": ["a"]}, "query", id="no query"),
        pytest.param({**QUESTION, "documents": "a"}, "documents", id="a bare document"),
        pytest.param({**QUESTION, "documents": ["a", 1]}, "documents", id="a number"),
        pytest.param({**QUESTION, "documents": ["a", {"title": "t"}]}, "documents[1]", id="no text"),
        pytest.param({**QUESTION, "documents": [{"text": 1}]}, "documents[0]", id="text's type"),
        pytest.param(
            {**QUESTION, "documents": [{"text": "a"}], "rank_fields": ["title"]}, "rank_fields", id="no such field"
        ),
        pytest.param({**QUESTION, "top_n": -1}, "top_n", id="negative top_n"),
        pytest.param({**QUESTION, "max_tokens_per_doc": 0}, "max_tokens_per_doc", id="no tokens"),
        pytest.param({**QUESTION, "return_documents": "maybe"}, "return_documents", id="no boolean"),
    ],
)
def test_an_invalid_field_of_rerank_is_named(body, field):
    """The error has the field of the body and the index of the document."""
    with pytest.raises(InvalidField) as caught:
        call("/v1/rerank", **body)
    assert f"`{field}" in caught.value.message


@pytest.mark.parametrize("query", ["", " \n"], ids=repr)
def test_a_blank_query_is_rejected(query):
    """Cohere rejects it, too."""
    with pytest.raises(EmptyInput, match=r"^`query` must not be empty or only whitespace\.$"):
        call("/v1/rerank", query=query, documents=["a"])


def test_v1_returns_the_keys_of_every_product_that_shares_its_path():
    """Best first. Bodies of Jina, vLLM and llama.cpp may be alike, so the response has their keys and the documents."""
    parsed = call("/v1/rerank", **QUESTION, top_n=2)
    assert answer(parsed, rerank_result(0.25, 0.5, 0.125)) == {
        "object": "rerank",
        "model": "served",
        "results": [
            {"index": 1, "relevance_score": 0.5, "score": 0.5, "document": {"text": "b"}},
            {"index": 0, "relevance_score": 0.25, "score": 0.25, "document": {"text": "a"}},
        ],
        "usage": {"prompt_tokens": 27, "total_tokens": 27, "completion_tokens": 0},
        "meta": {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}, "tokens": read(27)},
    }


def test_v2_returns_documents_on_request_only():
    """`return_documents` is v1's field."""
    shown = answer(call("/v2/rerank", **QUESTION), rerank_result(0.25, 0.5, 0.125))
    assert shown["results"] == [
        {"index": 1, "relevance_score": 0.5, "score": 0.5},
        {"index": 0, "relevance_score": 0.25, "score": 0.25},
        {"index": 2, "relevance_score": 0.125, "score": 0.125},
    ]
    assert shown["meta"]["api_version"] == {"version": "2"}
    parsed = call("/v2/rerank", **QUESTION, return_documents=True)
    assert answer(parsed, rerank_result(0.25, 0.5, 0.125))["results"][0]["document"] == {"text": "b"}


def test_v1_can_leave_out_documents():
    """With `return_documents: false`."""
    shown = answer(call("/v1/rerank", **QUESTION, return_documents=False), rerank_result(1, 2, 3))
    assert all("document" not in one for one in shown["results"])


def test_a_document_is_returned_with_its_string_fields():
    """Cohere's schema allows strings only, so a number of a thousand digits is never repeated."""
    document = {"title": "T", "text": "words", "id": 10**40, "deep": {"a": []}}
    parsed = call("/v1/rerank", query="q", documents=[document], rank_fields=["title"], return_documents=True)
    assert answer(parsed, rerank_result(0.5))["results"][0]["document"] == {"title": "T", "text": "words"}


@pytest.mark.parametrize(("top_n", "count"), [(None, 3), (0, 3), (2, 2), (9, 3)])
def test_top_n_bounds_the_results(top_n, count):
    """null and 0 are no bound."""
    assert len(answer(call("/v2/rerank", **QUESTION, top_n=top_n), rerank_result(1, 2, 3))["results"]) == count


def test_truncated_documents_are_in_the_warnings():
    """max_tokens_per_doc truncates by default, so the response reports it."""
    result = rerank_result(0.5, 0.25, query=TextLength(9, 4), passages=[TextLength(7, 7), TextLength(9, 5)])
    shown = answer(call("/v2/rerank", query="q", documents=["a", "b"]), result)
    assert shown["meta"]["warnings"] == ["`query` truncated: 0.", "`documents` truncated: 1."]


@pytest.mark.parametrize("path", [path for path in ROUTES if path.endswith("rerank")])
@pytest.mark.parametrize("shown", [None, True, False], ids=str)
def test_a_rerank_answer_fits_its_schema(path, shown):
    """OpenAPI shows the type."""
    rendered = call(path, **QUESTION, return_documents=shown).render(rerank_result(1, 2, 3))
    assert [one.index for one in msgspec.json.decode(rendered.body, type=RerankAnswer).results] == [2, 1, 0]


# --- tokens ---------------------------------------------------------------------------------------------------


def test_a_text_is_tokenized():
    """Ids and their texts, without special tokens."""
    parsed = call("/v1/tokenize", text="ab", model="m")
    assert parsed.request == TokenizeRequest(inputs=["ab"], model="m", add_special_tokens=False)
    tokens = [[Token(5, "a", False, 0, 1), Token(6, "b", False, 1, 2)]]
    result = TokenizeResult(model="served", tokens=tokens, usage=usage([(2, 2)]))
    shown = {"tokens": [5, 6], "token_strings": ["a", "b"], "meta": {"api_version": {"version": "1"}}}
    assert answer(parsed, result) == shown
    assert msgspec.convert(shown, TokenizeAnswer).tokens == [5, 6]


def test_ids_are_decoded():
    """One list of ids is one text."""
    parsed = call("/v1/detokenize", tokens=[5, 6], model="m")
    assert parsed.request == DecodeRequest(ids=[[5, 6]], model="m")
    shown = {"text": "ab", "meta": {"api_version": {"version": "1"}}}
    assert answer(parsed, DecodeResult(model="served", texts=["ab"])) == shown
    assert msgspec.convert(shown, DetokenizeAnswer).text == "ab"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/tokenize", {"text": ["a"]}, id="several texts"),
        pytest.param("/v1/tokenize", {"model": "m"}, id="no text"),
        pytest.param("/v1/detokenize", {"tokens": 5}, id="one id"),
        pytest.param("/v1/detokenize", {"tokens": [-1]}, id="negative id"),
        pytest.param("/v1/detokenize", {"tokens": [2**31]}, id="id past int32"),
    ],
)
def test_invalid_token_ids_are_rejected(path, body):
    """By type and by range."""
    with pytest.raises(WrongType):
        call(path, **body)


# --- errors and routes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelNotFound("No such model.", field="model"), 404),
        (MalformedBody("Not JSON."), 400),
        (WrongType("`texts` is required.", field="texts"), 400),
        (InputTooLong("Too long.", field="texts", index=0, limit=512, given=600), 400),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, VectordError) else None,
)
def test_an_error_is_a_message(error, status):
    """The SDK raises by status, and shows the body."""
    rendered = cohere.DIALECT.render_error(error)
    assert (rendered.status, json.loads(rendered.body)) == (status, {"message": error.message})


def test_an_overload_has_a_wait_in_whole_seconds():
    """The SDK reads Retry-After only."""
    rendered = cohere.DIALECT.render_error(Overloaded("busy", retry_after_s=1.2))
    assert (rendered.status, rendered.headers) == (429, {"retry-after": "2"})


@pytest.mark.parametrize(
    "path", ["/v1/embed", "/v2/embed", "/v1/rerank", "/v2/rerank", "/v1/tokenize", "/v1/detokenize"]
)
def test_a_base_url_may_end_in_v1(path):
    """The SDK appends its version to the base URL."""
    assert ROUTES[f"/v1{path}"].keys == ROUTES[path].keys


def test_the_path_without_a_version_is_selected_by_texts_only():
    """At /embed `inputs` selects TEI, and `input` selects Semantic Explorer."""
    assert ROUTES["/embed"].keys == {"texts"}
