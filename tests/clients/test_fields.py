"""Every field of the products' own request types is known to the products' bodies here.

The types are those of the official clients, and of the servers' sources (sources.py). tests/products/test_fields.py has
lists for the products of which no package contains the types.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import ollama
import openai.types
import pytest
import voyageai
from cohere.raw_base_client import RawBaseCohere
from cohere.v2.raw_client import RawV2Client
from huggingface_hub import FeatureExtractionInput
from mistralai.client.models import EmbeddingRequest as MistralEmbeddings
from mixedbread import Mixedbread
from tests.clients.sources import fields, llama_cpp
from together.types.embedding_create_params import EmbeddingCreateParams as TogetherEmbeddings
from together.types.rerank_create_params import RerankCreateParams as TogetherRanking

# Arguments of the clients' methods that are not fields of the body.
OF_CLIENTS = {"self", "request_options", "extra_headers", "extra_query", "extra_body", "timeout"}
# Fields of the method's name under another name in the body, and work that the client does itself.
VOYAGES = {"texts": "input", "chunk_fn": "inputs"}


def arguments(method: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(method).parameters) - OF_CLIENTS


def voyages(method: Callable[..., Any]) -> set[str]:
    return {VOYAGES.get(name, name) for name in arguments(method)}


TYPES: list[tuple[str, str, Iterable[str]]] = [
    ("openai", "/v1/embeddings", typing.get_type_hints(openai.types.EmbeddingCreateParams)),
    ("openai", "/v1/embeddings", arguments(Mixedbread.embed)),
    ("openai", "/v1/embeddings", MistralEmbeddings.model_json_schema()["properties"]),
    ("openai", "/v1/embeddings", typing.get_type_hints(TogetherEmbeddings)),
    ("cohere", "/v1/embed", arguments(RawBaseCohere.embed)),
    ("cohere", "/v1/rerank", arguments(RawBaseCohere.rerank)),
    ("cohere", "/v1/tokenize", arguments(RawBaseCohere.tokenize)),
    ("cohere", "/v1/detokenize", arguments(RawBaseCohere.detokenize)),
    ("cohere", "/v2/embed", arguments(RawV2Client.embed)),
    ("cohere", "/v2/rerank", arguments(RawV2Client.rerank)),
    ("cohere", "/v1/rerank", typing.get_type_hints(TogetherRanking)),
    ("voyage", "/v1/embeddings", voyages(voyageai.Client.embed)),
    ("voyage", "/v1/contextualizedembeddings", voyages(voyageai.Client.contextualized_embed)),
    ("voyage", "/v1/rerank", voyages(voyageai.Client.rerank)),
    ("mixedbread", "/v1/reranking", arguments(Mixedbread.rerank)),
    ("ollama", "/api/embed", ollama._types.EmbedRequest.model_fields),
    ("ollama", "/api/embeddings", ollama._types.EmbeddingsRequest.model_fields),
    ("ollama", "/api/show", ollama._types.ShowRequest.model_fields),
    ("tei", "/embed", typing.get_type_hints(FeatureExtractionInput)),
    ("infinity", "/embeddings", fields("infinity_emb", r"_?OpenAIEmbeddingInput\w+")),
    ("infinity", "/rerank", fields("infinity_emb", "RerankInput")),
    ("infinity", "/classify", fields("infinity_emb", "ClassifyInput")),
    ("vllm", "/v1/embeddings", fields("vllm", r"(Token)?Embedding\w*Request")),
    ("vllm", "/pooling", fields("vllm", r"Pooling\w+Request|IOProcessorRequest")),
    ("vllm", "/classify", fields("vllm", r"Classification\w+Request")),
    ("vllm", "/score", fields("vllm", r"Score\w+Request")),
    ("vllm", "/rerank", fields("vllm", "RerankRequest")),
    ("vllm", "/tokenize", fields("vllm", r"Tokenize\w+Request")),
    ("vllm", "/detokenize", fields("vllm", "DetokenizeRequest")),
    ("cohere", "/v2/embed", fields("vllm", "CohereEmbedRequest")),
    ("llamacpp", "/embeddings", llama_cpp("handle_embeddings_impl")),
    ("llamacpp", "/v1/embeddings", llama_cpp("handle_embeddings_impl")),
    ("llamacpp", "/rerank", llama_cpp("post_rerank") | llama_cpp("format_response_rerank")),
    ("llamacpp", "/tokenize", llama_cpp("post_tokenize")),
    ("llamacpp", "/detokenize", llama_cpp("post_detokenize")),
]


@pytest.fixture(scope="module")
def document(server: str) -> dict[str, Any]:
    return httpx.get(f"{server}/openapi.json").raise_for_status().json()


def known(document: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    """The properties of a body: of each, if the path has several."""
    names: set[str] = set()
    for one in schema.get("oneOf") or schema.get("anyOf") or [schema]:
        described = document["components"]["schemas"][one["$ref"].rpartition("/")[2]] if "$ref" in one else one
        names |= set(described.get("properties", ()))
    return names


@pytest.mark.parametrize(("product", "path", "names"), TYPES, ids=lambda part: part if isinstance(part, str) else "")
def test_every_field_of_a_product_is_known(
    document: dict[str, Any], product: str, path: str, names: Iterable[str]
) -> None:
    """The body applies the field, refuses it, or lists it as without effect."""
    operation = document["paths"][f"/dialects/{product}{path}"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert set(names) - known(document, schema) == set()


def test_every_option_of_ollama_is_known(document: dict[str, Any]) -> None:
    operation = document["paths"]["/dialects/ollama/api/embed"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    body = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    (options,) = (one for one in body["properties"]["options"]["anyOf"] if "$ref" in one)
    assert set(ollama.Options.model_fields) - known(document, options) == set()
