"""Reads the commands and responses on the pages of docs/, and compares responses with them."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.live import Reply

from vectord import compose
from vectord.config import Config, DeviceConfig, EngineConfig, ModelConfig, ServerConfig

SERVER = "http://localhost:8000"
VARYING = frozenset({"timings", "created", "dtype", "tokenization_workers"})  # differ per run or per machine
FLOAT_TOLERANCE = 0.03  # between bfloat16 and float32, for values near 1
STEP_TOLERANCE = 1  # the same for int8

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ASKED = re.compile(r"^\$ (?P<command>curl .*?)\n(?P<answer>[{\[].*?)(?=^\$ |\Z)", re.DOTALL | re.MULTILINE)
_SPACE = re.compile(r"\b[0-9a-f]{16}\b")  # a fingerprint, which may differ for a rewritten checkpoint
MORE = "..."


@dataclass(frozen=True, slots=True)
class Example:
    """A command of a page and its response, in which "..." stands for more items or keys, or for any value."""

    method: str
    port: int
    path: str
    headers: dict[str, str]
    body: str | None
    answer: Any


def replies_of(config: Config, requests: Sequence[Sequence[Any]]) -> list[Reply]:
    """The responses of a complete server. requests: method, path, headers and body."""

    async def ask_all() -> list[Reply]:
        composed = compose.build(config)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(composed.app), base_url=SERVER)
        async with composed.app.router.lifespan_context(composed.app), client:
            await composed.engine.loaded.wait()
            answers = [
                await client.request(method, path, headers=headers, content=body)
                for method, path, headers, body in requests
            ]
        return [Reply(answer.status_code, dict(answer.headers), answer.content) for answer in answers]

    return asyncio.run(ask_all())


def config_of(*models: Path | str, **options: Any) -> Config:
    """That of a server on the processor whose admin key is `operator`. options: further ones of the models."""
    return Config(
        model=ModelConfig(models=("all-MiniLM-L6-v2", *map(str, models)), offline=True, **options),
        device=DeviceConfig(backend="openvino", dtype="float32", num_threads=1),
        engine=EngineConfig(tokenization_workers=1),
        server=ServerConfig(admin_key="operator"),
    )


def examples(page: str) -> Iterator[Example]:
    for block in BLOCK.findall(page):
        for asked in _ASKED.finditer(block):
            yield _example(asked["command"], asked["answer"])


def _example(command: str, answer: str) -> Example:
    options = argparse.ArgumentParser()
    options.add_argument("url")
    options.add_argument("-X", dest="method")
    options.add_argument("-H", dest="headers", action="append", default=[])
    options.add_argument("-d", dest="body")
    asked = options.parse_args(shlex.split(command.replace("\\\n", " "))[1:])
    port, _, path = asked.url.removeprefix("localhost:").partition("/")
    return Example(
        method=asked.method or ("GET" if asked.body is None else "POST"),
        port=int(port),
        path=f"/{path}",
        headers=dict(header.split(": ", 1) for header in asked.headers),
        body=asked.body,
        answer=json.loads(_with_more(answer)),
    )


def _with_more(answer: str) -> str:
    """The JSON with "..." as a string: a value, the last item of a list, or the last key of an object."""
    answer = re.sub(r",\s*\.\.\.\s*\}", f', "{MORE}": "{MORE}"}}', answer)
    return re.sub(r"(?<=[,\[:])\s*\.\.\.", f' "{MORE}"', answer)


def check_alike(shown: Any, given: Any, at: str) -> None:
    """Raises AssertionError with the place of the first difference."""
    if shown == MORE:
        return
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
    assert shown.keys() - {MORE} <= given.keys() if MORE in shown else shown.keys() == given.keys(), at
    for key, value in shown.items():
        if key == MORE:
            continue
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
