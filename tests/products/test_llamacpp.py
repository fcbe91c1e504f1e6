"""llama.cpp: requests, answers, norms and errors."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.products.results import (
    VECTORS,
    embed_result,
    incoming,
    model_info,
    model_list,
    parsers,
    rerank_result,
    usage,
)

from vectord import __version__
from vectord.errors import (
    EmptyInput,
    ForeignIds,
    InferenceFailed,
    InputTooLong,
    InvalidField,
    ModelCannot,
    ModelNotFound,
    Overloaded,
    TooManyInputs,
    Unauthorized,
    Unavailable,
    VectordError,
    WrongType,
)
from vectord.products.common.models import ListedModels
from vectord.products.common.vectors import to_base64
from vectord.products.llamacpp import DIALECT, ERRORS, EmbeddingBody, norms, render_error
from vectord.schema import (
    DecodeRequest,
    DecodeResult,
    EmbedRequest,
    EmbedResult,
    ListModels,
    RerankRequest,
    TextOptions,
    Token,
    TokenizeRequest,
    TokenizeResult,
)

PARSE = parsers(DIALECT)
parse_native, parse_openai, parse_rerank = PARSE["/embedding"], PARSE["/v1/embeddings"], PARSE["/rerank"]
parse_tokenize, parse_detokenize = PARSE["/tokenize"], PARSE["/detokenize"]
ONE_TEXT = "a list with a token id is one text and holds only ids and texts."
ROWS = np.array([[3.0, -4.0], [0.0, 0.0]], np.float32)


def route(method: str, path: str):
    return next(route for route in DIALECT.routes if (route.method, route.path) == (method, path))


def answer(path: str, body: object, result, method: str = "POST"):
    """The response body for this result of the engine, checked against the type that OpenAPI shows."""
    found = route(method, path)
    rendered = found.parse(incoming(body)).render(result)
    assert rendered.status == 200
    msgspec.json.decode(rendered.body, type=found.answer)
    return json.loads(rendered.body)


def models(*names: str):
    return [model_info(name) for name in names]


# --- vectors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parse", [parse_native, parse_openai], ids=["native", "openai"])
@pytest.mark.parametrize("key", ["content", "input"])
@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        pytest.param("a", ["a"], id="text"),
        pytest.param("", [""], id="empty text"),
        pytest.param([12, 34], [[12, 34]], id="ids are one input"),
        pytest.param(["a", "b"], ["a", "b"], id="texts"),
        pytest.param(["a", [12, 34]], ["a", [12, 34]], id="text and ids"),
        pytest.param([[12], [34]], [[12], [34]], id="lists of ids"),
        pytest.param([12, "a", 34], [[12, "a", 34]], id="ids and text are one input"),
        pytest.param(["a", 12], [["a", 12]], id="text first"),
        pytest.param([[12], [12, "a"]], [[12], [12, "a"]], id="mixed inside"),
        pytest.param({"prompt_string": "a"}, ["a"], id="object"),
        pytest.param({"prompt_string": "a", "multimodal_data": []}, ["a"], id="object without images"),
        pytest.param({"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}, ["a b"], id="parts"),
        pytest.param(["a", {"prompt_string": "b"}], ["a", "b"], id="text and object"),
    ],
)
def test_content_is_texts_or_ids(parse, key, value, inputs):
    """One grammar for both keys. Over-long text is an error. Ids are the model's own, as its /tokenize returns them."""
    request = parse(incoming({key: value})).request
    assert request == EmbedRequest(inputs=request.inputs, text=TextOptions(own_ids=True))
    assert list(request.inputs) == inputs


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        pytest.param([], EmptyInput, "`content` cannot be empty", id="nothing"),
        pytest.param([[]], EmptyInput, "`content[0]` has no token ids", id="no ids"),
        pytest.param([12, [13]], InvalidField, f"`content[1]`: {ONE_TEXT}", id="ids and a list"),
        pytest.param(["a", 12, {}], InvalidField, f"`content[2]`: {ONE_TEXT}", id="id and an object"),
        pytest.param(["a", ["b"]], EmptyInput, "`content[1]` has no token ids", id="texts in a list of their own"),
        pytest.param({}, WrongType, "`content`: an object must have `prompt_string` or `content`.", id="empty object"),
        pytest.param(
            ["a", {}], WrongType, "`content[1]`: an object must have `prompt_string` or `content`.", id="in a list"
        ),
        pytest.param(
            {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
            InvalidField,
            "`content` must be a text, or an object with a `text` alone: this model embeds texts only.",
            id="image",
        ),
        pytest.param(
            [{"prompt_string": "a", "multimodal_data": ["aGk="]}],
            InvalidField,
            "`content[0]`: `multimodal_data` is refused: texts only.",
            id="images",
        ),
        pytest.param([-1], WrongType, "`content[0]` must be an integer >= 0.", id="negative id"),
        pytest.param([2**31], WrongType, "`content[0]` must be an integer <= 2147483647.", id="huge id"),
    ],
)
def test_invalid_content_is_rejected(value, error, message):
    """By the parser, with the place."""
    with pytest.raises(error) as raised:
        parse_native(incoming({"content": value}))
    assert raised.value.message == message


@pytest.mark.parametrize("body", [{}, {"content": None, "input": None}, {"embd_normalize": 2}], ids=str)
def test_content_or_input_is_required(body):
    """In llama.cpp's words."""
    with pytest.raises(WrongType) as raised:
        parse_native(incoming(body))
    assert raised.value.message == '"input" or "content" must be provided'


def test_a_server_with_a_reranker_alone_embeds_nothing():
    """The error says what the model can do, as llama.cpp's does."""
    with pytest.raises(ModelCannot, match="can rerank"):
        parse_native(incoming({"content": "a"}, models=[model_info("r", outputs=frozenset(), reranks=True)]))


def test_input_takes_precedence_over_content():
    """As in llama.cpp."""
    assert parse_native(incoming({"input": "a", "content": "b"})).request.inputs == ["a"]


WITHOUT_POOLING = model_info("t", outputs=frozenset({"tokens"}), pooling="", dimensions=0)


def test_a_model_without_pooling_has_a_vector_for_each_token():
    """`--pooling none`: raw rows on its own routes, of the named model or the first one."""
    call = parse_native(incoming({"content": ["a", "b"]}, models=[WITHOUT_POOLING]))
    assert call.request.outputs == {"tokens"}
    result = EmbedResult(model="t", fingerprint="f00d", dense={}, tokens=[ROWS, ROWS[:1]], usage=usage())
    assert json.loads(call.render(result).body) == [
        {"index": 0, "embedding": [[3.0, -4.0], [0.0, 0.0]]},
        {"index": 1, "embedding": [[3.0, -4.0]]},
    ]
    models = [model_info("d"), WITHOUT_POOLING]
    kinds = [parse_native(incoming({"content": "a", "model": name}, models=models)).request for name in ("t", "d")]
    assert [request.outputs for request in kinds] == [{"tokens"}, {"dense"}]


def test_a_model_without_pooling_is_refused_on_the_openai_route():
    """In llama.cpp's words; `content` has its own answer there too."""
    with pytest.raises(ModelCannot, match="Pooling type 'none' is not OAI compatible"):
        parse_openai(incoming({"input": "a"}, models=[WITHOUT_POOLING]))
    assert parse_openai(incoming({"content": "a"}, models=[WITHOUT_POOLING])).request.outputs == {"tokens"}


@pytest.mark.parametrize(
    ("norm", "normalize"), [(None, True), (2, True), (-1, False), (0, False), (1, False), (3, False)]
)
def test_the_engine_computes_the_euclidean_norm_only(norm, normalize):
    """For the other norms it returns raw vectors."""
    assert parse_native(incoming({"content": "a", "embd_normalize": norm})).request.normalize is normalize


@pytest.mark.parametrize("norm", [-2, 2**31, 1.5, "2"], ids=str)
def test_invalid_norms_are_rejected(norm):
    """A norm is an integer of at least -1."""
    with pytest.raises(WrongType) as raised:
        parse_native(incoming({"content": "a", "embd_normalize": norm}))
    assert raised.value.field_name == "embd_normalize"


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
@pytest.mark.parametrize("key", ["content", "input"])
def test_the_native_answer_in_full(path, key):
    """A bare array of matrices, for both keys and with any of OpenAI's options."""
    body = {key: ["a", "b"], "model": "x", "encoding_format": "base64", "unknown": 1}
    assert answer(path, body, embed_result(ROWS)) == [
        {"index": 0, "embedding": [[3.0, -4.0]]},
        {"index": 1, "embedding": [[0.0, 0.0]]},
    ]


def test_native_numbers_round_trip():
    """Shortest float32 digits, with the limits of float32."""
    shown = answer("/embedding", {"content": ["a", "b"]}, embed_result())
    assert np.array_equal(np.array([one["embedding"][0] for one in shown], np.float32), VECTORS)


@pytest.mark.parametrize(
    ("norm", "vectors"),
    [
        pytest.param(-1, [[3.0, -4.0], [0.0, 0.0]], id="raw"),
        pytest.param(0, [[24570.0, -32760.0], [0.0, 0.0]], id="largest"),
        pytest.param(1, [[3 / 7, -4 / 7], [0.0, 0.0]], id="taxicab"),
        pytest.param(3, [[3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)], [0.0, 0.0]], id="p"),
        pytest.param(2**31 - 1, [[0.75, -1.0], [0.0, 0.0]], id="p without end"),
    ],
)
def test_the_norms_of_an_answer(norm, vectors):
    """Each by its formula; a zero vector stays zero."""
    shown = answer("/embedding", {"content": ["a", "b"], "embd_normalize": norm}, embed_result(ROWS))
    assert np.allclose([one["embedding"][0] for one in shown], vectors, rtol=1e-6)


@pytest.mark.parametrize("norm", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("size", [1e-45, 1e-30, 1.0, 1e38], ids=str)
def test_norms_of_tiny_and_huge_vectors(norm, size):
    """No overflow and no underflow: two equal numbers share the norm."""
    expected = norms.INT16_SCALE if norm == 0 else 0.5 ** (1 / norm)
    scaled = norms.scaled(np.full((1, 2), size, np.float32), norm)
    assert scaled.dtype == np.float32
    assert np.allclose(scaled, expected, rtol=1e-6)


def test_the_euclidean_norm_agrees_with_the_engines():
    """2 is the engine's normalization."""
    assert np.allclose(norms.scaled(ROWS[:1], norms.EUCLIDEAN), [[0.6, -0.8]], rtol=1e-6)


def test_the_openai_answer_in_full():
    """The model's name in the request, the processed tokens, and the truncated inputs."""
    assert answer("/v1/embeddings", {"input": ["a", "b"], "model": "mine"}, embed_result(ROWS)) == {
        "model": "mine",
        "object": "list",
        "usage": {"prompt_tokens": 7, "total_tokens": 7, "truncated_inputs": [1]},
        "data": [
            {"object": "embedding", "index": 0, "embedding": [3.0, -4.0]},
            {"object": "embedding", "index": 1, "embedding": [0.0, 0.0]},
        ],
    }


def test_the_openai_answer_in_base64():
    """Every item names the encoding."""
    shown = answer("/v1/embeddings", {"input": ["a"], "encoding_format": "base64"}, embed_result(ROWS[:1]))
    assert shown["model"] == "served"
    assert shown["data"] == [
        {"object": "embedding", "index": 0, "embedding": to_base64(ROWS[0]), "encoding_format": "base64"}
    ]


def test_content_on_openais_path_gets_the_native_answer():
    """`content` is not a key of OpenAI's."""
    body = {"content": "a", "encoding_format": "base64"}  # has no effect on the native answer
    assert answer("/v1/embeddings", body, embed_result(ROWS[:1])) == [{"index": 0, "embedding": [[3.0, -4.0]]}]


def test_an_unknown_encoding_is_rejected():
    """Only where the encoding has an effect."""
    with pytest.raises(InvalidField) as raised:
        parse_openai(incoming({"input": "a", "encoding_format": "int7"}))
    assert raised.value.field_name == "encoding_format"


@pytest.mark.parametrize(
    ("served", "asked", "used"),
    [
        pytest.param(("a",), "whatever", None, id="one model, any name"),
        pytest.param(("a", "b"), "b", "b", id="several, one of them"),
        pytest.param(("a", "b"), "whatever", "whatever", id="several, none of them: for the engine to refuse"),
        pytest.param(("a", "b"), "", None, id="several, no name"),
    ],
)
@pytest.mark.parametrize(
    ("parse", "body"),
    [
        pytest.param(parse_native, {"content": "a"}, id="embedding"),
        pytest.param(parse_openai, {"input": "a"}, id="openai"),
        pytest.param(parse_rerank, {"query": "a", "texts": ["b"]}, id="rerank"),
        pytest.param(parse_tokenize, {"content": "a"}, id="tokenize"),
        pytest.param(parse_detokenize, {"tokens": [1]}, id="detokenize"),
    ],
)
def test_the_requested_model(parse, body, served, asked, used):
    """With one served model every name is accepted; with several it must be served."""
    asking = replace(incoming(body | {"model": asked}), models=models(*served))
    assert parse(asking).request.model == used


# --- scores ---------------------------------------------------------------------------------------------------

RERANK_PATHS = ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"]


@pytest.mark.parametrize("path", RERANK_PATHS)
def test_documents_get_jinas_answer(path):
    """Logits, best first, equal scores in order, without documents."""
    body = {"query": "q", "documents": ["a", "b", "c"], "model": "mine", "return_text": True}
    assert answer(path, body, rerank_result(-1.5, 2.5, 2.5)) == {
        "model": "mine",
        "object": "list",
        "usage": {"prompt_tokens": 27, "total_tokens": 27},
        "results": [
            {"index": 1, "relevance_score": 2.5},
            {"index": 2, "relevance_score": 2.5},
            {"index": 0, "relevance_score": -1.5},
        ],
    }


@pytest.mark.parametrize("path", RERANK_PATHS)
def test_texts_get_teis_answer(path):
    """A bare array; the texts only with return_text."""
    body = {"query": "q", "texts": ["a", "b"]}
    ranks = [{"index": 1, "score": 2.5}, {"index": 0, "score": -1.5}]
    assert answer(path, body, rerank_result(-1.5, 2.5)) == ranks
    with_texts = answer(path, body | {"return_text": True}, rerank_result(-1.5, 2.5))
    assert with_texts == [ranks[0] | {"text": "b"}, ranks[1] | {"text": "a"}]


@pytest.mark.parametrize(("top_n", "shown"), [(None, 3), (0, 3), (1, 1), (9, 3)])
def test_top_n_limits_the_results(top_n, shown):
    """null and 0 return all, and so does a larger number, in both forms."""
    scores = rerank_result(0.5, 1.5, 2.5)
    body = {"query": "q", "top_n": top_n}
    assert len(answer("/rerank", body | {"documents": ["a", "b", "c"]}, scores)["results"]) == shown
    assert len(answer("/rerank", body | {"texts": ["a", "b", "c"]}, scores)) == shown


@pytest.mark.parametrize("key", ["documents", "texts"])
def test_rerank_requests(key):
    """Scores are raw, over-long text is an error, and errors have the client's field names."""
    assert parse_rerank(incoming({"query": "q", key: ["a"]})).request == RerankRequest(
        query="q", passages=["a"], raw=True
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param({"documents": ["a"]}, '"query" must be provided', id="no query"),
        pytest.param({"query": None, "texts": ["a"]}, '"query" must be provided', id="null query"),
        pytest.param({"query": "q"}, '"documents" must be a non-empty string array', id="no documents"),
        pytest.param({"query": "q", "documents": []}, '"documents" must be a non-empty string array', id="none"),
        pytest.param({"query": "q", "texts": []}, '"documents" must be a non-empty string array', id="no texts"),
    ],
)
def test_required_fields_of_rerank(body, message):
    """In llama.cpp's words."""
    with pytest.raises((WrongType, EmptyInput)) as raised:
        parse_rerank(incoming(body))
    assert raised.value.message == message


@pytest.mark.parametrize(
    "change", [{"documents": [1]}, {"documents": "a"}, {"query": 1}, {"top_n": -1}, {"return_text": "x"}], ids=str
)
def test_wrong_types_in_rerank_name_the_field(change):
    """The field is the client's."""
    with pytest.raises(WrongType) as raised:
        parse_rerank(incoming({"query": "q", "documents": ["a"]} | change))
    assert raised.value.field_name == next(iter(change))


# --- tokens ---------------------------------------------------------------------------------------------------

TOKENS = TokenizeResult(
    model="served",
    tokens=[[Token(101, "[CLS]", True, None, None), Token(2924, "bank", False, 0, 4)]],
    usage=usage([(2, 2)]),
)


@pytest.mark.parametrize(
    ("changes", "specials"), [({}, False), ({"add_special": None}, False), ({"add_special": True}, True)]
)
def test_tokenize_requests(changes, specials):
    """Special tokens are added on request only, unlike in other products."""
    body = {"content": "bank", "parse_special": True, **changes}
    assert parse_tokenize(incoming(body)).request == TokenizeRequest(inputs=["bank"], add_special_tokens=specials)


def test_the_tokens_of_a_text():
    """Ids, or ids with pieces."""
    assert answer("/tokenize", {"content": "bank"}, TOKENS) == {"tokens": [101, 2924]}
    assert answer("/tokenize", {"content": "bank", "with_pieces": True}, TOKENS) == {
        "tokens": [{"id": 101, "piece": "[CLS]"}, {"id": 2924, "piece": "bank"}]
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "content"), ({"content": ["a"]}, "content"), ({"content": "a", "parse_special": False}, "parse_special")],
    ids=str,
)
def test_invalid_tokenize_bodies(body, field):
    """No text, several texts, and an option that is not supported."""
    with pytest.raises(InvalidField) as raised:
        parse_tokenize(incoming(body))
    assert raised.value.field_name == field


def test_token_ids_to_text():
    """Special tokens stay. The text is also under vLLM's key, because both products share this path."""
    body = {"tokens": [101, 2924]}
    assert parse_detokenize(incoming(body)).request == DecodeRequest(ids=[[101, 2924]], skip_special_tokens=False)
    decoded = DecodeResult(model="served", texts=["[CLS] bank"])
    assert answer("/detokenize", body, decoded) == {"content": "[CLS] bank", "prompt": "[CLS] bank"}


@pytest.mark.parametrize("tokens", [[-1], [2**31], ["a"], 5], ids=str)
def test_invalid_ids_are_rejected(tokens):
    """Ids are bounded integers in a list."""
    with pytest.raises(WrongType):
        parse_detokenize(incoming({"tokens": tokens}))


# --- facts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/health", "/props", "/slots", "/models", "/v1/models"])
def test_facts_come_from_the_list_of_models(path):
    """The engine gets no other request."""
    assert route("GET", path).parse(incoming(None)).request == ListModels()


def test_only_health_is_public():
    """Other routes need the key."""
    assert [route.path for route in DIALECT.routes if route.public] == ["/v1/health"]


@pytest.mark.parametrize(
    "states",
    [("ready",), ("unloaded",), ("loading",), ("failed", "ready"), ("loading", "ready")],
    ids="+".join,
)
def test_health_while_a_model_answers(states):
    """One ready model is enough, and an unloaded one counts."""
    listed = model_list(*(model_info(state, state=state) for state in states))
    assert answer("/v1/health", None, listed, "GET") == {"status": "ok"}
    assert DIALECT.health(listed, True) == {"status": "ok"}


@pytest.mark.parametrize(
    ("starting", "states", "message"),
    [
        (True, ("loading",), "Loading model"),
        (True, ("ready", "loading"), "Loading model"),
        (False, ("failed",), "No model could be loaded"),
    ],
    ids=str,
)
def test_health_while_none_answers(starting, states, message):
    """503 in llama.cpp's form, with Retry-After."""
    models = [model_info(f"{place}", state=state) for place, state in enumerate(states)]
    listed = model_list(*models, starting=starting)
    rendered = route("GET", "/v1/health").parse(incoming(None)).render(listed)
    assert rendered.status == 503
    assert json.loads(rendered.body) == {"error": {"code": 503, "message": message, "type": "unavailable_error"}}
    assert rendered.headers["retry-after"] == "1"
    assert DIALECT.health(listed, False) == json.loads(rendered.body)


def test_props_are_facts_of_the_first_model():
    """Unknown facts are left out."""
    assert answer("/props", None, model_list("a", "b"), "GET") == {
        "default_generation_settings": {"n_ctx": 256},
        "total_slots": 4096,
        "model_alias": "a",
        "model_path": "org/model",
        "modalities": {"vision": False, "audio": False},
        "chat_template": "",
        "build_info": f"vectord {__version__}",
        "is_sleeping": False,
    }


def test_slots_are_models():
    """In order, with their states."""
    listed = model_list("a", model_info("b", state="unloaded"))
    assert answer("/slots", None, listed, "GET") == [
        {"id": 0, "n_ctx": 256, "model": "a", "state": "ready"},
        {"id": 1, "n_ctx": 256, "model": "b", "state": "unloaded"},
    ]


def test_models_have_meta():
    """llama.cpp's facts are in the shared list."""
    shown = answer("/models", None, model_list("a"), "GET")
    assert shown["data"][0]["meta"] == {"n_ctx_train": 256, "n_embd": 384}
    assert route("GET", "/models").answer is ListedModels


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "message", "kind"),
    [
        pytest.param(WrongType("m", field="f"), 400, "m", "invalid_request_error", id="type"),
        pytest.param(TooManyInputs("m", limit=1, given=2), 400, "m", "invalid_request_error", id="many"),
        pytest.param(ForeignIds("m"), 400, "m", "invalid_request_error", id="ids"),
        pytest.param(Unauthorized("m"), 401, "Invalid API Key", "authentication_error", id="key"),
        pytest.param(ModelNotFound("m"), 404, "m", "not_found_error", id="model"),
        pytest.param(ModelCannot("m"), 400, "m", "not_supported_error", id="ability"),
        pytest.param(Overloaded("m", retry_after_s=2), 503, "m", "unavailable_error", id="load"),
        pytest.param(Unavailable("m"), 503, "m", "unavailable_error", id="start"),
        pytest.param(InferenceFailed("m"), 500, "m", "server_error", id="failure"),
        pytest.param(VectordError("m"), 500, "m", "server_error", id="bug"),
        pytest.param(InputTooLong("m", field="content"), 400, "m", "exceed_context_size_error", id="characters"),
    ],
)
def test_errors_in_full(error, code, message, kind):
    """A code that is the status, a message and a type."""
    rendered = render_error(error)
    assert rendered.status == code == next(ERRORS[kind] for kind in type(error).__mro__ if kind in ERRORS)
    assert json.loads(rendered.body) == {"error": {"code": code, "message": message, "type": kind}}


def test_over_long_text_in_full():
    """llama.cpp's sentence and numbers, which clients look for, and then the place."""
    error = InputTooLong("`content[3]` must be less", field="content", index=3, limit=512, given=600)
    assert json.loads(render_error(error).body) == {
        "error": {
            "code": 400,
            "message": "request (600 tokens) exceeds the available context size (512 tokens), it is too large to "
            "process. `content[3]` must be less",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 600,
            "n_ctx": 512,
        }
    }


# --- routes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [route for route in DIALECT.routes if route.example], ids=lambda route: route.path)
def test_examples_have_a_key_of_their_route(found):
    """They can be parsed."""
    assert found.parse(incoming(found.example)).request
    assert found.keys & set(found.example)


@pytest.mark.parametrize("path", ["/embedding", "/embeddings", "/v1/embeddings"])
def test_content_selects_the_dialect(path):
    """No other product's body has these keys on these paths."""
    assert route("POST", path).signs == {"content", "embd_normalize"}
    assert route("POST", path).body is EmbeddingBody
