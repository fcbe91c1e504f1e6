"""Images in the forms of every API: read by a model that reads them, and refused by name by others, as sound is."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from tests.compute.networks.tiny_decoders import CASES as DECODERS
from tests.models import write_bert
from tests.pdfs import pdf_of
from tests.products.test_real_models import Ask, served
from tests.server.test_fetching import NAME, Names, answer, hosting
from tests.towers import image_of, media_of, write_towers

from vectord.products.common.media import DOT
from vectord.server.fetching import Fetcher
from vectord.text import images

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one server for most tests

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
    "vLLM, classify": ("vllm/classify", {"messages": [{"role": "user", "content": [PART]}]}),
    "vLLM, tokenize": ("vllm/tokenize", {"messages": [{"role": "user", "content": [PART]}]}),
    "vLLM, rerank": ("vllm/rerank", {"query": "a dog", "documents": ["a cat", {"content": [PART]}]}),
    "vLLM, score": ("vllm/score", {"queries": {"content": [PART]}, "documents": "a dog"}),
    "OpenAI, messages": ("openai/v1/embeddings", {"input": [{"role": "user", "content": [PART]}]}),
    "llama.cpp, marker": (
        "llamacpp/embeddings",
        {"content": {"prompt_string": "<__media__>", "multimodal_data": ["iVBORw0KGgo="]}},
    ),
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
CONVERSATIONS = [[{"role": "user", "content": content}] for content in ("a fox", [OBJECT])]
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
    "vLLM, messages": ("vllm/v1/embeddings", {"messages": CONVERSATIONS}, "data.1.embedding"),
    "vLLM, input": ("vllm/v1/embeddings", {"input": CONVERSATIONS}, "data.1.embedding"),
    "vLLM, pooling": ("vllm/pooling", {"messages": CONVERSATIONS[1], "task": "embed"}, "data.0.data"),
    "OpenAI, messages": ("openai/v1/embeddings", {"input": CONVERSATIONS[1]}, "data.0.embedding"),
    "infinity, path": ("infinity/embeddings_image", {"input": [URI, URI]}, "data.1.embedding"),
    "llama.cpp, a part": ("llamacpp/embeddings", {"input": [OBJECT]}, "0.embedding.0"),
    "llama.cpp, a marker": (
        "llamacpp/embeddings",
        {"content": ["a", {"prompt_string": "<__media__>", "multimodal_data": [SENT]}]},
        "1.embedding.0",
    ),
}
DIALECTS = ("openai", "cohere", "jina", "voyage", "infinity", "vectord", "google", "vllm", "llamacpp")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_towers(tmp_path_factory.mktemp("towers") / "clip", "CLIP")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ask(clip: Path) -> AsyncIterator[Ask]:
    async with served(clip, dialects=DIALECTS) as ask:
        yield ask


def found(answer: Any, way: str) -> Any:
    for key in way.split("."):
        answer = answer[int(key)] if isinstance(answer, list) else answer[key]
    return answer


async def test_every_form_is_the_same_image(ask: Ask) -> None:
    """In all APIs, among texts, as a data URI, as base64 and in objects: the vector of vectord's own API."""
    wrong = []
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
    assert cohere.json["meta"]["billed_units"] == {"input_tokens": 34, "images": 2, "image_tokens": 34}
    assert cohere.json["images"] == [{"width": 40, "height": 50, "format": "png", "bit_depth": 24}] * 2
    google = await ask("/dialects/" + READ["Google"][0], **READ["Google"][1])
    tokens = {one["modality"]: one["tokenCount"] for one in google.json["usageMetadata"]["promptTokensDetails"]}
    assert tokens == {"TEXT": google.json["usageMetadata"]["promptTokenCount"] - 17, "IMAGE": 17}
    used = own.json["usage"]
    assert (used["tokens"], used["image_tokens"], used["pixels"]) == (17, 17, 40 * 50)
    assert not wrong, wrong


BAD: dict[str, tuple[Any, str]] = {
    "a URL": ("https://example.com/a.png", "fetches none"),
    "a file": ("file:///etc/passwd", "a file must be a data URI"),
    "no base64": ("data:image/png;base64,***", "not valid base64"),
    "half a base64": (SENT[:-1], "not valid base64"),
    "a sound": ("data:audio/wav;base64,aGk=", "another kind than an image"),
    "a broken image": (base64.b64encode(base64.b64decode(SENT)[:90]).decode(), "broken or truncated image"),
    "SVG": ("data:image/svg+xml;base64,PHN2Zy8+", "not an image in one of the formats"),
    "a number": (7, "must be a string"),
}


async def test_a_bad_image_is_refused_with_its_place(ask: Ask) -> None:
    """In the caller's words for the field, with the index of the input, and with no value of the request."""
    wrong = []
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


async def test_each_page_of_a_pdf_has_a_vector_in_jinas_api(ask: Ask) -> None:
    """In order, with its number: as in vectord's own API."""
    pdf, path = {"pdf": base64.b64encode(pdf_of()).decode()}, "/dialects/jina/v1/embeddings"
    own = await ask("/dialects/vectord/vectord/embed", inputs=["a fox", pdf, {"image": URI}])
    reply = await ask(path, input=["a fox", pdf, {"image": URI}])
    assert reply.status == 200, reply.body
    data = reply.json["data"]
    assert [(one["index"], one.get("page")) for one in data] == [(0, None), (1, 1), (2, 2), (3, 3), (4, None)]
    for one, want in zip(data, own.json["data"], strict=True):
        np.testing.assert_allclose(one["embedding"], want["dense"], atol=1e-6)
    bad = await ask(path, input=["a fox", {"pdf": "AAAA"}])
    assert bad.status == 422 and bad.json["detail"].startswith("`input[1]`"), bad.body


async def test_every_form_may_have_a_url(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the data URI, of a host that the operator lists. The vector is that of the file."""
    # A plain string with a URL is a text.
    bodies = {name: one for name, one in READ.items() if URI in json.dumps(one) and "strings" not in name}
    bodies["Google, a file"] = (
        "google/v1beta/models/clip:embedContent",
        {"content": {"parts": [{"fileData": {"mimeType": "image/png", "fileUri": URI}}]}},
        "embedding.values",
    )
    local = partial(Fetcher, resolve=Names(), is_allowed=lambda address: address == "127.0.0.1")
    monkeypatch.setattr("vectord.server.fetching.Fetcher", local)
    wrong = []
    async with (
        hosting({"/a.png": answer(base64.b64decode(SENT)), "/b.pdf": answer(b"no PDF")}) as host,
        served(clip, dialects=DIALECTS, allow_media_urls=(NAME,)) as ask,
    ):
        own = await ask("/dialects/vectord/vectord/embed", model="clip", inputs=[{"image": URI}])
        want = own.json["data"][0]["dense"]
        url = f"http://{NAME}:{host.port}"
        for name, (path, body, way) in bodies.items():
            sent = json.loads(json.dumps(body).replace(URI, f"{url}/a.png"))
            reply = await ask(f"/dialects/{path}", **({} if "google" in path else {"model": "clip"}), **sent)
            if reply.status != 200 or not np.allclose(found(reply.json, way), want, atol=1e-5):
                wrong.append((name, reply.status, reply.body[:300]))
        pdf = await ask(own_path := "/dialects/vectord/vectord/embed", inputs=["a", {"pdf": f"{url}/b.pdf"}])
        assert pdf.status == 400 and pdf.json["error"]["index"] == 1 and b"PDF" in pdf.body, pdf.body
        other = await ask(own_path, inputs=["a", {"image": "http://other.example/a.png"}])
        assert other.status == 400 and "`inputs[1]` has a URL of a host from which" in other.json["error"]["message"]
    assert len(bodies) > 10 and len(host.heads) == len(bodies) + 1
    assert not wrong, wrong


async def test_images_are_scored_by_their_vectors(ask: Ask) -> None:
    """On both sides, alone or in lists, and the answer repeats the parts; a text with an image is refused."""

    async def asked(path: str, **body: Any) -> Any:
        reply = await ask(f"/dialects/vllm/{path}", model="clip", **body)
        assert reply.status == 200, reply.body
        return reply.json

    image, text = {"content": [OBJECT]}, {"content": [{"type": "text", "text": "a fox"}]}
    embedded = await ask("/dialects/vectord/vectord/embed", model="clip", inputs=["a fox", {"image": URI}, "birds"])
    vectors = np.array([item["dense"] for item in embedded.json["data"]])
    cosines = vectors @ vectors.T
    scored = await asked("score", queries="a fox", documents=[image, "birds", text])
    np.testing.assert_allclose([one["score"] for one in scored["data"]], cosines[0, [1, 2, 0]], atol=1e-5)
    scored = await asked("score", data_1=image, data_2=["a fox", "birds"])
    np.testing.assert_allclose([one["score"] for one in scored["data"]], cosines[1, [0, 2]], atol=1e-5)
    scored = await asked("score", text_1=["birds", image], text_2={"content": [*text["content"], OBJECT]})
    np.testing.assert_allclose([one["score"] for one in scored["data"]], [cosines[2, 0], 1], atol=1e-5)
    ranked = (await asked("rerank", query=image, documents=["birds", image, {"text": "a fox"}]))["results"]
    assert {one["index"]: one["document"] for one in ranked} == {
        0: {"text": "birds"},
        1: {"text": None, "multi_modal": [OBJECT]},
        2: {"text": "a fox"},
    }
    assert ranked[0]["index"] == 1
    both = {"content": [*text["content"], OBJECT]}
    for body, place in (
        ({"query": both, "documents": ["birds"]}, "`query` has an image and a text"),
        ({"query": "birds", "documents": ["birds", both]}, "`documents[1]` has an image and a text"),
        ({"query": image, "documents": ["birds"], "max_tokens_per_query": 9}, "`query` is or has an image"),
    ):
        refused = await ask("/dialects/vllm/rerank", model="clip", **body)
        assert refused.status == 400 and place in refused.json["error"]["message"], refused.body


async def test_a_request_with_very_many_tiny_images_is_refused_for_their_number(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first one is decoded, in each API."""
    monkeypatch.setattr(images, "decoded", None)
    for name, (path, key, item) in {
        "vectord": ("vectord/vectord/embed", "inputs", {"image": DOT}),
        "OpenAI": ("openai/v1/embeddings", "input", {"image": DOT}),
        "Jina": ("jina/v1/embeddings", "input", DOT),
        "Cohere": ("cohere/v2/embed", "images", DOT),
        "Voyage": ("voyage/v1/multimodalembeddings", "inputs", {"content": [{"image_base64": DOT}]}),
        "vLLM": ("vllm/v1/embeddings", "messages", [{"role": "user", "content": [OBJECT]}]),
    }.items():
        reply = await ask(f"/dialects/{path}", model="clip", **{key: [item] * 5000})
        assert 400 <= reply.status < 500 and b"at most" in reply.body, (name, reply.body)
