"""Pictures from SDKs and frameworks: the vectors that transformers makes of them with the same CLIP."""

from __future__ import annotations

import base64

import cohere
import numpy as np
import openai
import pytest
import voyageai
from google import genai
from google.genai import types
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.cohere import CohereDocumentImageEmbedder
from haystack_integrations.components.embedders.jina import JinaDocumentImageEmbedder
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.jinaai import JinaEmbedding
from PIL import Image
from tests.clients.texts import PICTURED, assert_same_vectors

MODEL = "tiny-clip"
KEY = Secret.from_token("any key")


def parts(*images: str) -> list[dict[str, object]]:
    return [{"type": "image_url", "image_url": {"url": image}} for image in images]


# --- official SDKs --------------------------------------------------------------------------------------------


def test_openai_embeds_data_uris_among_texts(pictures):
    """In base64, which the SDK requests and decodes."""
    client = openai.OpenAI(base_url=f"{pictures.url}/v1", api_key="any key")
    answer = client.embeddings.create(model=MODEL, input=[*pictures.uris, PICTURED])
    got = [item.embedding for item in answer.data]
    assert_same_vectors(got, np.concatenate([pictures.vectors, pictures.of_text]))
    assert answer.usage.prompt_tokens > 17 * len(pictures.files)


@pytest.mark.parametrize("field", ["messages", "input"])
def test_openai_posts_the_messages_of_vllms_examples(pictures, field):
    """One conversation of one picture; several are in `messages`."""
    client = openai.OpenAI(base_url=f"{pictures.url}/v1", api_key="any key")

    def vectors(conversations: object) -> list[list[float]]:
        body = {"model": MODEL, field: conversations, "encoding_format": "float"}
        answer = client.post("/embeddings", body=body, cast_to=openai.types.CreateEmbeddingResponse)
        return [item.embedding for item in answer.data]

    conversations = [[{"role": "user", "content": parts(image)}] for image in pictures.uris]
    assert_same_vectors(vectors(conversations[0]), pictures.vectors[:1])
    assert_same_vectors(vectors([{"role": "user", "content": PICTURED}]), pictures.of_text)
    if field == "messages":
        assert_same_vectors(vectors(conversations), pictures.vectors)


def test_cohere_embeds_images_and_inputs(pictures):
    """By both versions; the response describes each image."""
    with cohere.ClientV2("any key", base_url=pictures.url) as client:
        options = {"model": MODEL, "input_type": "image", "embedding_types": ["float"]}
        answer = client.embed(images=pictures.uris, **options)
        assert_same_vectors(answer.embeddings.float_, pictures.vectors)
        assert answer.meta.billed_units.images == len(pictures.files)
        inputs = [{"content": parts(image)} for image in pictures.uris]
        inputs.append({"content": [{"type": "text", "text": PICTURED}]})
        answer = client.embed(inputs=inputs, **options)
        assert_same_vectors(answer.embeddings.float_, np.concatenate([pictures.vectors, pictures.of_text]))
    with cohere.Client("any key", base_url=pictures.url) as client:
        answer = client.embed(images=pictures.uris[:1], model=MODEL, input_type="image")
        assert_same_vectors(answer.embeddings, pictures.vectors[:1])


def test_voyage_embeds_pillows_images_and_texts(pictures):
    """The SDK encodes the images, and requires all four fields of the usage."""
    client = voyageai.Client(api_key="any key", base_url=f"{pictures.url}/v1")
    images = [Image.open(file) for file in pictures.files]
    answer = client.multimodal_embed([*([image] for image in images), [PICTURED]], model=MODEL)
    assert_same_vectors(answer.embeddings, np.concatenate([pictures.vectors, pictures.of_text]))
    assert answer.image_pixels == sum(image.width * image.height for image in images)
    assert answer.total_tokens == answer.text_tokens + 17 * len(images)


def test_google_embeds_parts_of_bytes(pictures):
    """One content of one part for each picture."""
    contents = [
        types.Content(parts=[types.Part.from_bytes(data=file.read_bytes(), mime_type="image/png")])
        for file in pictures.files
    ]
    with genai.Client(api_key="any key", http_options=types.HttpOptions(base_url=pictures.url)) as client:
        answer = client.models.embed_content(model=MODEL, contents=[*contents, PICTURED])
    got = [one.values for one in answer.embeddings]
    assert_same_vectors(got, np.concatenate([pictures.vectors, pictures.of_text]))


# --- frameworks -----------------------------------------------------------------------------------------------


def test_langchain_embeds_data_uris(pictures):
    """Its class of OpenAI's embeddings, told not to cut texts into tokens."""
    made = OpenAIEmbeddings(
        model=MODEL, base_url=f"{pictures.url}/v1", api_key="any key", check_embedding_ctx_length=False
    )
    assert_same_vectors(made.embed_documents(pictures.uris), pictures.vectors)
    assert_same_vectors([made.embed_query(PICTURED)], pictures.of_text)


def test_llama_index_embeds_files(pictures):
    """Jina's class, which sends their bytes."""
    made = JinaEmbedding(api_key="any key", model=MODEL)
    made._api.api_url = f"{pictures.url}/v1/embeddings"  # the class does not pass an address on
    files = [str(file) for file in pictures.files]
    assert_same_vectors([made.get_image_embedding(files[0])], pictures.vectors[:1])
    assert_same_vectors(made.get_image_embedding_batch(files), pictures.vectors)


@pytest.mark.parametrize("embedder", ["jina", "cohere"])
def test_haystack_embeds_documents_of_files(pictures, embedder):
    """Jina's sends five data URIs in a request, Cohere's one."""
    if embedder == "jina":
        made = JinaDocumentImageEmbedder(api_key=KEY, model=MODEL, base_url=f"{pictures.url}/v1/embeddings")
    else:
        made = CohereDocumentImageEmbedder(api_key=KEY, model=MODEL, api_base_url=pictures.url)
    documents = [Document(content="", meta={"file_path": str(file)}) for file in pictures.files]
    found = made.run(documents)["documents"]
    vectors = [document.embedding for document in found]
    # Haystack encodes the pictures anew, as JPEG.
    cosines = (np.array(vectors) * pictures.vectors).sum(1) / np.linalg.norm(pictures.vectors, axis=1)
    assert cosines.min() > 0.99


def test_a_broken_picture_is_an_error_of_the_sdk(pictures):
    """With the index of the input."""
    client = openai.OpenAI(base_url=f"{pictures.url}/v1", api_key="any key")
    broken = f"data:image/png;base64,{base64.b64encode(pictures.files[0].read_bytes()[:90]).decode()}"
    with pytest.raises(openai.BadRequestError, match=r"input\[1\].*broken or truncated"):
        client.embeddings.create(model=MODEL, input=[pictures.uris[0], broken])
