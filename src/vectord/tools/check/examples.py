"""Every route that the server's own /openapi.json names: each answers its own example.

A route for a kind of model that is not served here refuses its example; that is not offered, and no failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vectord.tools.check.subject import Check, NotOffered, Subject, demand

MOST_CHECKS = 1000  # a document that names more is cut there
# What a server says where no model of that kind is served, or where only the operator may ask.
_NOT_FOR_US = (401, 403, 404, 405, 409, 415, 422, 424, 501)


def example_checks(subject: Subject) -> list[Check]:
    """Empty without a document."""
    if subject.openapi is None:
        return []
    found = []
    for method, path, name, body in _examples(subject.openapi.get("paths")):
        shown = f"{method} {path}" + (f", {name}" if name else "")
        found.append(Check(shown, _answers(method, path, body)))
        if len(found) == MOST_CHECKS:
            break
    return found


def _answers(method: str, path: str, body: Any) -> Any:
    def run(subject: Subject) -> None:
        reply = subject.offered(method, path, body)
        if reply.status in _NOT_FOR_US or (method == "POST" and reply.status == 400):
            raise NotOffered(f"{method} {path}: {reply.said()}")
        demand(200 <= reply.status < 400, reply.said())

    return run


def _examples(paths: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Method, path, the example's name, body. Anything may stand in a stranger's document."""
    for path, operations in paths.items() if isinstance(paths, dict) else ():
        if not isinstance(operations, dict) or not path.startswith("/") or "{" in path:
            continue
        if isinstance(operations.get("get"), dict):
            yield "GET", path, "", None
        for name, body in _bodies(operations.get("post")):
            yield "POST", path, name, body


def _bodies(operation: Any) -> Iterator[tuple[str, Any]]:
    try:
        content = operation["requestBody"]["content"]["application/json"]
    except (KeyError, TypeError):
        return
    if not isinstance(content, dict):
        return
    if "example" in content:
        yield "", content["example"]
    examples = content.get("examples")
    for name, example in examples.items() if isinstance(examples, dict) else ():
        if isinstance(example, dict) and "value" in example:
            yield str(name), example["value"]
