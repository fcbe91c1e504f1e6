"""Sends every command of docs/api.md to a complete server and compares the responses.

The page's models are the default one, whose vectors are real, and two tiny random ones that are written here.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_args

import httpx
import pytest
from tests.docs.examples import SERVER, check_alike, examples
from tests.reference.reference_models import write_bge_m3, write_bge_reranker
from tests.server.live import Reply

from vectord import compose
from vectord.config import Config, DeviceConfig, EngineConfig, ModelConfig, ServerConfig
from vectord.products.vectord import DIALECT
from vectord.products.vectord.fields import ERRORS, type_of
from vectord.schema import ScoreKind
from vectord.server import results
from vectord.server.http.routing import Table

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text("utf-8")

EXAMPLES = list(examples(PAGE))


def write_classifier(folder: Path) -> Path:
    """A random XLM-RoBERTa with three labels. Its tokenizer is fixed, because training is not deterministic."""
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
    """The response to each example, in the order of the page."""
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
def test_the_response_to_an_example_matches_the_page(place: int, replies: list[Reply]) -> None:
    """The keys are equal, and the values are equal up to rounding, times and fingerprints."""
    shown, reply = EXAMPLES[place].answer, replies[place]
    assert (reply.status >= 400) == ("error" in shown), reply.json
    check_alike(shown, reply.json, "answer")


# --- completeness ---------------------------------------------------------------------------------------------


def test_every_route_has_an_example() -> None:
    """A new route without an example fails."""
    table = Table([DIALECT], [], DIALECT.render_error)
    shown = {(one.method, table.find(one.method, one.path).endpoint.path) for one in EXAMPLES}
    assert {(route.method, route.path) for route in DIALECT.routes} <= shown


def test_error_types_score_kinds_and_headers_are_listed() -> None:
    """The page lists error types with statuses, score kinds, and header names."""
    errors = [f"| {status} | `{type_of(kind)}` |" for kind, status in ERRORS.items()]
    kinds = [f"`{kind}`" for kind in get_args(ScoreKind)]
    headers = [
        f"`{value}`" for value in vars(results).values() if isinstance(value, str) and value.startswith("x-vectord-")
    ]
    assert len(headers) == 8
    assert [word for word in (*errors, *kinds, *headers) if word not in PAGE] == []
