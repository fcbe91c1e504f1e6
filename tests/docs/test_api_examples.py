"""docs/api.md against a whole server: every command on the page is sent, and what it shows is what comes back.

The page's models are the default one, whose vectors are real, and two tiny random ones that are written here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import httpx
import msgspec
import pytest
from tests.reference.reference_models import write_bge_m3, write_bge_reranker
from tests.server.live import Reply

from vectord import compose
from vectord.config import Config, DeviceConfig, EngineConfig, ModelConfig, ServerConfig
from vectord.dialects.vectord import DIALECT
from vectord.dialects.vectord.errors import ERRORS, type_of
from vectord.schema import ScoreKind
from vectord.server import length_headers, result_headers
from vectord.server.routing import Table

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text("utf-8")
SERVER = "http://localhost:8000"
VARYING = frozenset({"timings", "created", "dtype", "tokenization_workers"})  # of a moment, or of a machine
FLOAT_TOLERANCE = 0.03  # between bfloat16 and float32, in numbers of about 1
STEP_TOLERANCE = 1  # the same in int8

_BLOCK = re.compile(r"```console\n\$ (?P<command>curl .*?)\n(?P<answer>\{.*?)```", re.DOTALL)
_SPACE = re.compile(r"\b[0-9a-f]{16}\b")  # a fingerprint: a checkpoint that is written anew may have another
MORE = "..."


@dataclass(frozen=True, slots=True)
class Example:
    """A command of the page and the answer below it, in which "..." stands for further numbers or keys."""

    method: str
    path: str
    headers: dict[str, str]
    body: str | None
    answer: Any


def examples() -> Iterator[Example]:
    for block in _BLOCK.finditer(PAGE):
        options = argparse.ArgumentParser()
        options.add_argument("url")
        options.add_argument("-X", dest="method")
        options.add_argument("-H", dest="headers", action="append", default=[])
        options.add_argument("-d", dest="body")
        asked = options.parse_args(shlex.split(block["command"].replace("\\\n", " "))[1:])
        yield Example(
            method=asked.method or ("GET" if asked.body is None else "POST"),
            path=f"http://{asked.url}".removeprefix(SERVER),
            headers=dict(header.split(": ", 1) for header in asked.headers),
            body=asked.body,
            answer=json.loads(re.sub(r"(?<=[,\[])\s*\.\.\.", f' "{MORE}"', block["answer"])),
        )


EXAMPLES = list(examples())


def write_classifier(folder: Path) -> Path:
    """A random XLM-RoBERTa with three labels. Its tokenizer is written down: training one twice may give two."""
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    labels = dict(enumerate(["sad", "glad", "mad"]))
    config = XLMRobertaConfig.from_pretrained(write_bge_reranker(folder), num_labels=len(labels), id2label=labels)
    model = XLMRobertaForSequenceClassification(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def replies(tmp_path_factory: pytest.TempPathFactory) -> list[Reply]:
    """The server's answer to each example, sent in the order of the page."""
    folder = tmp_path_factory.mktemp("api")
    tiny = [write_bge_m3(folder / "tiny-bge-m3"), write_classifier(folder / "tiny-classifier")]
    config = Config(
        model=ModelConfig(
            models=("all-MiniLM-L6-v2", *map(str, tiny)),
            composites=("both=dense:all-MiniLM-L6-v2+sparse:tiny-bge-m3",),
            offline=True,
        ),
        device=DeviceConfig(backend="openvino", dtype="float32", num_threads=1),
        engine=EngineConfig(tokenization_workers=1),
        server=ServerConfig(admin_key="operator"),
    )
    return asyncio.run(_ask_all(compose.build(config)))


async def _ask_all(composed: compose.Composition) -> list[Reply]:
    client = httpx.AsyncClient(transport=httpx.ASGITransport(composed.app), base_url=SERVER)
    async with composed.app.router.lifespan_context(composed.app), client:
        await composed.engine.loaded.wait()
        answers = [
            await client.request(example.method, example.path, headers=example.headers, content=example.body)
            for example in EXAMPLES
        ]
    return [Reply(answer.status_code, dict(answer.headers), answer.content) for answer in answers]


@pytest.mark.parametrize("place", range(len(EXAMPLES)), ids=[f"{i}-{one.path}" for i, one in enumerate(EXAMPLES)])
def test_an_example_is_answered_as_the_page_shows(place: int, replies: list[Reply]) -> None:
    """The same keys in the same places and, but for roundings, times and fingerprints, the same values."""
    shown, reply = EXAMPLES[place].answer, replies[place]
    assert (reply.status >= 400) == ("error" in shown), reply.json
    check_alike(shown, reply.json, "answer")


def check_alike(shown: Any, given: Any, at: str) -> None:
    """Raises AssertionError naming the place at which what is shown and what was given differ."""
    assert type(shown) is type(given), at
    if isinstance(shown, dict):
        _check_objects(shown, given, at)
    elif isinstance(shown, list):
        _check_lists(shown, given, at)
    elif isinstance(shown, float):
        assert shown == pytest.approx(given, abs=FLOAT_TOLERANCE), at
    elif isinstance(shown, str):
        assert _SPACE.sub("SPACE", shown) == _SPACE.sub("SPACE", given), at
    else:
        assert shown == given, at


def _check_objects(shown: dict[str, Any], given: dict[str, Any], at: str) -> None:
    assert shown.keys() == given.keys(), at
    for key, value in shown.items():
        if key not in VARYING:
            check_alike(value, given[key], f"{at}.{key}")
        elif isinstance(value, dict):
            assert value.keys() == given[key].keys(), f"{at}.{key}"


def _check_lists(shown: list[Any], given: list[Any], at: str) -> None:
    whole = not shown or shown[-1] != MORE
    shown = shown if whole else shown[:-1]
    assert len(shown) == len(given) if whole else len(shown) < len(given), at
    for index, (one, other) in enumerate(zip(shown, given, strict=False)):
        if type(one) is int:
            assert abs(one - other) <= STEP_TOLERANCE, f"{at}[{index}]"
        else:
            check_alike(one, other, f"{at}[{index}]")


# --- nothing is left out --------------------------------------------------------------------------------------


def test_every_route_of_the_dialect_has_an_example() -> None:
    """A route that is added without one fails here."""
    table = Table([DIALECT], [], DIALECT.render_error)
    shown = {(one.method, table.find(one.method, one.path).endpoint.path) for one in EXAMPLES}
    assert {(route.method, route.path) for route in DIALECT.routes} <= shown


@pytest.mark.parametrize("body", [route.body for route in DIALECT.routes if route.body], ids=lambda body: body.__name__)
def test_every_field_of_a_body_is_described(body: type[msgspec.Struct]) -> None:
    """By its name, those of objects within it too."""
    missing = [name for name in _fields(body) if f"`{name}`" not in PAGE]
    assert not missing


def _fields(struct: type[msgspec.Struct]) -> Iterator[str]:
    for name, kind in get_type_hints(struct).items():
        yield name
        for part in (kind, *get_args(kind)):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield from _fields(part)


def test_every_word_a_client_may_compare_is_listed() -> None:
    """Types of errors with their statuses, kinds of scores, and the names of headers."""
    errors = [f"| {status} | `{type_of(kind)}` |" for kind, status in ERRORS.items()]
    kinds = [f"`{kind}`" for kind in get_args(ScoreKind)]
    headers = [
        f"`{value}`"
        for module in (length_headers, result_headers)
        for value in vars(module).values()
        if isinstance(value, str) and value.startswith("x-vectord-")
    ]
    assert len(headers) == 7
    assert [word for word in (*errors, *kinds, *headers) if word not in PAGE] == []
