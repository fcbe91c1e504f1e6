"""Errors name fields of the body, in every product: its examples, each with one fault."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.dialects import all_dialects
from tests.engine.fakes import CLASSIFIER, M3, FakeBackend, backend_for
from tests.text.makers import make_encoder, wordpiece

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import Backend
from vectord.config import EngineConfig
from vectord.engine.engine import Engine
from vectord.engine.models.registry import ModelSource
from vectord.errors import ModelNotFound, VectordError
from vectord.products.common.dialect import Dialect, Guards, Incoming, Route
from vectord.schema import Caller
from vectord.text.sequence import Encoder

MOST = 4  # inputs in a request
LONG = "birds " * 200  # the models read 64 tokens
FOREIGN = 10**6
DIALECTS = all_dialects()

# Invalid values by key.
TEXTS: tuple[Any, ...] = (
    [],
    "",
    [""],
    LONG,
    ["birds", LONG],
    ["birds"] * (MOST + 1),
    [[FOREIGN], [FOREIGN]],
    [FOREIGN],
    [["birds"]] * (MOST + 1),
    [["birds"] * (MOST + 1)],
    [["birds", LONG]],
    7,
)
WRONG: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("input", "inputs", "texts", "text", "content", "sentences", "prompt", "documents"), TEXTS),
    **dict.fromkeys(("passages", "query", "queries", "tokens", "ids", "source"), TEXTS),
    **dict.fromkeys(("dimensions", "output_dimension"), (9999, -1)),
    **dict.fromkeys(("max_tokens", "truncate_prompt_tokens"), (1, -5)),
    **dict.fromkeys(("max_doc_length", "max_tokens_per_doc"), (0, -1)),
    **dict.fromkeys(("encoding_format", "embedding_type", "output_dtype", "task", "input_type", "kind"), ("?", 7)),
    **dict.fromkeys(("truncation_direction", "truncate_side", "truncation_side"), ("up",)),
    **dict.fromkeys(("force_dimensions", "normalized", "return_documents", "late_chunking"), ("perhaps",)),
    "add_special_tokens": (7,),
    "model": ("?",),
    "prompt_name": ("?",),
    "prompt": (*TEXTS, "x" * 100_000),
    "expect_fingerprint": ("0" * 15 + "1", "?"),
    "instruction": ("Find birds",),
    "outputs": (["?"],),
    "method": ("?", "weighted"),
    "chunk": ({"max_tokens": 9999}, {"max_tokens": 9, "overlap_tokens": 8}, {"max_tokens": 9, "overlap_tokens": 9}),
    "chunk_size": (9999,),
    "chunk_overlap": (9999, 300),
    "config": ({"dimensions": 9999},),
    "options": ({"num_ctx": 1},),
    "parameters": ({"prompt_name": "?"}, {"truncation_direction": "up"}),
}
# Further bodies, by path without the dialect's prefix.
BODIES: Mapping[str, tuple[tuple[str, Any], ...]] = {
    "cohere": (("/v2/embed", {"inputs": [{"content": [{"type": "text", "text": LONG}]}], "truncate": "NONE"}),),
    "infinity": (("/embeddings", {"input": "birds", "output_dimension": 9999}),),
    "jina": (("/v1/embeddings", {"input": ["birds"] * (MOST + 1), "late_chunking": True}),),
    "llamacpp": (("/rerank", {"query": "birds", "texts": ["birds", LONG]}),),
    "openai": (
        ("/v1/embeddings", {"input": "birds", "dimensions": 9999, "output_dimension": 8}),
        ("/v1/embeddings", {"input": "birds", "output_dtype": "int8", "normalized": False}),
        ("/v1/embeddings", {"input": "birds", "embedding_type": "int8", "normalized": False}),
    ),
    "tei": (
        ("/similarity", {"inputs": {"source_sentence": LONG, "sentences": ["birds"]}, "parameters": None}),
        ("/similarity", {"inputs": {"source_sentence": "birds", "sentences": ["birds", ""]}}),
        ("/similarity", {"inputs": {"source_sentence": "birds", "sentences": ["birds"] * (MOST + 1)}}),
        (
            "/similarity",
            {"inputs": {"source_sentence": "birds", "sentences": [LONG]}, "parameters": {"truncate": False}},
        ),
        ("/vertex", {"instances": [{"inputs": "birds"}, {"inputs": ["birds", LONG], "truncate": False}]}),
        ("/vertex", {"instances": [{"inputs": "birds"}, {"inputs": "birds", "dimensions": 9999}]}),
        ("/vertex", {"instances": [{"query": "birds", "texts": ["birds", LONG], "truncate": False}]}),
        ("/vertex", {"instances": [{"inputs": "birds"}, {"query": "birds", "texts": []}]}),
        ("/vertex", {"instances": [{"inputs": "birds"}] * (MOST + 1)}),
    ),
    "vectord": (
        ("/vectord/rerank", {"query": "birds", "passages": ["birds"], "weights": {"dense": 1}}),
        ("/vectord/embed", {"inputs": "birds", "precisions": ["int8"], "normalize": False}),
        ("/vectord/embed", {"inputs": "birds", "outputs": ["colbert"], "dimensions": 4}),
    ),
    "vllm": (
        ("/score", {"text_1": ["birds", "sing"], "text_2": ["birds", LONG]}),
        ("/score", {"text_1": ["birds", LONG], "text_2": ["birds", "sing"]}),
        ("/score", {"data_1": LONG, "data_2": ["birds", "sing"]}),
        ("/score", {"queries": "birds", "items": ["birds"] * (MOST + 1)}),
        ("/score", {"text_1": ["birds"] * (MOST + 1), "text_2": ["birds"] * (MOST + 1)}),
    ),
    "voyage": (
        ("/v1/contextualizedembeddings", {"inputs": [["birds " * 9]], "enable_auto_chunking": True, "chunk_size": 99}),
    ),
}
OFF: Mapping[str, object] = {"truncate": False, "truncation": False}


# --- bodies ---------------------------------------------------------------------------------------------------


def faulty(dialect: Dialect) -> Iterator[tuple[Route, Any]]:
    """The examples with one invalid value each, and BODIES."""
    routes = {(route.body, route.parse): route for route in dialect.routes if route.body is not None}
    for route in routes.values():
        assert route.body is not None
        keys = {field.encode_name for field in msgspec.structs.fields(route.body)}
        example = {**route.example, **{key: _off(dialect, value) for key, value in OFF.items() if key in keys}}
        if not any(field.required for field in msgspec.structs.fields(route.body) if field.encode_name == "model"):
            example.pop("model", None)
        for key in keys & set(WRONG):
            for value in WRONG[key]:
                yield route, {**example, key: value}
    for path, body in BODIES.get(dialect.name, ()):
        yield next(route for route in dialect.routes if route.path == path and route.method == "POST"), body


def _off(dialect: Dialect, value: object) -> object:
    return "NONE" if dialect.name == "cohere" else value


# --- the engine -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Engine]:
    """An engine with real tokenizers and fake backends, so that messages are the real ones."""
    models = {"vectors": replace(M3, matryoshka=None), "labels": CLASSIFIER}
    sources = [ModelSource(name, (), spec, _loader(folder / name, spec)) for name, spec in models.items()]
    engine = Engine(sources, EngineConfig(max_client_batch_size=MOST))
    await engine.start()
    await engine.loaded.wait()
    try:
        yield engine
    finally:
        await engine.close()


def _loader(folder: Path, spec: ModelSpec) -> Any:
    folder.mkdir()
    backend: FakeBackend = backend_for(spec)
    encoder = make_encoder(
        folder, wordpiece(), outputs=spec.outputs, colbert=spec.colbert, lexical=spec.lexical, labels=spec.labels
    )

    def load() -> tuple[Encoder, list[Backend]]:
        return encoder, [backend]

    return load


async def refused(route: Route, body: Any, engine: Engine) -> VectordError | None:
    """The error that the server would render, or None."""
    sent = json.dumps(body).encode()
    try:
        call = route.parse(Incoming(body=sent, models=engine.models().models, guards=Guards()))
    except VectordError as error:
        return error
    try:
        result = await engine.answer(call.request, Caller())
    except VectordError as error:
        return call.named(error)
    try:
        call.answered(result)
    except VectordError as error:
        return error
    return None


# --- tests ---------------------------------------------------------------------------------------------------

PART = re.compile(r"(?P<key>\w+)(?P<places>(?:\[\d+\])*)")


def has(body: Any, path: str) -> bool:
    """Whether the body has a value at a path such as `instances[3].inputs`."""
    for part in path.split("."):
        match = PART.fullmatch(part)
        if match is None or not isinstance(body, dict) or match["key"] not in body:
            return False
        body = body[match["key"]]
        for place in map(int, re.findall(r"\d+", match["places"])):
            several = body if isinstance(body, list) else [body]  # a single text has index 0
            if place >= len(several):
                return False
            body = several[place]
    return True


def first_quoted(message: str) -> str | None:
    match = re.search(r"`([^`]*)`", message)
    return match[1] if match else None


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_the_field_an_error_names_is_in_the_body(dialect: Dialect, tmp_path: Path) -> None:
    """In `field_name`, and in the first quotation of the message, which is also str() of the error."""
    wrong, count = [], 0
    async with serving(tmp_path) as engine:
        for route, body in faulty(dialect):
            error = await refused(route, body, engine)
            if error is None:
                continue
            count += 1
            quoted = first_quoted(error.message)
            named = error.field_name is not None and has(body, error.field_name)
            if not named or not (quoted is None or has(body, quoted)) or str(error) != error.message:
                wrong.append((route.path, _short(body), type(error).__name__, error.field_name, error.message))
    assert wrong == []
    assert count >= 10, "most of the bodies are accepted"


def _short(body: Any) -> str:
    return json.dumps(body).replace(LONG, "LONG")[:200]


@pytest.mark.parametrize(
    ("dialect", "path", "body", "field", "message"),
    [
        ("tei", "/vertex", BODIES["tei"][4][1], "instances[1].inputs", "`instances[1].inputs[1]`"),
        ("tei", "/vertex", BODIES["tei"][6][1], "instances[0].texts", "`instances[0].texts[1]`"),
        ("tei", "/similarity", BODIES["tei"][3][1], "inputs.sentences", "`inputs.sentences`"),
        ("vllm", "/score", BODIES["vllm"][0][1], "text_2[1]", "`text_2[1]`"),
        ("vllm", "/score", BODIES["vllm"][2][1], "data_1", "`data_1`"),
        (
            "weaviate",
            "/vectors",
            {"text": "a", "config": {"dimensions": 9}},
            "config.dimensions",
            "`config.dimensions`",
        ),
        ("voyage", "/v1/contextualizedembeddings", BODIES["voyage"][0][1], "chunk_size", "`chunk_size`"),
        (
            "ollama",
            "/api/embeddings",
            {"prompt": "a", "options": {"num_ctx": 1}},
            "options.num_ctx",
            "`options.num_ctx`",
        ),
    ],
)
async def test_a_nested_field_is_named_with_its_path(
    dialect: str, path: str, body: Any, field: str, message: str, tmp_path: Path
) -> None:
    """With the index, if the body contains several requests."""
    (asked,) = (each for each in DIALECTS if each.name == dialect)
    route = next(route for route in asked.routes if route.path == path and route.method == "POST")
    async with serving(tmp_path) as engine:
        error = await refused(route, body, engine)
    assert error is not None
    assert error.field_name == field
    assert error.message.startswith(message)


async def test_an_unknown_model_is_a_fault_of_the_field_model(tmp_path: Path) -> None:
    """In every body that has the field."""
    async with serving(tmp_path) as engine:
        for dialect in DIALECTS:
            for route in dialect.routes:
                if route.body is None or "model" not in (field.name for field in msgspec.structs.fields(route.body)):
                    continue
                error = await refused(route, {**route.example, "model": "?"}, engine)
                assert error is None or not isinstance(error, ModelNotFound) or error.field_name == "model"
