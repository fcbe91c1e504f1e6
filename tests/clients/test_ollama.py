"""Ollama's official Python client."""

from __future__ import annotations

import numpy as np
import ollama
import pytest
from tests.clients.texts import MAX_TOKENS, MODEL, TEXTS, TOO_LONG, assert_same_vectors


@pytest.fixture
def client(server: str) -> ollama.Client:
    return ollama.Client(server)


def test_embed_accepts_one_text_or_several(client, own):
    """Unit vectors, with the token count and the duration."""
    answer = client.embed(model=MODEL, input=TEXTS)
    assert answer.model == MODEL
    assert answer.prompt_eval_count == own.count_tokens(TEXTS)
    assert answer.total_duration > 0
    assert_same_vectors(answer.embeddings, own.embed(TEXTS))
    assert_same_vectors(client.embed(model=MODEL, input=TEXTS[0]).embeddings, own.embed(TEXTS[:1]))


def test_tags_and_options_are_accepted(client, own):
    """A model can be named with `:latest`; options of generating models are ignored."""
    answer = client.embed(model=f"{MODEL}:latest", input=TEXTS, keep_alive="5m", options={"num_ctx": 8192})
    assert_same_vectors(answer.embeddings, own.embed(TEXTS))


def test_the_older_route_does_not_normalize(client, own):
    """`embeddings` accepts one prompt and does not normalize its vector."""
    vector = client.embeddings(model=MODEL, prompt=TEXTS[0]).embedding
    assert_same_vectors([vector], own.embed(TEXTS[:1], normalize=False))
    assert np.linalg.norm(vector) > 1.1


def test_served_models_are_listed_shown_and_running(client):
    """list, ps and show."""
    assert client.list().models[0].model == f"{MODEL}:latest"
    assert f"{MODEL}:latest" in [model.model for model in client.ps().models]
    shown = client.show(MODEL)
    assert shown.capabilities == ["embedding"]
    assert shown.modelinfo["bert.embedding_length"] == 384


def test_long_texts_are_truncated_by_default(client, own):
    """By default the end is truncated; with truncate=False it is an error."""
    answer = client.embed(model=MODEL, input=[TOO_LONG])
    assert answer.prompt_eval_count == MAX_TOKENS
    assert_same_vectors(answer.embeddings, own.embed([TOO_LONG], truncate=True))
    with pytest.raises(ollama.ResponseError, match="context length") as refused:
        client.embed(model=MODEL, input=[TOO_LONG], truncate=False)
    assert refused.value.status_code == 400


def test_an_unknown_model_is_a_response_error(client):
    """With 404, on which callers of Ollama pull the model."""
    with pytest.raises(ollama.ResponseError, match="not found") as refused:
        client.embed(model="no-such-model", input="x")
    assert refused.value.status_code == 404


def test_a_key_can_be_sent_as_a_header(guarded_server, key):
    """Ollama has no keys; without it the status is 401."""
    allowed = ollama.Client(guarded_server, headers={"Authorization": f"Bearer {key}"})
    assert len(allowed.embed(model=MODEL, input="x").embeddings[0]) == 384
    with pytest.raises(ollama.ResponseError) as refused:
        ollama.Client(guarded_server).embed(model=MODEL, input="x")
    assert refused.value.status_code == 401
