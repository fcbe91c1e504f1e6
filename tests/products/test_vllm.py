"""vLLM: requests, answers, number formats and errors."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
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
from vectord.products.common.dialect import Guards
from vectord.products.vllm import DIALECT, ERRORS, MAX_DESCRIBED, render_error
from vectord.products.vllm.numbers import Numbers
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
from vectord.server.http.app import build_table
from vectord.server.pipeline import Shutdown

PARSE = parsers(DIALECT)
PLAIN = TextOptions(own_ids=True)
ROWS = np.array([[0.6, -0.8], [0.0, 1.0]], np.float32)
USAGE = {"prompt_tokens": 6, "total_tokens": 6, "completion_tokens": 0, "prompt_tokens_details": None}
QUERY = {"query": "q", "documents": ["a", "b"]}
PAIR = {"text_1": "q", "text_2": "a"}
# Each route with vLLM's options, and a minimal body.
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
    """The response body for this result of the engine, checked against the type that OpenAPI shows."""
    found = route(method, path)
    rendered = found.parse(replace(incoming(body), models=models)).render(result)
    assert rendered.status == 200
    msgspec.json.decode(rendered.body, type=found.answer)
    return json.loads(rendered.body)


def stamped(shown: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The answer without its id and time, which are checked."""
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
def test_truncate_prompt_tokens_sets_the_limit(parse, body, options, text):
    """-1 is the model's limit, and a number is a limit. Without it the server's setting applies."""
    read = parse(incoming(body | options)).request.text
    assert replace(read, own_ids=True) == text


@pytest.mark.parametrize(("parse", "body"), ASKED)
def test_cache_salt_separates_the_cache(parse, body):
    """On every route."""
    assert parse(incoming(body | {"cache_salt": "s3"})).request.text.cache_salt == "s3"
    assert parse(incoming(body)).request.text.cache_salt == ""


@pytest.mark.parametrize(("parse", "body"), ASKED)
def test_on_openais_route_ids_may_be_of_openais_models(parse, body):
    """On vLLM's own routes ids are the model's."""
    assert parse(incoming(body)).request.text.own_ids is (parse is not PARSE["/embeddings"])
    assert parse(incoming(body, guards=Guards(own_ids=True))).request.text.own_ids


@pytest.mark.parametrize(("parse", "body"), READING_INPUT)
@pytest.mark.parametrize(("changes", "added"), [({}, True), ({"add_special_tokens": False}, False)], ids=str)
def test_special_tokens_can_be_left_out(parse, body, changes, added):
    """On every route with `input`."""
    assert parse(incoming(body | changes)).request.text.add_special_tokens is added


@pytest.mark.parametrize(("parse", "body"), ASKED)
@pytest.mark.parametrize(("changes", "model"), [({}, None), ({"model": ""}, None), ({"model": "m"}, "m")], ids=str)
def test_the_requested_model(parse, body, changes, model):
    """Without a name the engine chooses."""
    assert parse(incoming(body | changes)).request.model == model


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
        pytest.param({"cache_salt": ""}, "`cache_salt` must have a length of at least 1.", id="no salt"),
        pytest.param({"cache_salt": "x" * 1025}, "`cache_salt` must have a length of at most 1024.", id="long salt"),
        pytest.param({"request_id": "x" * 257}, "`request_id` must have a length of at most 256.", id="id"),
    ],
)
def test_invalid_options_are_rejected(parse, body, options, message):
    """On every route, with the field's name."""
    with pytest.raises(InvalidField) as raised:
        parse(incoming(body | options))
    assert raised.value.message.startswith(message)
    assert raised.value.field_name == next(iter(options))


@pytest.mark.parametrize(("parse", "body"), ASKED)
def test_truncation_above_the_models_length_is_rejected(parse, body):
    """Of the named model, or of the only one. Without a name the engine chooses among several."""
    short, long = (
        model_info(name, max_input_tokens=length, labels=("yes", "no"), outputs=frozenset({"dense", "tokens"}))
        for name, length in (("short", 512), ("long", 8192))
    )
    asked = {**body, "truncate_prompt_tokens": 513}
    for models, name in (([short], None), ([short, long], "short")):
        with pytest.raises(InvalidField, match=r"at most 512 here; got 513\. Please request a smaller") as raised:
            parse(incoming({**asked, "model": name}, models=models))
        assert raised.value.field_name == "truncate_prompt_tokens"
    for models, name in (([short, long], None), ([short, long], "long"), ([long], None)):
        assert parse(incoming({**asked, "model": name}, models=models))


# --- messages -------------------------------------------------------------------------------------------------

READING_MESSAGES = [*READING_INPUT, pytest.param(PARSE["/tokenize"], {}, id="tokenize")]
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]


@pytest.mark.parametrize(("parse", "body"), READING_MESSAGES)
def test_messages_are_one_input(parse, body):
    """Without the model's prompt and special tokens, unless the body requests these."""
    body = {**body, "input": None, "messages": MESSAGES}
    call = parse(incoming({**body, "chat_template_kwargs": {"tone": "dry"}}))
    conversation = call.request.conversation
    assert json.loads(conversation.messages) == [
        {"role": "system", "content": ["Be kind."]},
        {"role": "user", "content": ["hi"]},
    ]
    assert json.loads(conversation.variables) == {"tone": "dry"}
    assert conversation.add_generation_prompt is isinstance(call.request, TokenizeRequest)
    assert not conversation.continue_final_message
    options = call.request if isinstance(call.request, TokenizeRequest) else call.request.text
    assert not options.add_special_tokens
    assert call.named(InputTooLong("{field} is long", field="inputs")).message == "`messages` is long"
    assert call.named(InvalidField("{field} fails", field="conversation")).message == "`messages` fails"
    if not isinstance(call.request, TokenizeRequest):
        assert options.prompt == ""
        assert parse(incoming({**body, "add_special_tokens": True})).request.text.add_special_tokens


@pytest.mark.parametrize(("parse", "body"), READING_MESSAGES)
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "{{ messages }}"}}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
            "messages[0]",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]}, "messages[0]"),
        ({"messages": [{"content": "no role"}]}, "messages[0].role"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}] * 1025}, "messages"),
    ],
    ids=str,
)
def test_messages_that_cannot_be_read_are_refused(parse, body, options, field):
    """With the field at fault: images, templates of clients, and options that exclude each other."""
    with pytest.raises(InvalidField) as raised:
        parse(incoming({**body, "input": None, "messages": MESSAGES, **options}))
    assert f"`{field}`" in raised.value.message


def test_tool_calls_have_their_arguments_as_an_object():
    """Clients send JSON in a string, and templates read an object."""
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    messages = [
        {"role": "assistant", "reasoning": "because", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    conversation = PARSE["/pooling"](incoming({"messages": messages})).request.conversation
    assistant, tool = json.loads(conversation.messages)
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert assistant["reasoning_content"] == "because"
    assert tool == {"role": "tool", "content": ["2"], "tool_call_id": "1"}


@pytest.mark.parametrize(("parse", "body"), READING_INPUT)
def test_input_is_required(parse, body):
    """An empty list is no input either."""
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
def test_input_is_texts_or_ids(value, inputs):
    """OpenAI's grammar."""
    request = PARSE["/embeddings"](incoming({"input": value, "priority": 3, "user": "u", "unknown": {}})).request
    assert request == EmbedRequest(inputs=request.inputs, text=TextOptions())
    assert list(request.inputs) == inputs


@pytest.mark.parametrize(("changes", "unit"), [(None, True), (True, True), (False, False)])
def test_use_activation_normalizes_vectors(changes, unit):
    """It replaced `normalize`."""
    assert PARSE["/embeddings"](incoming({"input": "a", "use_activation": changes})).request.normalize is unit


def test_dimensions_are_checked_by_the_engine():
    """The parser does not know the widths of a model."""
    request = PARSE["/embeddings"](incoming({"input": "a", "dimensions": 64})).request
    assert (request.dimensions, request.force_dimensions) == (64, False)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_the_embeddings_answer_in_full(path):
    """OpenAI's list with vLLM's usage and the truncated inputs."""
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
def test_a_request_id_is_part_of_the_answers_id(path, body, result, answer_id):
    """Clients match answers by it."""
    assert answer(path, body | {"request_id": "mine"}, result)["id"] == answer_id


def test_float_numbers_round_trip():
    """With any option for base64."""
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
def test_base64_has_the_requested_type_and_byte_order(options, dtype):
    """Byte for byte, also for rows that are not contiguous."""
    wide = np.array([[0.1, -1 / 3, 9.0], [0.0, 1.0, 9.0]], np.float32)
    body = {"input": ["a", "b"], "encoding_format": "base64", **options}
    shown = answer("/v1/embeddings", body, embed_result(wide[:, :2]))
    assert [b64decode(item["embedding"]) for item in shown["data"]] == [
        row.astype(dtype).tobytes() for row in wide[:, :2]
    ]


@pytest.mark.parametrize(
    ("name", "dtype", "bits"),
    [
        ("bfloat16", torch.bfloat16, torch.int16),
        ("fp8_e4m3", torch.float8_e4m3fn, torch.uint8),
        ("fp8_e5m2", torch.float8_e5m2, torch.uint8),
    ],
)
def test_small_types_are_rounded_as_torch_rounds(name, dtype, bits):
    """Every size, both signs, zeros, subnormal numbers, and numbers halfway between two."""
    steps = torch.arange(-(2**7), 2**7, dtype=torch.int16).to(torch.uint8).view(torch.float8_e5m2).float()
    known = steps[torch.isfinite(steps) & (steps.abs() <= 400)].numpy()
    middles = (np.sort(known)[1:] + np.sort(known)[:-1]) / 2
    random = np.random.default_rng(0).normal(0, 0.1, 2000)
    numbers = np.concatenate([known, middles, random, [1 / 3, 2**-10 * 3, 2**-17]]).astype(np.float32)
    want = torch.from_numpy(numbers).to(dtype).view(bits).numpy().tobytes()
    assert Numbers("base64", name, "little").packed(numbers) == want


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [("float16", 65504.0), ("bfloat16", 3.3895314e38), ("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)],
)
def test_numbers_too_large_for_the_type_are_rejected(dtype, largest):
    """The answer would contain infinities."""
    numbers = Numbers("base64", dtype, "native")
    assert numbers.packed(np.array([largest, -largest], np.float32))
    with pytest.raises(InvalidField) as raised, np.errstate(over="ignore"):
        numbers.packed(np.array([0, min(largest * 1.1, 3.4028235e38)], np.float32))
    assert raised.value.field_name == "embed_dtype"


@pytest.mark.parametrize("path", ["/embeddings", "/pooling"])
def test_bytes_are_described_by_a_header(path):
    """bytes_only leaves it out."""
    body = {"input": ["a", "b"], "encoding_format": "bytes", "embed_dtype": "float16", "request_id": "我"}
    rows = np.array([[0.5, -1.0, 0.25], [1.0, 0.0, 2.0]], np.float32)
    rendered = PARSE[path](incoming(body)).render(embed_result(rows))
    assert rendered.content_type == "application/octet-stream"
    assert rendered.body == rows.astype("<f2").tobytes()
    assert rendered.headers["metadata"].isascii()
    metadata = json.loads(rendered.headers["metadata"])
    described = {"embed_dtype": "float16", "endianness": "native", "shape": [3]}
    assert metadata["data"] == [
        {"index": 0, "start": 0, "end": 6, **described},
        {"index": 1, "start": 6, "end": 12, **described},
    ]
    assert metadata["usage"]["total_tokens"] == 7
    bare = PARSE[path](incoming(body | {"encoding_format": "bytes_only"})).render(embed_result(rows))
    assert (bare.body, dict(bare.headers)) == (rendered.body, {})


@pytest.mark.parametrize("path", ["/embeddings", "/pooling"])
def test_more_inputs_than_a_header_describes_are_refused_before_they_are_computed(path):
    """`bytes` has a place for each input in a header. A list of ids is one input, and `bytes_only` has no header."""
    body = {"input": ["a"] * (MAX_DESCRIBED + 1), "encoding_format": "bytes"}
    with pytest.raises(InvalidField) as raised:
        PARSE[path](incoming(body))
    assert (raised.value.field_name, raised.value.limit) == ("encoding_format", MAX_DESCRIBED)
    PARSE[path](incoming(body | {"encoding_format": "bytes_only"}))
    PARSE[path](incoming(body | {"input": [1] * (MAX_DESCRIBED + 1)}))
    call = PARSE[path](incoming(body | {"input": ["a"] * MAX_DESCRIBED, "request_id": "我" * 64}))
    assert len(call.render(embed_result(np.zeros((MAX_DESCRIBED, 4096), np.float32))).headers["metadata"]) < 60_000


def test_a_document_may_be_limited_to_some_tokens():
    body = {"query": "q", "documents": ["a"], "max_tokens_per_doc": 7}
    assert PARSE["/rerank"](incoming(body)).request.max_passage_tokens == 7
    assert PARSE["/rerank"](incoming(body | {"max_tokens_per_doc": None})).request.max_passage_tokens is None


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"input": "a"}, EmbedRequest),
        ({"query": "q", "documents": ["a"]}, RerankRequest),
        ({"text_1": "q", "text_2": "a"}, RerankRequest),
    ],
)
def test_invocations_take_every_kind_of_body(body, kind):
    table = build_table(None, [DIALECT], Shutdown(), None)
    choice = table.find("POST", "/invocations").endpoint.choose(json.dumps(body).encode())
    assert isinstance(choice.route.parse(incoming(body)).request, kind)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("encoding_format", "hex", "`encoding_format` must be 'float', 'base64', 'bytes' or 'bytes_only'."),
        (
            "embed_dtype",
            "float64",
            "`embed_dtype` must be 'float32', 'float16', 'bfloat16', 'fp8_e4m3' or 'fp8_e5m2'.",
        ),
        ("endianness", "middle", "`endianness` must be 'native', 'little' or 'big'."),
    ],
)
@pytest.mark.parametrize("path", ["/embeddings", "/pooling"])
def test_unknown_number_formats_are_rejected(path, field, value, message):
    """Before the model runs, also without base64."""
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
def test_the_task_of_a_pooling_request(models, asked, kind):
    """The named task, else the purpose of the named or the first model. None stands for classes."""
    request = PARSE["/pooling"](replace(incoming({"input": "a"} | asked), models=models)).request
    if kind is None:
        assert request == ClassifyRequest(inputs=["a"], model=asked.get("model"), text=PLAIN)
    else:
        assert request == EmbedRequest(inputs=("a",), model=asked.get("model"), text=PLAIN, outputs=frozenset(kind))


@pytest.mark.parametrize("task", ["embed", "token_embed", "classify"])
def test_tasks_that_the_named_model_was_not_trained_for_are_rejected(task):
    """With vLLM's sentence. Without a name, the engine looks for a model that can."""
    able = {"embed": {"outputs": frozenset({"dense"})}, "token_embed": {"outputs": frozenset({"colbert"})}}
    none = model_info("none", outputs=frozenset(), labels=())
    some = model_info("some", **{"outputs": frozenset(), **able.get(task, {"labels": ("yes",)})})
    for name in (None, "some"):
        assert PARSE["/pooling"](incoming({"input": "a", "task": task, "model": name}, models=[none, some]))
    with pytest.raises(InvalidField, match=f"^Unsupported task: '{task}'"):
        PARSE["/pooling"](incoming({"input": "a", "task": task, "model": "none"}, models=[none, some]))


@pytest.mark.parametrize("tokens", [-5, 2**31])
def test_max_tokens_per_doc_is_positive(tokens):
    """In vLLM's words."""
    with pytest.raises(InvalidField, match=r"^max_tokens_per_doc must be a positive integer"):
        PARSE["/rerank"](incoming({**QUERY, "max_tokens_per_doc": tokens}))


@pytest.mark.parametrize(("task", "shown"), [("plugin", ": 'plugin'"), ("score", ": 'score'"), ("other", ""), ("", "")])
def test_unknown_tasks_are_rejected(task, shown):
    """With vLLM's sentence for vLLM's tasks; an empty name counts as none."""
    if not task:
        assert isinstance(PARSE["/pooling"](incoming({"input": "a", "task": task})).request, EmbedRequest)
        return
    with pytest.raises(InvalidField) as raised:
        PARSE["/pooling"](incoming({"input": "a", "task": task}))
    known = "'embed', 'classify', 'token_embed' or 'token_classify'"
    assert raised.value.message == f"Unsupported task{shown}. `task` must be {known}."


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
    """Without the activation they are unchanged. A zero vector stays zero."""
    tokens = [np.array([[3, -4], [0, 0]], np.float32), np.array([[0, 2]], np.float32)]
    body = {"input": ["a", "b"], "task": "token_embed"}
    unit = answer("/pooling", body, token_result(tokens=tokens))
    assert [item["data"] for item in unit["data"]] == [[[0.6, -0.8], [0.0, 0.0]], [[0.0, 1.0]]]
    raw = answer("/pooling", body | {"use_activation": False}, token_result(tokens=tokens))
    assert [item["data"] for item in raw["data"]] == [[[3.0, -4.0], [0.0, 0.0]], [[0.0, 2.0]]]


def test_pooled_tokens_by_colberts_head():
    """ColBERT vectors have a length of one, which cannot be switched off."""
    body = {"input": ["a"], "task": "token_embed"}
    shown = answer("/pooling", body, token_result(colbert=[ROWS]), models=(BOTH,))
    assert shown["data"][0]["data"] == [pytest.approx([0.6, -0.8]), [0.0, 1.0]]
    with pytest.raises(InvalidField, match="`use_activation` cannot be false for ColBERT"):
        PARSE["/pooling"](replace(incoming(body | {"use_activation": False}), models=(BOTH,)))


def test_pooled_tokens_in_base64():
    """The numbers of all tokens in order."""
    body = {"input": ["a"], "task": "token_embed", "encoding_format": "base64"}
    shown = answer("/pooling", body, token_result(tokens=[ROWS]))
    assert b64decode(shown["data"][0]["data"]) == ROWS.tobytes()


@pytest.mark.parametrize(("changes", "raw"), [({}, False), ({"use_activation": False}, True)], ids=str)
def test_pooled_classes(changes, raw):
    """A probability for each label, or its logit."""
    body = {"input": ["a"], "task": "classify"} | changes
    assert PARSE["/pooling"](incoming(body)).request.raw is raw
    shown = answer("/pooling", body, classify_result((0.25, 0.5, 0.25)))
    assert shown["data"] == [{"index": 0, "object": "pooling", "data": [0.25, 0.5, 0.25]}]


@pytest.mark.parametrize(
    ("model", "kind"),
    [(DENSE, "embedding"), (CLASSIFIER, "probs"), (COLBERT, "pooling")],
    ids=["embeds texts", "classifies", "embeds tokens"],
)
def test_invocations_do_what_the_model_does(model, kind):
    """Each in its own form. OpenAPI has all three."""
    results = {"embedding": embed_result(ROWS[:1]), "probs": classify_result((0.25, 0.75))}
    found = route("POST", "/invocations")
    assert len(found.answers) == 3
    call = found.parse(replace(incoming({"input": ["a"]}), models=(model,)))
    (item,) = json.loads(call.render(results.get(kind, token_result(colbert=[ROWS]))).body)["data"]
    assert kind in item or item["object"] == kind


def test_dimensions_of_classes_are_rejected():
    """The option has no meaning for them."""
    with pytest.raises(InvalidField) as raised:
        PARSE["/pooling"](incoming({"input": "a", "task": "classify", "dimensions": 2}))
    assert raised.value.field_name == "dimensions"


# --- classes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "inputs"), [("a", ["a"]), (["a", ""], ["a", ""])], ids=str)
@pytest.mark.parametrize(("changes", "raw"), [({}, False), ({"use_activation": False}, True)], ids=str)
def test_classify_requests(value, inputs, changes, raw):
    """Texts; logits on request."""
    assert PARSE["/classify"](incoming({"input": value} | changes)).request == ClassifyRequest(
        inputs=inputs, text=PLAIN, raw=raw
    )


@pytest.mark.parametrize(("value", "ids"), [([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])], ids=str)
def test_token_ids_are_classified(value, ids):
    """As the model's own. A list holds either texts or ids."""
    for path in ("/classify", "/pooling"):
        body = {"input": value, "task": "classify"}
        assert PARSE[path](incoming(body)).request == ClassifyRequest(inputs=[], ids=tuple(ids), text=PLAIN)
        with pytest.raises(InvalidField, match="`input` must be texts or lists of token ids, not both"):
            PARSE[path](incoming({**body, "input": ["a", [1]]}))


def test_the_classes_in_full():
    """The most likely label of each text, and all probabilities."""
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
    """One rerank request; errors have the client's field names."""
    request = route("POST", path).parse(incoming({first: one, second: others})).request
    assert request == RerankRequest(query="q", passages=passages, text=PLAIN, raw=False)


@pytest.mark.parametrize(("first", "second"), NAMES)
def test_each_text_with_one(first, second):
    """One request for each pair; errors name the pair's index."""
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
def test_numbers_of_texts_must_match(first, second, error, message):
    """In vLLM's words."""
    with pytest.raises(error) as raised:
        PARSE["/score"](incoming({"text_1": first, "text_2": second}))
    assert raised.value.message == message


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queries": "q"},
        {"text_1": "q", "data_2": "a"},
        {"documents": "a"},
        {"queries": "q", "documents": "a", "items": "b"},
        {"queries": "q", "documents": "a", "text_1": "r", "text_2": "b"},
    ],
    ids=str,
)
def test_one_pair_of_names_is_required(body):
    """The error lists all pairs."""
    with pytest.raises(WrongType) as raised:
        PARSE["/score"](incoming(body))
    assert raised.value.message == (
        "The body must have either `queries` and `documents`, or `queries` and `items`, or `data_1` and `data_2`, or "
        "`text_1` and `text_2`."
    )


def test_the_scores_in_full():
    """In the order of the texts."""
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
    """The same for several results."""
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
@pytest.mark.parametrize(("changes", "raw"), [({}, False), ({"use_activation": False}, True)], ids=str)
def test_rerank_requests(documents, passages, changes, raw):
    """Probabilities by default, logits on request."""
    assert PARSE["/rerank"](incoming({"query": "q", "documents": documents} | changes)).request == RerankRequest(
        query="q", passages=passages, text=PLAIN, raw=raw
    )


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_the_ranking_in_full(path):
    """Best first, always with the document. `score` is for clients of other products on this path."""
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
def test_top_n_limits_the_results(top_n, shown):
    """null and 0 return all, and so does a larger number."""
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
def test_invalid_rerank_bodies_name_the_field(body, field):
    """The field is the client's."""
    with pytest.raises(WrongType) as raised:
        PARSE["/rerank"](incoming(body))
    assert raised.value.field_name == field


# --- tokens ---------------------------------------------------------------------------------------------------

TOKENS = TokenizeResult(
    model="b",
    tokens=[[Token(101, "[CLS]", True, None, None), Token(2924, "bank", False, 0, 4)]],
    usage=usage([(2, 2)]),
    max_input_tokens=512,
)


@pytest.mark.parametrize(("changes", "specials"), [({}, True), ({"add_special_tokens": False}, False)], ids=str)
def test_tokenize_requests(changes, specials):
    """Special tokens are added by default, unlike in llama.cpp."""
    assert PARSE["/tokenize"](incoming({"prompt": "bank", "model": "b"} | changes)).request == TokenizeRequest(
        inputs=["bank"], model="b", add_special_tokens=specials
    )


@pytest.mark.parametrize(
    ("changes", "strings"), [({}, None), ({"return_token_strs": True}, ["[CLS]", "bank"])], ids=str
)
def test_the_tokens_in_full(changes, strings):
    """With the token limit of the model, also if it was not listed before it was loaded."""
    assert answer("/tokenize", {"prompt": "bank"} | changes, TOKENS, models=(model_info("a"),)) == {
        "count": 2,
        "max_model_len": 512,
        "tokens": [101, 2924],
        "token_strs": strings,
    }


def test_prompt_is_required():
    """The error names the field."""
    with pytest.raises(WrongType, match="`prompt` is required"):
        PARSE["/tokenize"](incoming({}))


def test_token_ids_to_text():
    """Special tokens stay. The text is also under llama.cpp's key, because both products share this path."""
    body = {"tokens": [101, 2924], "model": "m"}
    request = PARSE["/detokenize"](incoming(body)).request
    assert request == DecodeRequest(ids=[[101, 2924]], model="m", skip_special_tokens=False)
    decoded = DecodeResult(model="served", texts=["[CLS] bank"])
    assert answer("/detokenize", body, decoded) == {"prompt": "[CLS] bank", "content": "[CLS] bank"}


# --- facts ----------------------------------------------------------------------------------------------------


def test_the_version_is_this_servers():
    """vectord's version, not one of vLLM."""
    assert route("GET", "/version").parse(incoming(None)).request == ListModels()
    assert answer("/version", None, model_list(), "GET") == {"version": __version__}


def test_models_have_vllms_keys():
    """In addition to the shared keys."""
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
    """An object under `error` whose code is the status."""
    rendered = render_error(error)
    assert rendered.status == code == next(ERRORS[kind] for kind in type(error).__mro__ if kind in ERRORS)
    assert json.loads(rendered.body) == {"error": {"message": "m", "type": kind, "param": error.field, "code": code}}


def test_over_long_text_in_full():
    """vLLM's sentence, which clients look for, and then vectord's, which has the place."""
    error = InputTooLong("`input[3]` must be less", field="input", index=3, limit=512, given=600)
    assert json.loads(render_error(error).body)["error"] == {
        "message": "This model's maximum context length is 512 tokens. However, you requested 600 tokens in the input. "
        "Please reduce the length of the input prompt, or set `truncate_prompt_tokens`. `input[3]` must be less",
        "type": "BadRequestError",
        "param": "input",
        "code": 400,
    }


# --- routes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [route for route in DIALECT.routes if route.example], ids=lambda route: route.path)
def test_examples_select_their_route(found):
    """On shared paths too."""
    assert found.parse(incoming(found.example)).request
    assert found.keys & set(found.example)
    if found.path in ("/v1/embeddings", "/embeddings", "/rerank", "/v1/rerank", "/v2/rerank", "/classify"):
        assert found.signs & set(found.example)
