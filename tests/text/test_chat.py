"""Conversations in chat templates: the text that transformers makes, and templates that are hostile or broken."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from tests.models import write_bert
from transformers import AutoTokenizer

from vectord.checkpoints.spec import ChatTemplate
from vectord.errors import InputTooLong, InvalidField, Overloaded
from vectord.schema import Conversation
from vectord.text import chat, chat_template
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
    "{% set ns = namespace(n=0) %}{{ 2 * 1.5 ~ 2 ** 8 ~ '-' * 8 }}"
    "{% for message in messages %}{% for part in message.content %}"
    "{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ {'q': '<\">', 'role': message.role} | tojson }}{{ part.type }}"
    " {{ part.text }}{% endfor %}{% endfor %}"
)
MESSAGES = [
    {"role": "user", "content": "  The cat sat on the mat."},
    {"role": "assistant", "content": 'A "feline" rested <on> a rug.  '},
]


@pytest.fixture
def templates() -> ChatTemplates:
    return ChatTemplates()


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
    assert await templates.render(ChatTemplate(template, tokens), asked, "a") == expected


async def test_parts_of_a_message_are_lines_of_a_template_that_reads_texts(templates: ChatTemplates) -> None:
    """As in vLLM; empty parts are left out."""
    messages = json.dumps([{"role": "user", "content": ["a", "", "b"]}])
    template = ChatTemplate("{{ messages[0].content }}", {})
    assert await templates.render(template, Conversation(messages=messages), "a") == "a\nb"


@pytest.mark.parametrize(
    ("text", "count"), [("small", 800), ("x" * (chat.LIMIT_CHARACTERS // 2), 7)], ids=["small", "large"]
)
async def test_a_conversation_waits_for_two_of_another_client_at_most(
    text: str, count: int, templates: ChatTemplates
) -> None:
    """800 conversations of one client delayed another's by more than 25 s."""
    template = ChatTemplate("{{ messages[0].content[:5] }}", {})
    rendered: list[str] = []

    async def render(client: str, text: str) -> None:
        await templates.render(template, conversation(text), client)
        rendered.append(client)

    flood = [asyncio.create_task(render("flood", text)) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.gather(render("other", "small"), *flood)
    assert rendered.index("other") <= 2


async def test_conversations_that_fail_count(templates: ChatTemplates) -> None:
    """In the share of their client: a template refuses them after the same work."""
    refusing = ChatTemplate("{% for a in range(999) %}{% endfor %}{{ raise_exception('no') }}", {})
    ended: list[str] = []

    async def render(client: str) -> None:
        with pytest.raises(InvalidField):
            await templates.render(refusing, conversation("a"), client)
        ended.append(client)

    await asyncio.gather(*(render(client) for client in ["flood"] * 9 + ["other"] * 3))
    assert [place for place, client in enumerate(ended) if client == "other"] in ([1, 3, 5], [2, 4, 6])


async def test_a_template_does_not_run_on_the_event_loop(
    templates: ChatTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests continue while a large conversation is rendered."""
    threads, real = [], json.loads

    def loads(text: str) -> Any:
        threads.append(threading.get_ident())
        return real(text)

    monkeypatch.setattr(json, "loads", loads)
    assert await templates.render(ChatTemplate(CHATML, {}), conversation("a"), "a")
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        pytest.param("{% for a in range(10**6) %}{% endfor %}", "OverflowError", id="range"),
        pytest.param("{% for a in range(9**5) %}{{ 'a' * 99 }}{% endfor %}", "too long a text", id="text"),
        pytest.param("{{ ''.__class__.__mro__ }}", "SecurityError", id="internals"),
        pytest.param("{{ messages.append(1) }}", "SecurityError", id="changes"),
        pytest.param("{% include '/etc/passwd' %}", "TypeError", id="files"),
        pytest.param("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError", id="depth"),
        pytest.param("{{ 9 ** 9 ** 9 }}", "OverflowError", id="power"),
        pytest.param("{{ 'a' * 9 ** 9 }}", "OverflowError", id="repetition"),
        pytest.param("{% for", "TemplateSyntaxError", id="syntax"),
        pytest.param("{{ raise_exception('Two roles only.') }}", "Two roles only.", id="its own words"),
        pytest.param("{{ raise_exception(messages[0].content) }}", "it refuses them", id="the client's words"),
    ],
)
async def test_a_template_that_fails_fails_alone(template: str, reason: str, templates: ChatTemplates) -> None:
    """The error has none of the client's words, and the next conversation is rendered."""
    with pytest.raises(InvalidField) as raised:
        await templates.render(ChatTemplate(template, {}), conversation("a secret"), "a")
    assert reason in raised.value.message
    assert raised.value.field == "conversations"
    text = await templates.render(ChatTemplate(CHATML, {}), conversation("b"), "a")
    assert text == "<|im_start|>user\nb<|im_end|>\n"


FOR_EVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(FOR_EVER + "{% endfor %}" * 3, id="loops"),
        pytest.param(FOR_EVER.replace(") %}", ") if not a %}") + "{% endfor %}" * 3, id="filtered loops"),
        pytest.param(
            "{% macro two(n) %}{% if n %}{{ two(n - 1) }}{{ two(n - 1) }}{% endif %}{% endmacro %}{{ two(99) }}",
            id="macros",
        ),
        pytest.param(
            "{% for a in 'ab' recursive %}{{ loop('ab') if loop.depth < 99 }}{% endfor %}", id="recursive loops"
        ),
    ],
)
async def test_a_template_that_loops_for_ever_is_ended(
    template: str, templates: ChatTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversations after it are rendered."""
    monkeypatch.setattr(chat_template, "TIME_LIMIT_S", 0.05)
    endless = templates.render(ChatTemplate(template, {}), conversation("a"), "a")
    other = asyncio.create_task(templates.render(ChatTemplate(CHATML, {}), conversation("b"), "b"))
    with pytest.raises(InvalidField, match="does not end within"):
        await endless
    assert await other == "<|im_start|>user\nb<|im_end|>\n"


async def test_a_template_that_drops_the_last_message_cannot_continue_it(templates: ChatTemplates) -> None:
    """There is no end that could be left open."""
    for asked in (conversation("a", "b", continue_final_message=True), conversation("", continue_final_message=True)):
        with pytest.raises(InvalidField, match="continue"):
            await templates.render(ChatTemplate("{{ messages[0].content }}", {}), asked, "a")


async def test_large_conversations_at_the_same_time_are_bounded(templates: ChatTemplates) -> None:
    """One client has half of the room: of its 30, those that fit are answered, each with its own text, and the others
    are refused. Another client's is not, nor is one after them."""
    size = chat.MAX_WAITING_CHARACTERS // 10
    given = [conversation(f"{number} " + "x" * size) for number in range(30)]
    template = ChatTemplate("{{ messages[0].content[:5] }}", {})
    flood = [templates.render(template, each, "flood") for each in given]
    *answers, other = await asyncio.gather(*flood, templates.render(template, given[7], "b"), return_exceptions=True)
    assert answers[:4] == [f"{number} xxx" for number in range(4)]
    assert all(isinstance(answer, Overloaded) for answer in answers[4:])
    assert other == "7 xxx"
    assert await templates.render(template, given[-1], "flood") == "29 xx"


async def test_a_cancelled_conversation_answers_no_other(templates: ChatTemplates) -> None:
    """Cancelled while it is rendered, or while it waits."""
    slow = ChatTemplate("{% for a in range(99999) %}{% endfor %}", {})
    template = ChatTemplate("{{ messages[0].content }}", {})
    cancelled = [asyncio.create_task(templates.render(slow, conversation("a"), "a")) for _ in range(3)]
    await asyncio.sleep(0)
    for task in cancelled:
        task.cancel()
    both = await asyncio.gather(*(templates.render(template, conversation(text), "a") for text in "bc"))
    assert both == ["b", "c"]
    assert all(
        isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*cancelled, return_exceptions=True)
    )


async def test_a_conversation_is_limited_before_it_is_rendered(templates: ChatTemplates) -> None:
    """Its template would fail."""
    with pytest.raises(InputTooLong, match="4,194,304 characters"):
        await templates.render(ChatTemplate("{{ 1 / 0 }}", {}), conversation("a" * chat.LIMIT_CHARACTERS), "a")
    with pytest.raises(InvalidField, match="no chat template"):
        await templates.render(None, conversation("a"), "a")
