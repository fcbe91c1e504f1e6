"""Images in the forms of every API: read by a model that reads them, and refused by name by others, as sound is."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compute.networks.tiny_decoders import CASES as DECODERS
from tests.models import write_bert
from tests.products.test_real_models import served
from tests.towers import image_of, media_of, write_towers

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


SENT = base64.b64encode(media_of(image_of(40, 50)).data).decode()
URL_SAFE = SENT.translate(str.maketrans("+/", "-_"))
URI = f"data:image/png;base64,{SENT}"
OBJECT = {"type": "image_url", "image_url": {"url": URI}}
# Path, body, and the way to the vector of the second input, which is the image.
READ: dict[str, tuple[str, dict[str, Any], str]] = {
    "vectord": ("vectord/vectord/embed", {"inputs": ["a fox", {"image": URI}]}, "data.1.dense"),
    "vectord, base64": ("vectord/vectord/embed", {"inputs": [{"image": SENT}, {"image": SENT}]}, "data.1.dense"),
    "infinity": ("infinity/embeddings", {"input": [URI, URI], "modality": "image"}, "data.1.embedding"),
    "Jina, image": ("jina/v1/embeddings", {"input": [{"text": "a fox"}, {"image": SENT}]}, "data.1.embedding"),
    "Jina, url": ("jina/v1/embeddings", {"input": ["a fox", {"url": URI}]}, "data.1.embedding"),
    "Jina, bytes": ("jina/v1/embeddings", {"input": ["a fox", {"bytes": SENT}]}, "data.1.embedding"),
    "Jina, strings": ("jina/v1/embeddings", {"input": ["a fox", URI]}, "data.1.embedding"),
    "OpenAI, strings": ("openai/v1/embeddings", {"input": ["a fox", URI]}, "data.1.embedding"),
    "OpenAI, an object": ("openai/v1/embeddings", {"input": ["a fox", {"image": URI}]}, "data.1.embedding"),
    "SGLang's item": ("openai/v1/embeddings", {"input": ["a", {"text": None, "image": SENT}]}, "data.1.embedding"),
    "Cohere 2, images": (
        "cohere/v2/embed",
        {"images": [URI, URI], "input_type": "image", "embedding_types": ["float"]},
        "embeddings.float.1",
    ),
    "Cohere 2, inputs": (
        "cohere/v2/embed",
        {"inputs": [{"content": [{"type": "text", "text": "a fox"}]}, {"content": [OBJECT]}]},
        "embeddings.float.1",
    ),
    "Cohere 1": ("cohere/v1/embed", {"images": [URI, URI], "input_type": "image"}, "embeddings.1"),
    "Voyage": (
        "voyage/v1/multimodalembeddings",
        {"inputs": [{"content": [{"type": "text", "text": "a"}]}, {"content": [{**OBJECT, "image_url": URI}]}]},
        "data.1.embedding",
    ),
    "Voyage, base64": (
        "voyage/v1/multimodalembeddings",
        {"inputs": [{"content": [{"type": "image_base64", "image_base64": URI}]}] * 2},
        "data.1.embedding",
    ),
    "Google's SDK, URL-safe": (
        "google/v1beta/models/clip:batchEmbedContents",
        {
            "requests": [
                {"content": {"parts": [{"text": "a fox"}]}},
                {"content": {"parts": [{"inlineData": {"mimeType": "image/png", "data": URL_SAFE}}]}},
            ]
        },
        "embeddings.1.values",
    ),
    "Google": (
        "google/v1beta/models/clip:batchEmbedContents",
        {
            "requests": [
                {"content": {"parts": [{"text": "a fox"}]}},
                {"content": {"parts": [{"inlineData": {"mimeType": "image/png", "data": SENT}}]}},
            ]
        },
        "embeddings.1.values",
    ),
}
DIALECTS = ("openai", "cohere", "jina", "voyage", "infinity", "vectord", "google")


def found(answer: Any, way: str) -> Any:
    for key in way.split("."):
        answer = answer[int(key)] if isinstance(answer, list) else answer[key]
    return answer


async def test_every_form_is_the_same_image(tmp_path: Path) -> None:
    """In all APIs, among texts, as a data URI, as base64 and in objects: the vector of vectord's own API."""
    wrong = []
    async with served(write_towers(tmp_path / "clip", "CLIP"), dialects=DIALECTS) as ask:
        own = await ask("/dialects/vectord/vectord/embed", model="clip", inputs=[{"image": URI}])
        assert own.status == 200, own.body
        (want,) = (item["dense"] for item in own.json["data"])
        for name, (path, body, way) in READ.items():
            model = {} if "google" in path else {"model": "clip"}
            reply = await ask(f"/dialects/{path}", **model, **body)
            if reply.status != 200 or not np.allclose(found(reply.json, way), want, atol=1e-5):
                wrong.append((name, reply.status, reply.body[:300]))
        voyage = await ask("/dialects/" + READ["Voyage"][0], model="clip", **READ["Voyage"][1])
        usage = voyage.json["usage"]
        assert (usage["image_pixels"], usage["video_pixels"]) == (40 * 50, 0)
        assert usage["total_tokens"] == usage["text_tokens"] + 17
        cohere = await ask("/dialects/" + READ["Cohere 1"][0], model="clip", **READ["Cohere 1"][1])
        assert cohere.json["meta"]["billed_units"] == {"input_tokens": 34, "images": 2}
    assert not wrong, wrong


BAD: dict[str, tuple[Any, str]] = {
    "a URL": ("https://example.com/a.png", "fetches none"),
    "a file": ("file:///etc/passwd", "fetches none"),
    "no base64": ("data:image/png;base64,***", "not valid base64"),
    "half a base64": (SENT[:-1], "not valid base64"),
    "a sound": ("data:audio/wav;base64,aGk=", "another kind than an image"),
    "a broken image": (base64.b64encode(base64.b64decode(SENT)[:90]).decode(), "broken or truncated image"),
    "SVG": ("data:image/svg+xml;base64,PHN2Zy8+", "not an image in one of the formats"),
    "a number": (7, "must be a string"),
}


async def test_a_bad_image_is_refused_with_its_place(tmp_path: Path) -> None:
    """In the caller's words for the field, with the index of the input, and with no value of the request."""
    wrong = []
    async with served(write_towers(tmp_path / "clip", "CLIP"), dialects=DIALECTS) as ask:
        for name, (image, reason) in BAD.items():
            jina = await ask("/dialects/jina/v1/embeddings", model="clip", input=["a fox", {"image": image}])
            said = str(jina.json["detail"])
            if jina.status != 422 or reason not in said or "input[1]" not in said or "example.com" in said:
                wrong.append((name, jina.status, said))
            if isinstance(image, str):
                cohere = await ask("/dialects/cohere/v2/embed", model="clip", images=[URI, image])
                said = cohere.json["message"]
                if cohere.status != 400 or reason not in said or "images[1]" not in said:
                    wrong.append((name, cohere.status, said))
        both = await ask("/dialects/jina/v1/embeddings", model="clip", input=[{"text": "a", "image": URI}])
        assert "an image and a text; this model embeds each of them alone" in both.json["detail"]
    assert not wrong, wrong
