"""Conversations in chat templates: the text that transformers makes, and templates that are hostile or broken."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.models import write_bert
from transformers import AutoTokenizer

from vectord.checkpoints.spec import ChatTemplate
from vectord.errors import InputTooLong, InvalidField, Overloaded
from vectord.schema import Conversation
from vectord.text import chat
from vectord.text.chat import ChatTemplates

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMING = """
{%- for message in messages %}
    {%- if loop.first and message.role != 'user' %}{{ raise_exception('The user begins.') }}{% endif %}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ cls_token + message.content | trim + sep_token }}{% endgeneration %}
    {%- else %}
        {{- '[' + message.role + ' ' + (topic | default('none')) + '] ' + message.content | trim }}
    {%- endif %}
    {%- if loop.index == 40 %}{% break %}{% endif %}
{%- endfor %}
"""
PARTS = (
    "{% set ns = namespace(n=0) %}{% for message in messages %}{% for part in message.content %}"
    "{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ {'q': '<\">', 'role': message.role} | tojson }}{{ part.type }}"
    " {{ part.text }}{% endfor %}{% endfor %}"
)
MESSAGES = [
    {"role": "user", "content": "  The cat sat on the mat."},
    {"role": "assistant", "content": 'A "feline" rested <on> a rug.  '},
]


@pytest.fixture
async def templates() -> AsyncIterator[ChatTemplates]:
    made = ChatTemplates()
    yield made
    await made.close()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(write_bert(tmp_path_factory.mktemp("bert")))


def conversation(*texts: str, **options: Any) -> Conversation:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": [text]} for i, text in enumerate(texts)]
    return Conversation(messages=json.dumps(messages), **options)


@pytest.mark.parametrize(
    "options", [{}, {"add_generation_prompt": True}, {"continue_final_message": True}], ids=["plain", "prompt", "open"]
)
@pytest.mark.parametrize("template", [CHATML, TRIMMING, PARTS], ids=["chatml", "trimming", "parts"])
async def test_the_text_is_that_of_transformers(
    template: str, options: dict[str, bool], tokenizer: Any, templates: ChatTemplates
) -> None:
    """With its filters, tags, tokens and further variables; content is a list where the template loops over it."""
    given = MESSAGES
    if template is PARTS:
        given = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in MESSAGES]
    expected = tokenizer.apply_chat_template(given, chat_template=template, tokenize=False, topic="cats", **options)
    tokens = {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    asked = conversation(*(one["content"] for one in MESSAGES), variables='{"topic": "cats"}', **options)
    assert await templates.render(ChatTemplate(template, tokens), asked) == expected


async def test_parts_of_a_message_are_lines_of_a_template_that_reads_texts(templates: ChatTemplates) -> None:
    """As in vLLM; empty parts are left out."""
    messages = json.dumps([{"role": "user", "content": ["a", "", "b"]}])
    text = await templates.render(ChatTemplate("{{ messages[0].content }}", {}), Conversation(messages=messages))
    assert text == "a\nb"


async def test_a_small_conversation_waits_for_one_large_one(templates: ChatTemplates) -> None:
    """Also if the large ones of other clients take all the room. 24 clients with 1 MB each delayed it by 0.5 s."""
    size = chat.MAX_WAITING_CHARACTERS // 10
    template = ChatTemplate("{{ messages[0].content[:5] }}", {})
    rendered: list[str] = []

    async def render(text: str) -> None:
        rendered.append(await templates.render(template, conversation(text)))

    waiting = [asyncio.create_task(render(f"{number} " + "x" * size)) for number in range(9)]
    await asyncio.sleep(0)
    await asyncio.gather(render("small"), *waiting)
    assert rendered.index("small") <= 1


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        pytest.param(
            "{% for a in range(9**5) %}{% for b in range(9**5) %}{% endfor %}{% endfor %}", "0.5 s", id="time"
        ),
        pytest.param("{{ 'a' * 10**9 }}", "too long a text", id="memory"),
        pytest.param("{% for a in range(9**5) %}{{ 'a' * 99 }}{% endfor %}", "too long a text", id="text"),
        pytest.param("{{ ''.__class__.__mro__ }}", "SecurityError", id="internals"),
        pytest.param("{{ messages.append(1) }}", "SecurityError", id="changes"),
        pytest.param("{% include '/etc/passwd' %}", "TypeError", id="files"),
        pytest.param("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError", id="depth"),
        pytest.param("{% for", "TemplateSyntaxError", id="syntax"),
        pytest.param("{{ raise_exception('Two roles only.') }}", "Two roles only.", id="its own words"),
        pytest.param("{{ raise_exception(messages[0].content) }}", "it refuses them", id="the client's words"),
    ],
)
async def test_a_template_that_fails_fails_alone(template: str, reason: str) -> None:
    """The error has none of the client's words, and the next conversation is rendered."""
    templates = ChatTemplates(render_limit_s=0.5)
    with pytest.raises(InvalidField) as raised:
        await templates.render(ChatTemplate(template, {}), conversation("a secret"))
    assert reason in raised.value.message
    assert raised.value.field == "conversation"
    assert await templates.render(ChatTemplate(CHATML, {}), conversation("b")) == "<|im_start|>user\nb<|im_end|>\n"
    await templates.close()


async def test_a_template_that_drops_the_last_message_cannot_continue_it(templates: ChatTemplates) -> None:
    """There is no end that could be left open."""
    for asked in (conversation("a", "b", continue_final_message=True), conversation("", continue_final_message=True)):
        with pytest.raises(InvalidField, match="continue"):
            await templates.render(ChatTemplate("{{ messages[0].content }}", {}), asked)


async def test_large_conversations_at_the_same_time_are_bounded(templates: ChatTemplates) -> None:
    """Of 30, those that fit are answered, each with its own text; the others are refused, and one after them is not."""
    size = chat.MAX_WAITING_CHARACTERS // 10
    given = [conversation(f"{number} " + "x" * size) for number in range(30)]
    template = ChatTemplate("{{ messages[0].content[:5] }}", {})
    answers = await asyncio.gather(*(templates.render(template, each) for each in given), return_exceptions=True)
    assert answers[:9] == [f"{number} xxxxx"[:5] for number in range(9)]
    assert all(isinstance(answer, Overloaded) for answer in answers[9:])
    assert await templates.render(template, given[-1]) == "29 xx"


async def test_a_large_text_is_decoded_in_a_thread(templates: ChatTemplates, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stop the event loop for 30 ms. Half a surrogate pair, which a template can make, arrives too."""
    threads, real = [], json.loads

    def loads(frame: bytes) -> Any:
        threads.append(threading.get_ident())
        return real(frame)

    monkeypatch.setattr(json, "loads", loads)
    text = "中" * 2**16
    template = ChatTemplate("{{ messages[0].content }}\ud800", {})
    assert await templates.render(template, conversation(text)) == text + "\ud800"
    assert await templates.render(template, conversation("中")) == "中\ud800"
    large, small = threads
    assert large != small == threading.get_ident()


@pytest.mark.skipif(sys.platform != "linux", reason="the environment of a process is read from /proc")
async def test_its_process_has_no_environment_variables(
    templates: ChatTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may hold keys, which a template that leaves the sandbox could read."""
    monkeypatch.setenv("VECTORD_API_KEY", "secret")
    await templates.render(ChatTemplate(CHATML, {}), conversation("a"))
    assert templates._process is not None
    assert await asyncio.to_thread(Path(f"/proc/{templates._process.pid}/environ").read_bytes) == b""


async def test_a_cancelled_conversation_answers_no_other(templates: ChatTemplates) -> None:
    """Its process ends with it."""
    slow = ChatTemplate("{% for a in range(9**5) %}{% for b in range(9**5) %}{% endfor %}{% endfor %}", {})
    await templates.render(ChatTemplate(CHATML, {}), conversation("a"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(templates.render(slow, conversation("a")), 0.1)
    both = await asyncio.gather(
        *(templates.render(ChatTemplate("{{ messages[0].content }}", {}), conversation(text)) for text in "bc")
    )
    assert both == ["b", "c"]


async def test_a_conversation_is_limited_before_it_is_rendered(
    templates: ChatTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process starts for it, nor for a model without a template."""
    monkeypatch.setattr(chat, "_SCRIPT", Path("/none"))
    with pytest.raises(InputTooLong, match="4,194,304 characters"):
        await templates.render(ChatTemplate(CHATML, {}), conversation("a" * chat.LIMIT_CHARACTERS))
    with pytest.raises(InvalidField, match="no chat template"):
        await templates.render(None, conversation("a"))
