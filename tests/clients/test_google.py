"""Google's official SDK google-genai, and the two frameworks that use it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from google import genai
from google.genai import errors, types
from langchain_google_genai import GoogleGenerativeAIEmbeddings
from llama_index.embeddings.google_genai import GoogleGenAIEmbedding
from tests.clients.texts import MODEL, TEXTS, TOO_LONG, assert_same_vectors


def connected(url: str, key: str = "none is needed") -> genai.Client:
    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=url))


@pytest.fixture
def client(server: str) -> Iterator[genai.Client]:
    with connected(server) as made:
        yield made


def vectors(answer: types.EmbedContentResponse) -> np.ndarray:
    return np.array([one.values for one in answer.embeddings], np.float32)


def test_texts_and_contents_have_the_vectors_of_vectords_own_api(client, own):
    assert_same_vectors(vectors(client.models.embed_content(model=MODEL, contents=TEXTS)), own.embed(TEXTS))
    content = types.Content(parts=[types.Part(text="happy"), types.Part(text="dog")])
    answer = client.models.embed_content(model=f"models/{MODEL}", contents=[content, "happy"])
    assert_same_vectors(vectors(answer), own.embed(["happy\ndog", "happy"]))


def test_the_options_reach_the_engine(client, own):
    """The model has no prompts: a task changes no vector, a title is a line before the text."""
    config = types.EmbedContentConfig(task_type="RETRIEVAL_DOCUMENT", title="Dogs", output_dimensionality=128)
    with pytest.raises(errors.ClientError, match="dimensions"):  # MiniLM was not trained for fewer
        client.models.embed_content(model=MODEL, contents=["a dog"], config=config)
    answer = client.models.embed_content(
        model=MODEL, contents=["a dog"], config={"title": "Dogs", "task_type": "RETRIEVAL_DOCUMENT"}
    )
    assert_same_vectors(vectors(answer), own.embed(["Dogs\na dog"]))


def test_tokens_are_counted_before_they_are_embedded(client):
    """As many as the model then reads, special tokens included; of a text that is too long, all. The SDK makes a list
    of texts one content."""
    for texts, text in (("a happy dog", "a happy dog"), (["a", "b"], "a\nb")):
        read = client.models.embed_content(model=MODEL, contents=text).usage_metadata.prompt_token_count
        assert client.models.count_tokens(model=MODEL, contents=texts).total_tokens == read
    assert client.models.count_tokens(model=MODEL, contents=TOO_LONG).total_tokens > 256


async def test_the_asynchronous_client_and_long_texts(client, own):
    answer = await client.aio.models.embed_content(model=MODEL, contents=[TOO_LONG])
    assert_same_vectors(vectors(answer), own.embed([TOO_LONG], truncate=True))


def test_errors_have_the_status_and_the_message(client):
    with pytest.raises(errors.ClientError) as raised:
        client.models.embed_content(model="gemini-embedding-001", contents=["a"])
    assert raised.value.code == 404
    assert raised.value.status == "NOT_FOUND"
    with pytest.raises(errors.ClientError, match="taskType"):
        client.models.embed_content(model=MODEL, contents=["a"], config={"task_type": "RANK"})


def test_the_sdks_key_is_the_servers(guarded_server, key):
    with connected(guarded_server, key) as client:
        assert len(vectors(client.models.embed_content(model=MODEL, contents="a"))) == 1
    with connected(guarded_server, "another") as client, pytest.raises(errors.ClientError, match="UNAUTHENTICATED"):
        client.models.embed_content(model=MODEL, contents="a")


def test_models_are_listed_by_the_beta_version(server):
    """In version v1, the SDK's default, the path is OpenAI's."""
    options = types.HttpOptions(base_url=server, api_version="v1beta")
    with genai.Client(api_key="none is needed", http_options=options) as client:
        assert f"models/{MODEL}" in [model.name for model in client.models.list()]
        assert client.models.get(model=MODEL).supported_actions == ["embedContent", "batchEmbedContents", "countTokens"]
        assert len(vectors(client.models.embed_content(model=MODEL, contents="a"))) == 1


def test_langchain_embeds_documents_and_queries(server, own):
    embeddings = GoogleGenerativeAIEmbeddings(model=MODEL, api_key="none is needed", base_url=server)
    assert_same_vectors(embeddings.embed_documents(TEXTS), own.embed(TEXTS))
    assert_same_vectors([embeddings.embed_query(TEXTS[0])], own.embed(TEXTS[:1]))


def test_llama_index_embeds_documents_and_queries(server, own):
    options = types.HttpOptions(base_url=server)
    embeddings = GoogleGenAIEmbedding(model_name=MODEL, api_key="none is needed", http_options=options)
    assert_same_vectors(embeddings.get_text_embedding_batch(TEXTS), own.embed(TEXTS))
    assert_same_vectors([embeddings.get_query_embedding(TEXTS[0])], own.embed(TEXTS[:1]))
