"""vLLM's pooling bodies, answers, number formats and error texts."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.products.results import (
    VECTORS,
    classify_result,
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
    Forbidden,
    InferenceFailed,
    InputTooLong,
    InvalidField,
    MethodNotAllowed,
    ModelCannot,
    ModelNotFound,
    Overloaded,
    Unauthorized,
    Unavailable,
    VectordError,
    WrongType,
)
from vectord.products.vllm import DIALECT, ERRORS, render_error
from vectord.schema import (
    ClassifyRequest,
    DecodeRequest,
    DecodeResult,
    EmbedRequest,
    EmbedResult,
    ListModels,
    MultiRequest,
    MultiResult,
    RerankRequest,
    TextOptions,
    Token,
    TokenizeRequest,
    TokenizeResult,
)

PARSE = parsers(DIALECT)
PLAIN = TextOptions(own_ids=True)
ROWS = np.array([[0.6, -0.8], [0.0, 1.0]], np.float32)
USAGE = {"prompt_tokens": 6, "total_tokens": 6, "completion_tokens": 0, "prompt_tokens_details": None}
QUERY = {"query": "q", "documents": ["a", "b"]}
PAIR = {"text_1": "q", "text_2": "a"}
# Each route that takes vLLM's options, and the least it can be asked.
ASKED = [
    pytest.param(PARSE["/embeddings"], {"input": "a"}, id="embeddings"),
    pytest.param(PARSE["/pooling"], {"input": "a", "task": "embed"}, id="pooling embed"),
    pytest.param(PARSE["/pooling"], {"input": "a", "task": "token_embed"}, id="pooling token_embed"),
    pytest.param(PARSE["/pooling"], {"input": "a", "task": "classify"}, id="pooling classify"),
    pytest.param(PARSE["/classify"], {"input": "a"}, id="classify"),
    pytest.param(PARSE["/score"], PAIR, id="score"),
    pytest.param(PARSE["/rerank"], QUERY, id="rerank"),
]
READING_INPUT = ASKED[:5]


def route(method: str, path: str):
    return next(route for route in DIALECT.routes if (route.method, route.path) == (method, path))


def answer(path: str, body: object, result, method: str = "POST", models=()) -> Any:
    """What `path` answers to the body when the engine answers with `result`; it is what OpenAPI says it is."""
    found = route(method, path)
    rendered = found.parse(replace(incoming(body), models=models)).render(result)
    assert rendered.status == 200
    msgspec.json.decode(rendered.body, type=found.answer)
    return json.loads(rendered.body)


def stamped(shown: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The rest of an answer whose id and time are as they should be."""
    assert re.fullmatch(f"{prefix}-[0-9a-f]{{32}}", shown["id"])
    assert isinstance(shown["created"], int)
    return {key: value for key, value in shown.items() if key not in ("id", "created")}


def token_result(**vectors: Any) -> EmbedResult:
    return EmbedResult(model="served", fingerprint="f00d", usage=usage([(3, 3), (3, 3)]), **vectors)


# --- what all bodies may say ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("parse", "body"), ASKED)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param({}, PLAIN, id="nothing: over-long is an error"),
        pytest.param({"truncate_prompt_tokens": None, "truncation_side": None, "normalize": None}, PLAIN, id="nulls"),
        pytest.param({"truncate_prompt_tokens": -1}, TextOptions(own_ids=True, truncate=True), id="to the limit"),
        pytest.param(
            {"truncate_prompt_tokens": 7, "truncation_side": "left"},
            TextOptions(own_ids=True, truncate=True, max_tokens=7, truncate_side="left"),
            id="to less, from the left",
        ),
    ],
)
def test_how_texts_are_cut(parse, body, options, text):
    """-1 is what the model reads; a number is at most so many; nothing is no truncation unless the server's."""
    read = parse(incoming(body | options)).request.text
    assert replace(read, own_ids=True) == text


@pytest.mark.parametrize(("parse", "body"), ASKED)
def test_on_openais_route_ids_may_be_of_openais_models(parse, body):
    """Its clients send those; on vLLM's own routes ids are the model's."""
    assert parse(incoming(body)).request.text.own_ids is (parse is not PARSE["/embeddings"])


@pytest.mark.parametrize(("parse", "body"), READING_INPUT)
@pytest.mark.parametrize(("said", "added"), [({}, True), ({"add_special_tokens": False}, False)], ids=str)
def test_texts_without_special_tokens(parse, body, said, added):
    """On every route with `input`."""
    assert parse(incoming(body | said)).request.text.add_special_tokens is added


@pytest.mark.parametrize(("parse", "body"), ASKED)
@pytest.mark.parametrize(("said", "model"), [({}, None), ({"model": ""}, None), ({"model": "m"}, "m")], ids=str)
def test_the_model_asked_for(parse, body, said, model):
    """None is the engine's choice."""
    assert parse(incoming(body | said)).request.model == model


@pytest.mark.parametrize(("parse", "body"), ASKED)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            {"normalize": False}, "Parameter `normalize` was removed; use `use_activation` instead.", id="normalize"
        ),
        pytest.param(
            {"truncate_prompt_tokens": 0},
            "`truncate_prompt_tokens` must be -1, for the model's limit, or at least 1.",
            id="cut to nothing",
        ),
        pytest.param({"truncate_prompt_tokens": -2}, "`truncate_prompt_tokens` ", id="less"),
        pytest.param(
            {"truncation_side": "middle"},
            "`truncation_side` must be one of the values that /docs lists for it.",
            id="side",
        ),
        pytest.param({"request_id": "x" * 257}, "`request_id` must have a length of at most 256.", id="id"),
    ],
)
def test_options_that_are_refused(parse, body, options, message):
    """On every route alike, with the field named."""
    with pytest.raises(InvalidField) as raised:
        parse(incoming(body | options))
    assert raised.value.message.startswith(message)
    assert raised.value.field_name == next(iter(options))


@pytest.mark.parametrize(("parse", "body"), [*READING_INPUT, pytest.param(PARSE["/tokenize"], {}, id="tokenize")])
def test_messages_are_refused(parse, body):
    """In place of `input` and beside it: no chat template is run."""
    for messages in ([], [{"role": "user", "content": "hi"}], "hi"):
        with pytest.raises(InvalidField) as raised:
            parse(incoming({**body, "input": None, "messages": messages}))
        assert raised.value.message == "`messages` need a chat template, and none is run here; send the text itself."


@pytest.mark.parametrize(("parse", "body"), READING_INPUT)
def test_no_input(parse, body):
    """Named as what is missing; an empty list is no input either."""
    with pytest.raises(WrongType, match="`input` is required"):
        parse(incoming({**body, "input": None}))
    with pytest.raises(EmptyInput, match="`input` cannot be empty"):
        parse(incoming({**body, "input": []}))


# --- embeddings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        pytest.param("a", ["a"], id="text"),
        pytest.param(["a", ""], ["a", ""], id="texts"),
        pytest.param([1, 2], [[1, 2]], id="ids are one input"),
        pytest.param([[1], [2]], [[1], [2]], id="lists of ids"),
    ],
)
def test_the_shapes_of_input(value, inputs):
    """OpenAI's; ids are told from those of OpenAI's models."""
    request = PARSE["/embeddings"](incoming({"input": value, "priority": 3, "user": "u", "unknown": {}})).request
    assert request == EmbedRequest(inputs=request.inputs, text=TextOptions())
    assert list(request.inputs) == inputs


@pytest.mark.parametrize(("said", "unit"), [(None, True), (True, True), (False, False)])
def test_the_activation_of_a_vector_is_its_length(said, unit):
    """`use_activation` false is what `normalize` false was."""
    assert PARSE["/embeddings"](incoming({"input": "a", "use_activation": said})).request.normalize is unit


def test_dimensions_are_for_the_engine_to_judge():
    """It knows what a model was trained for."""
    request = PARSE["/embeddings"](incoming({"input": "a", "dimensions": 64})).request
    assert (request.dimensions, request.force_dimensions) == (64, False)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_the_embeddings_answer_in_full(path):
    """OpenAI's list with vLLM's usage; what was cut is listed."""
    shown = answer(path, {"input": ["a", "b"], "truncate_prompt_tokens": -1}, embed_result(ROWS))
    assert stamped(shown, "embd") == {
        "object": "list",
        "model": "served",
        "data": [
            {"index": 0, "object": "embedding", "embedding": [0.6, -0.8]},
            {"index": 1, "object": "embedding", "embedding": [0.0, 1.0]},
        ],
        "usage": {
            "prompt_tokens": 7,
            "total_tokens": 7,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
            "truncated_inputs": [1],
        },
    }


@pytest.mark.parametrize(
    ("path", "body", "result", "answer_id"),
    [
        pytest.param("/v1/embeddings", {"input": "a"}, embed_result(ROWS), "embd-mine", id="embeddings"),
        pytest.param("/pooling", {"input": "a"}, embed_result(ROWS), "pool-mine", id="pooling"),
        pytest.param("/classify", {"input": "a"}, classify_result((0.1, 0.7, 0.2)), "classify-mine", id="classify"),
        pytest.param("/score", PAIR, rerank_result(0.5), "score-mine", id="score"),
        pytest.param("/rerank", QUERY, rerank_result(0.5, 0.6), "rerank-mine", id="rerank"),
    ],
)
def test_a_request_id_becomes_the_answers(path, body, result, answer_id):
    """So that clients can tell answers apart."""
    assert answer(path, body | {"request_id": "mine"}, result)["id"] == answer_id


def test_float_numbers_round_trip():
    """Whatever is said of base64."""
    body = {"input": ["a", "b"], "embed_dtype": "float16", "endianness": "big"}
    shown = answer("/v1/embeddings", body, embed_result())
    assert np.array_equal(np.array([item["embedding"] for item in shown["data"]], np.float32), VECTORS)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        pytest.param({}, "<f4", id="as the OpenAI client reads it"),
        pytest.param({"embed_dtype": None, "endianness": None}, "<f4", id="nulls"),
        pytest.param({"embed_dtype": "float32", "endianness": "native"}, "=f4", id="native"),
        pytest.param({"endianness": "big"}, ">f4", id="big"),
        pytest.param({"embed_dtype": "float16", "endianness": "little"}, "<f2", id="float16"),
        pytest.param({"embed_dtype": "float16", "endianness": "big"}, ">f2", id="float16 big"),
    ],
)
def test_base64_in_the_type_and_order_asked_for(options, dtype):
    """Byte for byte; of a matrix whose rows are not next to each other, too."""
    wide = np.array([[0.1, -1 / 3, 9.0], [0.0, 1.0, 9.0]], np.float32)
    body = {"input": ["a", "b"], "encoding_format": "base64", **options}
    shown = answer("/v1/embeddings", body, embed_result(wide[:, :2]))
    assert [b64decode(item["embedding"]) for item in shown["data"]] == [
        row.astype(dtype).tobytes() for row in wide[:, :2]
    ]


def test_numbers_too_large_for_float16():
    """Refused: an infinity would be no answer."""
    call = PARSE["/embeddings"](incoming({"input": "a", "encoding_format": "base64", "embed_dtype": "float16"}))
    with pytest.raises(InvalidField) as raised:
        call.render(embed_result())
    assert raised.value.field_name == "embed_dtype"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("encoding_format", "bytes", "`encoding_format` must be 'float' or 'base64'."),
        ("embed_dtype", "bfloat16", "`embed_dtype` must be 'float32' or 'float16'."),
        ("embed_dtype", "fp8_e4m3", "`embed_dtype` must be 'float32' or 'float16'."),
        ("endianness", "middle", "`endianness` must be 'native', 'little' or 'big'."),
    ],
)
@pytest.mark.parametrize("path", ["/embeddings", "/pooling"])
def test_number_formats_that_are_not_served(path, field, value, message):
    """Said before the model runs, also where base64 was not asked for."""
    with pytest.raises(InvalidField) as raised:
        PARSE[path](incoming({"input": "a", field: value}))
    assert (raised.value.message, raised.value.field_name) == (message, field)


# --- pooling --------------------------------------------------------------------------------------------------

DENSE = model_info("dense")
COLBERT = model_info("colbert", outputs=frozenset({"colbert", "tokens"}), dimensions=0)
BOTH = model_info("both", outputs=frozenset({"dense", "colbert", "sparse"}))
CLASSIFIER = model_info("classifier", outputs=frozenset(), labels=("sad", "glad"))


@pytest.mark.parametrize(
    ("models", "asked", "kind"),
    [
        pytest.param((), {}, {"dense"}, id="nothing known"),
        pytest.param((DENSE, CLASSIFIER), {}, {"dense"}, id="first embeds"),
        pytest.param((CLASSIFIER, DENSE), {}, None, id="first classifies"),
        pytest.param((COLBERT,), {}, {"colbert"}, id="first has token vectors alone"),
        pytest.param((DENSE, CLASSIFIER), {"model": "classifier"}, None, id="named"),
        pytest.param((CLASSIFIER, DENSE), {"model": "alias"}, {"dense"}, id="named otherwise"),
        pytest.param((CLASSIFIER,), {"task": "embed"}, {"dense"}, id="embed"),
        pytest.param((DENSE,), {"task": "classify"}, None, id="classify"),
        pytest.param((DENSE,), {"task": "token_embed"}, {"tokens"}, id="tokens"),
        pytest.param((BOTH,), {"task": "token_embed"}, {"colbert"}, id="tokens by ColBERT's head"),
        pytest.param((BOTH, DENSE), {"task": "token_embed", "model": "dense"}, {"tokens"}, id="tokens of the named"),
    ],
)
def test_what_a_pooling_request_asks_for(models, asked, kind):
    """The task named; else what the model named, or the first, is for. None stands for classes."""
    request = PARSE["/pooling"](replace(incoming({"input": "a"} | asked), models=models)).request
    if kind is None:
        assert request == ClassifyRequest(inputs=["a"], model=asked.get("model"), text=PLAIN)
    else:
        assert request == EmbedRequest(inputs=("a",), model=asked.get("model"), text=PLAIN, outputs=frozenset(kind))


@pytest.mark.parametrize("task", ["token_classify", "plugin", "score", ""])
def test_tasks_that_are_not_served(task):
    """Said by name of the field; an empty one is none."""
    if not task:
        assert isinstance(PARSE["/pooling"](incoming({"input": "a", "task": task})).request, EmbedRequest)
        return
    with pytest.raises(InvalidField) as raised:
        PARSE["/pooling"](incoming({"input": "a", "task": task}))
    assert raised.value.message == "`task` must be 'embed', 'classify' or 'token_embed'."


def test_the_pooled_answer_in_full():
    """vLLM's list of vectors under `data`."""
    shown = answer("/pooling", {"input": ["a", "b"]}, embed_result(ROWS, usage([(3, 3), (3, 3)])))
    assert stamped(shown, "pool") == {
        "object": "list",
        "model": "served",
        "data": [
            {"index": 0, "object": "pooling", "data": pytest.approx([0.6, -0.8])},
            {"index": 1, "object": "pooling", "data": [0.0, 1.0]},
        ],
        "usage": USAGE,
    }


def test_pooled_tokens_have_a_length_of_one():
    """vLLM's activation; without it they are as the model has them. A zero vector stays zero."""
    tokens = [np.array([[3, -4], [0, 0]], np.float32), np.array([[0, 2]], np.float32)]
    body = {"input": ["a", "b"], "task": "token_embed"}
    unit = answer("/pooling", body, token_result(tokens=tokens))
    assert [item["data"] for item in unit["data"]] == [[[0.6, -0.8], [0.0, 0.0]], [[0.0, 1.0]]]
    raw = answer("/pooling", body | {"use_activation": False}, token_result(tokens=tokens))
    assert [item["data"] for item in raw["data"]] == [[[3.0, -4.0], [0.0, 0.0]], [[0.0, 2.0]]]


def test_pooled_tokens_by_colberts_head():
    """As they come: they have a length of one, which cannot be undone."""
    body = {"input": ["a"], "task": "token_embed"}
    shown = answer("/pooling", body, token_result(colbert=[ROWS]), models=(BOTH,))
    assert shown["data"][0]["data"] == [pytest.approx([0.6, -0.8]), [0.0, 1.0]]
    with pytest.raises(InvalidField, match="`use_activation` cannot be false for ColBERT"):
        PARSE["/pooling"](replace(incoming(body | {"use_activation": False}), models=(BOTH,)))


def test_pooled_tokens_in_base64():
    """The numbers of one token after another, as vLLM writes them."""
    body = {"input": ["a"], "task": "token_embed", "encoding_format": "base64"}
    shown = answer("/pooling", body, token_result(tokens=[ROWS]))
    assert b64decode(shown["data"][0]["data"]) == ROWS.tobytes()


@pytest.mark.parametrize(("said", "raw"), [({}, False), ({"use_activation": False}, True)], ids=str)
def test_pooled_classes(said, raw):
    """A number a label, or its logit."""
    body = {"input": ["a"], "task": "classify"} | said
    assert PARSE["/pooling"](incoming(body)).request.raw is raw
    shown = answer("/pooling", body, classify_result((0.25, 0.5, 0.25)))
    assert shown["data"] == [{"index": 0, "object": "pooling", "data": [0.25, 0.5, 0.25]}]


def test_dimensions_of_classes():
    """Refused rather than ignored."""
    with pytest.raises(InvalidField) as raised:
        PARSE["/pooling"](incoming({"input": "a", "task": "classify", "dimensions": 2}))
    assert raised.value.field_name == "dimensions"


# --- classes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "inputs"), [("a", ["a"]), (["a", ""], ["a", ""])], ids=str)
@pytest.mark.parametrize(("said", "raw"), [({}, False), ({"use_activation": False}, True)], ids=str)
def test_a_request_to_classify(value, inputs, said, raw):
    """Texts; logits if so asked."""
    assert PARSE["/classify"](incoming({"input": value} | said)).request == ClassifyRequest(
        inputs=inputs, text=PLAIN, raw=raw
    )


@pytest.mark.parametrize("value", [[1, 2], [[1]], ["a", [1]]], ids=str)
def test_token_ids_are_not_classified(value):
    """Said, and what to send."""
    with pytest.raises(InvalidField, match="token ids cannot be classified here; send text"):
        PARSE["/classify"](incoming({"input": value}))


def test_the_classes_in_full():
    """The likeliest label of each text, and the numbers of all."""
    shown = answer("/classify", {"input": ["a", "b"]}, classify_result((0.25, 0.5, 0.25), (0.75, 0.0, 0.25)))
    assert stamped(shown, "classify") == {
        "object": "list",
        "model": "served",
        "data": [
            {"index": 0, "label": "glad", "probs": [0.25, 0.5, 0.25], "num_classes": 3},
            {"index": 1, "label": "sad", "probs": [0.75, 0.0, 0.25], "num_classes": 3},
        ],
        "usage": USAGE,
    }


# --- scores ---------------------------------------------------------------------------------------------------

NAMES = [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(("first", "second"), NAMES)
@pytest.mark.parametrize(
    ("one", "others", "passages"),
    [("q", "a", ["a"]), (["q"], ["a"], ["a"]), ("q", ["a", "b"], ["a", "b"]), (["q"], ["a", "b"], ["a", "b"])],
    ids=str,
)
def test_one_text_with_each(path, first, second, one, others, passages):
    """One request to rerank; errors name the client's keys."""
    request = route("POST", path).parse(incoming({first: one, second: others})).request
    assert request == RerankRequest(query="q", passages=passages, text=PLAIN, raw=False)


@pytest.mark.parametrize(("first", "second"), NAMES)
def test_each_text_with_each(first, second):
    """A request a pair, whose errors name its place."""
    body = {first: ["q", "r"], second: ["a", "b"], "model": "m", "use_activation": False, "truncate_prompt_tokens": 9}
    text = TextOptions(own_ids=True, truncate=True, max_tokens=9)
    assert PARSE["/score"](incoming(body)).request == MultiRequest(
        requests=[
            RerankRequest(
                query=query,
                passages=[passage],
                model="m",
                text=text,
                raw=True,
            )
            for place, (query, passage) in enumerate((("q", "a"), ("r", "b")))
        ],
    )


@pytest.mark.parametrize(
    ("first", "second", "error", "message"),
    [
        pytest.param([], ["a"], EmptyInput, "At least one text element must be given", id="0:1"),
        pytest.param(["q"], [], EmptyInput, "At least one text_pair element must be given", id="1:0"),
        pytest.param(["q", "r"], ["a"], InvalidField, "Input lengths must be either 1:1, 1:N or N:N", id="2:1"),
        pytest.param(["q", "r"], "a", InvalidField, "Input lengths must be either 1:1, 1:N or N:N", id="2:text"),
        pytest.param(["q"] * 2, ["a"] * 3, InvalidField, "Input lengths must be either 1:1, 1:N or N:N", id="2:3"),
    ],
)
def test_numbers_of_texts_that_do_not_fit(first, second, error, message):
    """vLLM's own words."""
    with pytest.raises(error) as raised:
        PARSE["/score"](incoming({"text_1": first, "text_2": second}))
    assert raised.value.message == message


@pytest.mark.parametrize("body", [{}, {"queries": "q"}, {"text_1": "q", "data_2": "a"}, {"documents": "a"}], ids=str)
def test_half_a_pair_of_names(body):
    """All of them are listed."""
    with pytest.raises(WrongType) as raised:
        PARSE["/score"](incoming(body))
    assert raised.value.message == (
        "The body must have `queries` and `documents`, or `queries` and `items`, or `data_1` and `data_2`, or "
        "`text_1` and `text_2`."
    )


def test_the_scores_in_full():
    """In the order of the texts, not the best first."""
    shown = answer(
        "/score", {"text_1": "q", "text_2": ["a", "b"]}, rerank_result(0.25, 0.75, usage=usage([(3, 3)] * 2))
    )
    assert stamped(shown, "score") == {
        "object": "list",
        "model": "served",
        "data": [{"index": 0, "object": "score", "score": 0.25}, {"index": 1, "object": "score", "score": 0.75}],
        "usage": USAGE,
    }


def test_the_scores_of_several_pairs_in_full():
    """The same, of as many results."""
    several = MultiResult(results=[rerank_result(0.25), rerank_result(0.75)], usage=usage([(3, 3)] * 2))
    shown = answer("/score", {"text_1": ["q", "r"], "text_2": ["a", "b"]}, several)
    assert stamped(shown, "score") == {
        "object": "list",
        "model": "served",
        "data": [{"index": 0, "object": "score", "score": 0.25}, {"index": 1, "object": "score", "score": 0.75}],
        "usage": USAGE,
    }


# --- reranking ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("documents", "passages"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([{"text": "a", "title": "t"}, "b"], ["a", "b"])],
    ids=str,
)
@pytest.mark.parametrize(("said", "raw"), [({}, False), ({"use_activation": False}, True)], ids=str)
def test_a_request_to_rerank(documents, passages, said, raw):
    """Probabilities unless logits are asked for."""
    assert PARSE["/rerank"](incoming({"query": "q", "documents": documents} | said)).request == RerankRequest(
        query="q", passages=passages, text=PLAIN, raw=raw
    )


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_the_ranking_in_full(path):
    """Best first, always with the document; `score` is for others who read this path's answers."""
    shown = answer(path, {**QUERY, "top_n": 0}, rerank_result(0.25, 0.75))
    assert re.fullmatch("rerank-[0-9a-f]{32}", shown.pop("id"))
    assert shown == {
        "model": "served",
        "usage": {"prompt_tokens": 18, "total_tokens": 18},
        "results": [
            {"index": 1, "document": {"text": "b"}, "relevance_score": 0.75, "score": 0.75},
            {"index": 0, "document": {"text": "a"}, "relevance_score": 0.25, "score": 0.25},
        ],
    }


@pytest.mark.parametrize(("top_n", "shown"), [(None, 2), (0, 2), (1, 1), (9, 2)])
def test_the_best_few(top_n, shown):
    """null and 0 are all, and so is more than there are."""
    assert len(answer("/rerank", {**QUERY, "top_n": top_n}, rerank_result(0.25, 0.75))["results"]) == shown


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": [1]}, "documents"),
        ({"query": "q", "documents": ["a"], "top_n": -1}, "top_n"),
    ],
    ids=str,
)
def test_what_cannot_be_reranked(body, field):
    """The field is named."""
    with pytest.raises(WrongType) as raised:
        PARSE["/rerank"](incoming(body))
    assert raised.value.field_name == field


# --- tokens ---------------------------------------------------------------------------------------------------

TOKENS = TokenizeResult(
    model="b",
    tokens=[[Token(101, "[CLS]", True, None, None), Token(2924, "bank", False, 0, 4)]],
    usage=usage([(2, 2)]),
)


@pytest.mark.parametrize(("said", "specials"), [({}, True), ({"add_special_tokens": False}, False)], ids=str)
def test_a_request_to_tokenize(said, specials):
    """With special tokens unless they are refused: the other way round than llama.cpp."""
    assert PARSE["/tokenize"](incoming({"prompt": "bank", "model": "b"} | said)).request == TokenizeRequest(
        inputs=["bank"], model="b", add_special_tokens=specials
    )


@pytest.mark.parametrize(("said", "strings"), [({}, None), ({"return_token_strs": True}, ["[CLS]", "bank"])], ids=str)
def test_the_tokens_in_full(said, strings):
    """With the limit of the model that answered."""
    models = (model_info("a"), model_info("b", max_input_tokens=512))
    assert answer("/tokenize", {"prompt": "bank"} | said, TOKENS, models=models) == {
        "count": 2,
        "max_model_len": 512,
        "tokens": [101, 2924],
        "token_strs": strings,
    }


def test_no_prompt():
    """Named as what is missing."""
    with pytest.raises(WrongType, match="`prompt` is required"):
        PARSE["/tokenize"](incoming({}))


def test_token_ids_to_text():
    """Special tokens stay; the text is under llama.cpp's key, too, whose body on this path is the same."""
    body = {"tokens": [101, 2924], "model": "m"}
    request = PARSE["/detokenize"](incoming(body)).request
    assert request == DecodeRequest(ids=[[101, 2924]], model="m", skip_special_tokens=False)
    decoded = DecodeResult(model="served", texts=["[CLS] bank"])
    assert answer("/detokenize", body, decoded) == {"prompt": "[CLS] bank", "content": "[CLS] bank"}


# --- facts ----------------------------------------------------------------------------------------------------


def test_the_version_is_this_servers():
    """Not one of vLLM's."""
    assert route("GET", "/version").parse(incoming(None)).request == ListModels()
    assert answer("/version", None, model_list(), "GET") == {"version": __version__}


def test_models_have_vllms_keys():
    """Beside everyone's."""
    shown = answer("/v1/models", None, model_list("a"), "GET")
    (model,) = shown["data"]
    added = {key: model[key] for key in ("id", "object", "owned_by", "root", "parent", "max_model_len", "permission")}
    assert added == {
        "id": "a",
        "object": "model",
        "owned_by": "local",
        "root": "org/model",
        "parent": None,
        "max_model_len": 256,
        "permission": [],
    }


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        pytest.param(WrongType("m", field="f"), 400, "BadRequestError", id="type"),
        pytest.param(ModelCannot("m", field="f"), 400, "BadRequestError", id="ability"),
        pytest.param(ModelNotFound("m", field="f"), 404, "NotFoundError", id="model"),
        pytest.param(Unauthorized("m", field="f"), 401, "Unauthorized", id="key"),
        pytest.param(Forbidden("m", field="f"), 403, "Forbidden", id="rights"),
        pytest.param(Overloaded("m", retry_after_s=2), 429, "Too Many Requests", id="load"),
        pytest.param(Unavailable("m"), 503, "Service Unavailable", id="start"),
        pytest.param(MethodNotAllowed("m", allowed=("GET",)), 405, "Method Not Allowed", id="method"),
        pytest.param(InferenceFailed("m", field="f"), 500, "InternalServerError", id="failure"),
        pytest.param(VectordError("m"), 500, "InternalServerError", id="bug"),
        pytest.param(InputTooLong("m", field="f"), 400, "BadRequestError", id="characters"),
    ],
)
def test_errors_in_full(error, code, kind):
    """The newer shape: an object under `error` whose code is the status."""
    rendered = render_error(error)
    assert rendered.status == code == next(ERRORS[kind] for kind in type(error).__mro__ if kind in ERRORS)
    assert json.loads(rendered.body) == {"error": {"message": "m", "type": kind, "param": error.field, "code": code}}


def test_over_long_text_in_full():
    """In the words that clients look for, with what helps, and with the place."""
    error = InputTooLong("`input[3]` must be less", field="input", index=3, limit=512, given=600)
    assert json.loads(render_error(error).body)["error"] == {
        "message": "This model's maximum context length is 512 tokens. However, you requested 600 tokens in the input. "
        "Please reduce the length of the input, or set `truncate_prompt_tokens`. `input[3]` must be less",
        "type": "BadRequestError",
        "param": "input",
        "code": 400,
    }


# --- routes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [route for route in DIALECT.routes if route.example], ids=lambda route: route.path)
def test_examples_are_requests(found):
    """What docs show can be asked, has the key the route is told by, and on shared paths the dialect's own."""
    assert found.parse(incoming(found.example)).request
    assert found.keys & set(found.example)
    if found.path in ("/v1/embeddings", "/embeddings", "/rerank", "/v1/rerank", "/v2/rerank", "/classify"):
        assert found.signs & set(found.example)
