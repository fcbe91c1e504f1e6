"""Models with two towers: each field of each API that says whether a text is a query or a document.

The fields are found in the bodies of all routes, so a new one is covered. An engine answers the parsed requests; the
reference is sentence-transformers' `encode_query` and `encode_document`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from tests.checkpoints.test_router import write_router
from tests.checkpoints.test_two_networks import write_two
from tests.products.test_every_kind import DIALECTS, NAME, fitted, operation_of
from tests.products.test_real_models import serving

from vectord.errors import ModelCannot
from vectord.products.common.dialect import Incoming, Route
from vectord.schema import ANYONE, EmbedRequest, EmbedResult, MultiRequest
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.messages import METHODS

QUERY = ("query", "search_query", "retrieval.query")
DOCUMENT = ("document", "passage", "search_document", "retrieval.passage")
# The words of each field. Of an API that has only some of them, it accepts the others or refuses them.
WORDS = {
    "input_type": (QUERY, DOCUMENT),
    "task": (QUERY, DOCUMENT),
    "task_type": (QUERY, DOCUMENT),
    "taskType": (["RETRIEVAL_QUERY"], ["RETRIEVAL_DOCUMENT"]),
    "kind": (QUERY[:1], DOCUMENT[:1]),
    "prompt_name": (QUERY[:1], DOCUMENT[:1]),
}
NO_KIND = {("vllm", "task"), ("google", "task_type")}  # an operation, "embed" or "classify"; `taskType`
APIS = {
    "openai": {"input_type", "prompt_name"},
    "tei": {"input_type", "prompt_name"},
    "vectord": {"kind", "prompt_name"},
    "cohere": {"input_type"},
    "voyage": {"input_type"},
    "jina": {"input_type", "task", "prompt_name"},
    "infinity": {"input_type"},
    "simple_inference_server": {"input_type"},
    "embedding_server": {"prompt_name"},
    "vllm": {"input_type"},
    "llamacpp": {"input_type"},
    "weaviate": {"task_type"},
    "google": {"taskType"},
}
# The APIs that have sparse vectors.
SPARSE = {("tei", "prompt_name"), ("vectord", "kind"), ("vectord", "prompt_name")}


@dataclass(frozen=True, slots=True)
class Ask:
    """A route whose body has the field."""

    dialect: str
    route: Route
    field: str

    def body(self, word: str, output: str) -> bytes:
        """The example's, for one vector a text."""
        unused = {*WORDS, "late_chunking", "dimensions"}
        body = {key: value for key, value in fitted(self.route.example).items() if key not in unused}
        if self.route.path == "/vectord/embed":
            body["outputs"] = [output]
        if "contextualized" in self.route.path:  # a query has no context
            body["inputs"] = [["a happy person"]]
        if self.field == "task_type":
            body["config"] = {self.field: word}
        else:
            body[self.field] = word
        return json.dumps(body).encode()


def asks() -> Iterator[Ask]:
    for dialect in DIALECTS:
        for route in dialect.routes:
            names = {field.encode_name for field in msgspec.structs.fields(route.body)} if route.body else set()
            names |= {"task_type"} & {*route.example.get("config", ())} if isinstance(route.example, dict) else set()
            kinds = sorted(name for name in names & WORDS.keys() if (dialect.name, name) not in NO_KIND)
            yield from (Ask(dialect.name, route, name) for name in kinds)


def write_sparse(folder: Path) -> Any:
    return write_router(folder)


def write_dense(folder: Path) -> Any:
    return write_two(folder, "another network")


def without_prompts(write: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """As older versions of sentence-transformers save a model."""

    def write_older(folder: Path) -> Any:
        model = write(folder)
        path = folder / "saved/config_sentence_transformers.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "prompts": {}}))
        return model

    return write_older


TOWERS = {
    "dense": write_dense,
    "sparse": write_sparse,
    "dense, without prompts": without_prompts(write_dense),
    "sparse, without prompts": without_prompts(write_sparse),
}


def numbers_of(result: EmbedResult, width: int) -> np.ndarray:
    """One row a text, of length 1 if dense."""
    if result.dense:
        rows = result.dense["float"]
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.zeros((len(result.sparse), width), np.float32)
    for row, one in zip(rows, result.sparse, strict=True):
        row[one.indices] = one.values
    return rows


def test_the_apis_with_a_kind_of_input_are_known() -> None:
    """An API without an entry here has no such field: NVIDIA's and Mixedbread's clients use OpenAI's route."""
    found: dict[str, set[str]] = {}
    for ask in asks():
        found.setdefault(ask.dialect, set()).add(ask.field)
    assert found == APIS


@pytest.mark.parametrize("name", TOWERS)
async def test_each_field_of_each_api_chooses_the_tower(name: str, tmp_path: Path) -> None:
    """Over HTTP and gRPC; every route for which the model has vectors gives the library's for both kinds."""
    library = TOWERS[name](tmp_path)
    output = name.partition(",")[0]
    width = library.get_embedding_dimension()

    def reference(texts: list[str], kind: str) -> np.ndarray:
        encode = library.encode_query if kind == "query" else library.encode_document
        return encode(texts) if output == "dense" else encode(texts, convert_to_sparse_tensor=False).numpy()

    answered: dict[tuple[str, str], set[str]] = {}
    async with serving(tmp_path / "saved", names=[NAME]) as composed:
        engine = composed.engine
        models = engine.models().models

        async def check(request: Any, api: str, field: str, kind: str) -> None:
            requests = request.requests if isinstance(request, MultiRequest) else [request]
            for one in requests:
                result = await engine.answer(replace(one, precisions=("float",)), ANYONE)
                want = reference(list(one.inputs), kind)
                np.testing.assert_allclose(numbers_of(result, width), want, atol=1e-4, err_msg=f"{api} {field}")
            answered.setdefault((api, field), set()).add(kind)

        for ask in asks():
            for kind, words in zip(("query", "document"), WORDS[ask.field], strict=True):
                for word in words:
                    try:
                        body = Incoming(body=ask.body(word, output), path={"model": NAME}, models=models)
                        request = ask.route.parse(body).request
                        operation = operation_of(request)
                    except ModelCannot:
                        continue
                    if operation == output and isinstance(request, EmbedRequest | MultiRequest):
                        await check(request, ask.dialect, ask.field, kind)
        for method in METHODS:
            if method.path.endswith(("/Embed", "/EmbedSparse")):
                message = pb.EmbedRequest if method.path.endswith("/Embed") else pb.EmbedSparseRequest
                for kind in ("query", "document"):
                    request = method.parse(message(inputs="a dog and a fox", prompt_name=kind)).request
                    if operation_of(request) == output:
                        await check(request, "tei.v1", "prompt_name", kind)
    assert all(kinds == {"query", "document"} for kinds in answered.values()), answered
    of_apis = {(api, field) for api, fields in APIS.items() for field in fields}
    expected = (of_apis if output == "dense" else SPARSE) | {("tei.v1", "prompt_name")}
    assert answered.keys() == expected, answered.keys() ^ expected
