"""vLLM: what the bodies of all routes may say, and the formats of numbers. cases/vllm.json has the rest."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.products.results import embed_result, incoming, model_info, parsers

from vectord.errors import EmptyInput, InputTooLong, InvalidField, WrongType
from vectord.products.common.dialect import Guards
from vectord.products.vllm import DIALECT, MAX_DESCRIBED
from vectord.products.vllm.numbers import Numbers
from vectord.schema import TextOptions, TokenizeRequest

PARSE = parsers(DIALECT)
PLAIN = TextOptions(own_ids=True)
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


# --- numbers --------------------------------------------------------------------------------------------------


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
