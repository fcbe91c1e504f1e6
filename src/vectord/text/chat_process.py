"""Renders chat templates in a process of its own, which chat.py starts, limits and ends.

A chat template is a Jinja program from a model's folder. jinja2's sandbox keeps it from Python's internals, but bounds
neither time nor memory; only a process can be bounded. It has no environment variables and may not write files.

Reads a frame from stdin, writes one to stdout, and so on until stdin ends. A frame: 4 bytes of length, then JSON. Not
imported by vectord: run as a script, it imports nothing but jinja2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

if sys.platform != "win32":
    import resource

MEMORY_LIMIT_BYTES = 512 * 2**20
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


def render(job: Mapping[str, Any]) -> str:
    """The text of a job's messages. Raises TemplateError, Refused, or whatever the template provokes."""
    template, in_parts = compiled(job["template"])
    messages = list(shown(job["messages"], in_parts))
    if job["continue_final_message"]:
        _mark_end(messages)
    variables = {**job["tokens"], "tools": None, "documents": None, **job["variables"]}
    variables |= {"messages": messages, "add_generation_prompt": job["add_generation_prompt"]}
    parts, characters = [], 0
    for part in template.generate(variables):
        characters += len(part)
        if characters > TEXT_LIMIT_CHARACTERS:
            raise MemoryError
        parts.append(part)
    text = "".join(parts)
    return _up_to_mark(text) if job["continue_final_message"] else text


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


def answer(job: Mapping[str, Any]) -> dict[str, str]:
    """{"text": ...}, or {"reason": ...}: words of the template or of this file, never of the messages."""
    try:
        return {"text": render(job)}
    except Refused as refusal:
        reason = refusal.message or ""
        return {"reason": reason[:200] if reason in job["template"] else "it refuses them"}
    except CannotContinue as problem:
        return {"reason": str(problem)}
    except MemoryError:
        return {"reason": "it makes too long a text"}
    except Exception as failure:  # a template can provoke every kind of failure
        return {"reason": f"it fails ({type(failure).__name__})"}


def serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Answer each job in order. The first frame, an empty one, reports that the process is ready."""
    packed = b""
    while True:
        answers.write(len(packed).to_bytes(4) + packed)
        answers.flush()
        size = jobs.read(4)
        if len(size) < 4:
            return
        answered = answer(json.loads(jobs.read(int.from_bytes(size))))
        packed = json.dumps(answered, ensure_ascii=False).encode("utf-8", "surrogatepass")  # as json.loads decodes it


def limit_process() -> None:
    if sys.platform != "win32":
        limits = (resource.RLIMIT_AS, MEMORY_LIMIT_BYTES), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)
        for limit, value in limits:
            resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    limit_process()
    serve(sys.stdin.buffer, sys.stdout.buffer)
