"""Messages to text: a model's chat template in jinja2's sandbox, as transformers and vLLM run it.

chat.py imports this module in a thread, with the first conversation, and calls it there. The sandbox keeps a template
from Python's internals and from the values it is given. The time of a template and the length of its text are limited;
its memory is not.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Sized
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from vectord.checkpoints.spec import ChatTemplate
from vectord.errors import InvalidField
from vectord.schema import Conversation

TEXT_LIMIT_CHARACTERS = 4 * 2**20
TIME_LIMIT_S = 5.0  # of the processor; the longest conversations take tenths of a second
NUMBER_LIMIT_BITS = 64
OPEN_END = "\ue000\ue001\ue000 "  # marks the end of the last message; its space shows whether the template trims


class Refused(TemplateError):
    """The template called `raise_exception`."""


class CannotContinue(Exception):
    """`continue_final_message` cannot be obeyed; the message says why."""


class TookTooLong(Exception):
    """The template ran for TIME_LIMIT_S."""


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


class Environment(ImmutableSandboxedEnvironment):
    """The names of transformers' chat templates, and a limit of time, which each call and each step of a loop checks.

    Source of the names: transformers.utils.chat_template_utils.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
        self.filters["tojson"] = to_json
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now, "namespace": PlainNamespace}
        self._thread = threading.local()  # one template runs in a thread at a time

    def begin(self) -> None:
        """The template that this thread runs next has TIME_LIMIT_S."""
        self._thread.ends_s = time.thread_time() + TIME_LIMIT_S

    def step(self) -> bool:
        """Called by each step of a loop: see `compiled`."""
        return True

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if time.thread_time() > __self._thread.ends_s:
            raise TookTooLong
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Limits the results that Python would compute for hours, while no other thread runs."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            is_large = bits > NUMBER_LIMIT_BITS
        else:
            count, sequence = (left, right) if isinstance(left, int) else (right, left)
            is_large = isinstance(sequence, Sized) and len(sequence) * count > TEXT_LIMIT_CHARACTERS
        if is_large:
            raise OverflowError
        return super().call_binop(context, operator, left, right)


ENVIRONMENT = Environment()


@lru_cache(maxsize=16)
def compiled(template: str) -> tuple[Any, bool]:
    """The template, and whether it reads the content of a message as a list of parts."""
    tree = ENVIRONMENT.parse(template)
    in_parts = reads_parts(tree)
    for loop in tree.find_all(nodes.For):
        step = nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None)
        if loop.test is None:
            loop.body.insert(0, nodes.ExprStmt(step))
        else:
            loop.test = nodes.And(step, loop.test)
    return ENVIRONMENT.from_string(tree), in_parts


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
    except TookTooLong:
        return _failed(f"it does not end within {TIME_LIMIT_S:g} s")
    except Exception as failure:  # a template can provoke every kind of failure
        return _failed(f"it fails ({type(failure).__name__})")


def _failed(reason: str) -> InvalidField:
    template = "The model's chat template does not render {field}: {reason}."
    return InvalidField(template, field="conversations", reason=reason)


def _text(template: ChatTemplate, conversation: Conversation) -> str:
    program, in_parts = compiled(template.text)
    messages = list(shown(json.loads(conversation.messages), in_parts))
    if conversation.continue_final_message:
        content = messages[-1]["content"] if messages else None
        if not content:
            raise CannotContinue("the last message has no text to continue")
        if isinstance(content, str):
            messages[-1]["content"] = content + OPEN_END
        else:
            content[-1]["text"] += OPEN_END
    variables = {**template.tokens, "tools": None, "documents": None, **json.loads(conversation.variables)}
    variables |= {"messages": messages, "add_generation_prompt": conversation.add_generation_prompt}
    ENVIRONMENT.begin()
    parts, characters = [], 0
    for part in program.generate(variables):
        characters += len(part)
        if characters > TEXT_LIMIT_CHARACTERS:
            raise MemoryError
        parts.append(part)
    text = "".join(parts)
    if not conversation.continue_final_message:
        return text
    at = text.rfind(OPEN_END.strip())
    if at < 0:
        raise CannotContinue("the template leaves out the last message, which cannot be continued")
    return text[:at] if text.startswith(OPEN_END, at) else text[:at].rstrip()


def shown(messages: Sequence[Mapping[str, Any]], in_parts: bool) -> Iterator[dict[str, Any]]:
    """The messages as the template reads them. The given content is a list of texts."""
    for message in messages:
        texts = [text for text in message["content"] if text]
        joined = not in_parts or message["role"] == "tool"
        content = "\n".join(texts) if joined else [{"type": "text", "text": text} for text in texts]
        yield {**message, "content": content}
