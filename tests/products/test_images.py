"""Images and sound are refused by name in every API whose clients send them, by a model that could read them too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.compute.networks.tiny_decoders import CASES as DECODERS
from tests.models import write_bert
from tests.products.test_real_models import served

IMAGE = "data:image/png;base64,iVBORw0KGgo="
PART = {"type": "image_url", "image_url": {"url": IMAGE}}
ITEM = {"text": "a dog", "image": IMAGE}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vLLM, messages": ("vllm/v1/embeddings", {"messages": [{"role": "user", "content": [PART]}]}),
    "vLLM, pooling": ("vllm/pooling", {"messages": [{"role": "user", "content": [PART]}]}),
    "Cohere 2, images": ("cohere/v2/embed", {"images": [IMAGE], "input_type": "image", "embedding_types": ["float"]}),
    "Cohere 2, inputs": ("cohere/v2/embed", {"inputs": [{"content": [PART]}], "input_type": "search_document"}),
    "Cohere 1": ("cohere/v1/embed", {"images": [IMAGE], "input_type": "image"}),
    "Jina": ("jina/v1/embeddings", {"input": [{"image": IMAGE}]}),
    "Jina, a string": ("jina/v1/embeddings", {"input": [IMAGE]}),
    "OpenAI, a string": ("openai/v1/embeddings", {"input": ["a dog", IMAGE]}),
    "OpenAI, a url": ("openai/v1/embeddings", {"input": [{"url": IMAGE}]}),
    "OpenAI, bytes": ("openai/v1/embeddings", {"input": [{"bytes": IMAGE}]}),
    "OpenAI, a part": ("openai/v1/embeddings", {"input": [PART]}),
    "SGLang's item": ("openai/v1/embeddings", {"input": [ITEM]}),
    "llama.cpp": ("llamacpp/embeddings", {"input": [{"type": "text", "text": "a"}, {**PART, "type": "image"}]}),
    "TEI, a string": ("tei/embed", {"inputs": IMAGE}),
    "Ollama, a string": ("ollama/api/embed", {"input": IMAGE}),
    "vectord, a document": ("vectord/vectord/documents", {"documents": [IMAGE], "chunk": {"max_tokens": 20}}),
    "Cohere, a document": ("cohere/v2/rerank", {"query": "a dog", "documents": ["a cat", IMAGE]}),
    "Jina, a document": ("jina/v1/rerank", {"query": "a dog", "documents": [ITEM]}),
    "NIM, a passage": ("nvidia/v1/ranking", {"query": {"text": "a dog"}, "passages": [ITEM]}),
    "infinity, image": ("infinity/embeddings", {"input": [IMAGE], "modality": "image"}),
    "infinity, audio": ("infinity/embeddings", {"input": [IMAGE], "modality": "audio"}),
    "infinity, path of images": ("infinity/embeddings_image", {"input": [IMAGE]}),
    "infinity, path of sound": ("infinity/embeddings_audio", {"input": [IMAGE]}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny EmbeddingGemma 2, whose towers of images and audio are not loaded."""
    folder = DECODERS["embedding_gemma2"].write(tmp_path_factory.mktemp("gemma") / "gemma")
    bert = write_bert(tmp_path_factory.mktemp("words") / "bert")
    shutil.copy(bert / "tokenizer.json", folder)
    return folder


async def test_each_request_with_an_image_is_refused_by_name(folder: Path) -> None:
    """With 400 or 422, and the words of the error; a text is embedded."""
    wrong = []
    async with served(
        folder,
        dialects=("openai", "vllm", "cohere", "jina", "infinity", "llamacpp", "tei", "ollama", "vectord", "nvidia"),
    ) as ask:
        for name, (path, body) in BODIES.items():
            reply = await ask(f"/dialects/{path}", model="gemma", **body)
            said = json.dumps(reply.json).lower()
            if reply.status not in (400, 422) or not any(word in said for word in ("image", "audio", "texts only")):
                wrong.append((name, reply.status, said[:200]))
        text = await ask("/dialects/openai/v1/embeddings", model="gemma", input=["a dog"])
        assert text.status == 200, text.body
    assert not wrong, wrong
