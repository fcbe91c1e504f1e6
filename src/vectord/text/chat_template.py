"""Messages to text: a model's chat template in jinja2's sandbox, as transformers and vLLM run it.

chat.py imports this module in a thread, with the first conversation, and calls it there. The sandbox keeps a template
from Python's internals and from the values it is given. A text is limited; the template's time and memory are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from vectord.checkpoints.spec import ChatTemplate
from vectord.errors import InvalidField
from vectord.schema import Conversation

TEXT_LIMIT_CHARACTERS = 4 * 2**20
OPEN_END = "\ue000\ue001\ue000 "  # marks the end of the last message; its space shows whether the template trims


class Refused(TemplateError):
    """The template called `raise_exception`."""


class CannotContinue(Exception):
    """`continue_final_message` cannot be obeyed; the message says why."""


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class PlainNamespace(Namespace):
    """jinja2's `namespace` without names that begin with an underscore, as in transformers."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError("a name that begins with an underscore")
        super().__setitem__(name, value)


def raise_exception(message: object) -> NoReturn:
    raise Refused(str(message))


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def environment() -> ImmutableSandboxedEnvironment:
    """The names of transformers' chat templates. Source: transformers.utils.chat_template_utils."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
    made.filters["tojson"] = to_json
    made.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now, "namespace": PlainNamespace}
    return made


ENVIRONMENT = environment()


@lru_cache(maxsize=16)
def compiled(template: str) -> tuple[Any, bool]:
    """The template, and whether it reads the content of a message as a list of parts."""
    return ENVIRONMENT.from_string(template), reads_parts(ENVIRONMENT.parse(template))


def reads_parts(tree: nodes.Template) -> bool:
    """Whether a loop runs over the content of a message, or over a variable that holds it."""
    names: set[str] = set()
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, names):
            names.add(assignment.target.name)
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    """Whether the expression is `message.content`, `message["content"]` or one of `names`, also filtered or sliced."""
    match node:
        case nodes.Filter() | nodes.Test():
            return _is_content(node.node, names)
        case nodes.Getattr():
            return node.attr == "content"
        case nodes.Getitem(arg=nodes.Slice()):
            return _is_content(node.node, names)
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Name():
            return node.name in names
    return False


def rendered(template: ChatTemplate, conversation: Conversation) -> str | InvalidField:
    """The text, or the error: its reason has words of the template or of this file, never of the messages."""
    try:
        return _text(template, conversation)
    except Refused as refusal:
        reason = refusal.message or ""
        return _failed(reason[:200] if reason in template.text else "it refuses them")
    except CannotContinue as problem:
        return _failed(str(problem))
    except MemoryError:
        return _failed("it makes too long a text")
    except Exception as failure:  # a template can provoke every kind of failure
        return _failed(f"it fails ({type(failure).__name__})")


def _failed(reason: str) -> InvalidField:
    template = "The model's chat template does not render {field}: {reason}."
    return InvalidField(template, field="conversation", reason=reason)


def _text(template: ChatTemplate, conversation: Conversation) -> str:
    program, in_parts = compiled(template.text)
    messages = list(shown(json.loads(conversation.messages), in_parts))
    if conversation.continue_final_message:
        _mark_end(messages)
    variables = {**template.tokens, "tools": None, "documents": None, **json.loads(conversation.variables)}
    variables |= {"messages": messages, "add_generation_prompt": conversation.add_generation_prompt}
    parts, characters = [], 0
    for part in program.generate(variables):
        characters += len(part)
        if characters > TEXT_LIMIT_CHARACTERS:
            raise MemoryError
        parts.append(part)
    text = "".join(parts)
    return _up_to_mark(text) if conversation.continue_final_message else text


def shown(messages: Sequence[Mapping[str, Any]], in_parts: bool) -> Iterator[dict[str, Any]]:
    """The messages as the template reads them. The given content is a list of texts."""
    for message in messages:
        texts = [text for text in message["content"] if text]
        joined = not in_parts or message["role"] == "tool"
        content = "\n".join(texts) if joined else [{"type": "text", "text": text} for text in texts]
        yield {**message, "content": content}


def _mark_end(messages: Sequence[dict[str, Any]]) -> None:
    content = messages[-1]["content"] if messages else None
    if not content:
        raise CannotContinue("the last message has no text to continue")
    if isinstance(content, str):
        messages[-1]["content"] = content + OPEN_END
    else:
        content[-1]["text"] += OPEN_END


def _up_to_mark(text: str) -> str:
    at = text.rfind(OPEN_END.strip())
    if at < 0:
        raise CannotContinue("the template leaves out the last message, which cannot be continued")
    return text[:at] if text.startswith(OPEN_END, at) else text[:at].rstrip()
