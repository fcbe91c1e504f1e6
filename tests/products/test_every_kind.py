"""Every route of every product answers with every kind of model that can serve it, and refuses the others.

One complete app and gRPC server for each kind; the bodies are the examples of the documentation. The numbers are
compared elsewhere: those of a kind with its library through the engine, those of a response with the engine's result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tests.checkpoints.test_router import write_router
from tests.checkpoints.test_two_networks import write_two
from tests.models import WIDTH, write_bert, write_sentence_bert
from tests.products.results import fits, keys_of
from tests.products.test_real_models import LABELS, serving, write_classifier, write_splade
from tests.reference.reference_models import write_bge_m3, write_qwen3_reranker
from tests.server.grpc.fakes import Live, pipeline

from vectord.config import ServerConfig
from vectord.errors import ModelCannot
from vectord.products.common.dialect import Incoming, Route, load_dialects
from vectord.schema import (
    ClassifyRequest,
    DecodeRequest,
    DocumentsRequest,
    EmbedRequest,
    MultiRequest,
    RerankRequest,
    SimilarityRequest,
    TokenizeRequest,
)
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.messages import METHODS, RERANK_STREAM
from vectord.server.grpc.server import serve_grpc
from vectord.server.pipeline import Shutdown

NAME = "served"
DIALECTS = load_dialects(ServerConfig().dialects)
REFUSALS = (400, 422, 424)  # "this model cannot" in the products' words
GRPC_REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)


def write_table(folder: Path) -> Path:
    """A table of vectors, as sentence-transformers saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    source = write_sentence_bert(folder)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=32)], device="cpu").save_pretrained(
        str(folder / "table"), create_model_card=False
    )
    return folder / "table"


def write_stanford_colbert(folder: Path) -> Path:
    """A BERT with its projection among its weights, as the original ColBERT saves it."""
    import torch
    from safetensors.torch import load_file, save_file

    write_bert(folder)
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(0))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    markers = {"query_token_id": "[CLS]", "doc_token_id": "[SEP]", "query_maxlen": 32, "doc_maxlen": 40}
    (folder / "artifact.metadata").write_text(json.dumps(markers))
    return folder


def write_asymmetric_sparse(folder: Path) -> Path:
    write_router(folder)
    return folder / "saved"


def write_asymmetric_dense(folder: Path) -> Path:
    write_two(folder, "another network")
    return folder / "saved"


@dataclass(frozen=True, slots=True)
class Kind:
    """write: the model in a folder. operations: those that it serves, besides TEXTS."""

    write: Callable[[Path], Path]
    operations: frozenset[str]


TEXTS = frozenset({"tokenize", "decode"})
DENSE = frozenset({"dense", "rerank", "similarity"})
KINDS: Mapping[str, Kind] = {
    "dense": Kind(write_sentence_bert, DENSE | {"tokens", "documents"}),
    "static": Kind(write_table, DENSE | {"documents"}),
    "sparse": Kind(write_splade, frozenset({"sparse", "rerank"})),
    "ColBERT": Kind(write_stanford_colbert, frozenset({"colbert", "tokens", "rerank"})),
    "three vectors": Kind(lambda folder: write_bge_m3(folder / "model"), DENSE | {"sparse", "colbert", "tokens"}),
    "cross-encoder": Kind(
        lambda folder: write_classifier(folder / "model", ["LABEL_0"]), frozenset({"rerank", "classify"})
    ),
    "yes-or-no reranker": Kind(lambda folder: write_qwen3_reranker(folder / "model"), DENSE | {"tokens"}),
    "classifier": Kind(lambda folder: write_classifier(folder / "model", LABELS), frozenset({"classify"})),
    "queries by a table of weights": Kind(write_asymmetric_sparse, frozenset({"sparse", "rerank"})),
    "queries by another network": Kind(write_asymmetric_dense, DENSE | {"tokens", "documents"}),
}


def operation_of(request: Any) -> str:
    """What a model must be able to do for the request."""
    match request:
        case MultiRequest():
            return operation_of(request.requests[0])
        case EmbedRequest():
            (output,) = request.outputs
            return output
        case ClassifyRequest():
            return "classify"
        case RerankRequest():
            return "rerank"
        case SimilarityRequest():
            return "similarity"
        case DocumentsRequest():
            return "documents"
        case TokenizeRequest():
            return "tokenize"
        case DecodeRequest():
            return "decode"
    raise AssertionError(f"an operation that this test does not know: {request}")


def fitted(value: Any, key: str = "") -> Any:
    """An example's body for a tiny model: its name, its width and its vocabulary."""
    match value:
        case dict():
            return {name: fitted(inner, name) for name, inner in value.items()}
        case list() if key in ("ids", "tokens") and all(isinstance(one, int) for one in value):
            return [5, 6]
        case list():
            return [fitted(inner, key) for inner in value]
        case str() if key == "model":
            return NAME
        case int() if key == "dimensions":
            return 32
    return value


@dataclass(frozen=True, slots=True)
class Reply:
    route: str
    operation: str | None  # None: the product itself refuses the model
    status: int
    content: bytes
    answers: Sequence[object]  # the types of responses of status 200


async def ask_all(folder: Path) -> list[Reply]:
    """Every route with a body, under its product's prefix."""
    replies = []
    async with (
        serving(folder, names=[NAME]) as composed,
        httpx.AsyncClient(transport=httpx.ASGITransport(composed.app), base_url="http://vectord") as client,
    ):
        models = composed.engine.models().models
        for dialect in DIALECTS:
            for route in dialect.routes:
                # These list models, or embed images.
                others = route.path in ("/api/show", "/api/pull", "/embeddings_image")
                if route.body is None or route.admin or others:
                    continue
                body = json.dumps(fitted(route.example)).encode()
                path = f"/dialects/{dialect.name}" + re.sub(r"\{\w+(:path)?\}", NAME, route.path)
                response = await client.post(path, content=body)
                operation = _operation(route, Incoming(body=body, path={"model": NAME}, models=models))
                name = f"{dialect.name} {route.path} {min(keys_of(route), default='')}"
                replies.append(Reply(name, operation, response.status_code, response.content, route.answers))
        server = ServerConfig(grpc_port=0)
        async with (
            serve_grpc(composed.engine, server, pipeline(server)) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            replies += await call_all(Live(channel, port, Shutdown()))
    return replies


FIELDS: Mapping[str, Any] = {
    "inputs": "a dog",
    "query": "a dog",
    "texts": ["a dog", "a fox"],
    "text": "a fox",
    "ids": [5],
}
RANKING = pb.RerankStreamRequest(query="a dog", text="a fox")


async def call_all(live: Live) -> list[Reply]:
    """Every method of tei.v1."""
    replies = [await _call(live, RERANK_STREAM, "rerank", [RANKING])]
    for method in METHODS:
        names = {field.name for field in method.kind.DESCRIPTOR.fields} & FIELDS.keys()
        fields = {name: FIELDS[name] for name in names}
        if method.kind is pb.PredictPairRequest:
            fields["inputs"] = ["a dog", "a fox"]
        message = method.kind(**fields)
        if names:
            operation = operation_of(method.parse(message).request)
            replies.append(await _call(live, method.path, operation, [message] if method.streams else message))
    return replies


async def _call(live: Live, path: str, operation: str, messages: Any) -> Reply:
    call = live.call(path, messages)
    try:
        answered = (
            [str(one) async for one in call] if path.endswith("Stream") and path != RERANK_STREAM else [await call]
        )
    except grpc.aio.AioRpcError as error:
        status = 422 if error.code() in GRPC_REFUSALS else 500
        return Reply(f"gRPC {path}", operation, status, str(error).encode(), ())
    assert all(str(one) for one in answered), path
    return Reply(f"gRPC {path}", operation, 200, b"", ())


def _operation(route: Route, incoming: Incoming) -> str | None:
    try:
        return operation_of(route.parse(incoming).request)
    except ModelCannot:
        return None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_model_answers_on_every_route_that_it_can_serve(kind: str, tmp_path: Path) -> None:
    """With the response that the route declares; a route that needs another kind of model refuses this one."""
    wrong, done = [], set()
    for reply in await ask_all(KINDS[kind].write(tmp_path)):
        can = reply.operation in KINDS[kind].operations | TEXTS
        if reply.status not in ((200,) if can else REFUSALS):
            wrong.append((reply.route, reply.operation, reply.status, reply.content[:200]))
        if reply.status == 200:
            done.add(reply.operation)
            assert fits(reply.content, reply.answers), reply
    assert not wrong, wrong
    assert done == KINDS[kind].operations | TEXTS
