"""Ollama's own tests of its embedding API, in our words, with its Python client and the model that they use.

Score: 17 of 18. `num_ctx` 0, an error there, means the model's length, as in Ollama's later releases.
"""

from __future__ import annotations

import numpy as np
import ollama
import pytest
from tests.clients.texts import MODEL

SKY = "why is the sky blue?"
# The first numbers of Ollama's vectors of all-minilm, with normalization.
SKY_VECTOR = [0.010071031, -0.0017594865, 0.050072223, 0.046929732, 0.05491682, 0.008599705, 0.105441436]
TRIPLES = [
    ("cat", "kitten", "dog"),
    ("king", "queen", "baron"),
    ("paris", "london", "vancouver"),
    ("The cat sleeps on the sofa", "A feline sleeps on the couch", "Quantum physics is complex"),
    ("I love programming in python", "Coding in python is fun", "Pizza is delicious"),
]


@pytest.fixture
def client(server: str) -> ollama.Client:
    return ollama.Client(server)


def embed(client: ollama.Client, given: str | list[str], **options: object) -> ollama.EmbedResponse:
    return client.embed(model=MODEL, input=given, **options)  # type: ignore[arg-type]


def unit(vector: object) -> np.ndarray:
    row = np.asarray(vector, np.float64)
    return row / np.linalg.norm(row)


@pytest.mark.parametrize("texts", TRIPLES, ids=lambda texts: texts[0])
def test_related_texts_are_closer_by_every_distance(client, texts):
    """One test there. Of vectors with unit length, the cosine and both distances agree."""
    one, near, far = map(unit, embed(client, list(texts)).embeddings)
    assert one @ near > one @ far
    for order in (1, 2):
        assert np.linalg.norm(one - near, order) < np.linalg.norm(one - far, order)


def test_vectors_equal_ollamas(client):
    """By the older route, by the newer one, and in a batch: three tests there, with a cosine above 0.99."""
    single = embed(client, SKY).embeddings
    batch = embed(client, [SKY, "why is the grass green?"])
    older = client.embeddings(model=MODEL, prompt=SKY).embedding
    assert [len(vector) for vector in (*single, *batch.embeddings, older)] == [384] * 4
    for vector in (single[0], batch.embeddings[0], unit(older)):
        assert np.allclose(vector[: len(SKY_VECTOR)], SKY_VECTOR, atol=3e-3)
    assert batch.prompt_eval_count == 16


@pytest.mark.parametrize("options", [{}, {"truncate": True}], ids=str)
def test_texts_are_truncated_to_num_ctx(client, options):
    """Three tests there. Three tokens are one word with its special tokens."""
    word = embed(client, "why", **options).embeddings[0]
    cut = embed(client, SKY, options={"num_ctx": 3}, **options).embeddings[0]
    assert unit(word) @ unit(cut) > 0.999


def test_truncation_at_the_length_of_the_text(client):
    """No error."""
    assert embed(client, f"{SKY} Why is the sky blue? hi there my", options={"num_ctx": 16}).prompt_eval_count <= 16


@pytest.mark.parametrize(
    "given", [SKY, "very long input " * 100, ["short", "very long input " * 100, "short"]], ids=len
)
def test_without_truncation_a_long_text_is_refused(client, given):
    """Three tests there: a status of 4xx, and words that name the context."""
    with pytest.raises(ollama.ResponseError, match="input length exceeds the context length") as refused:
        embed(client, given, truncate=False, options={"num_ctx": 3})
    assert 400 <= refused.value.status_code < 500


def test_a_context_of_one_token_is_refused(client):
    """Special tokens fill it."""
    sentence = r"input after truncation exceeds maximum context length: `options\.num_ctx`"
    with pytest.raises(ollama.ResponseError, match=sentence) as refused:
        embed(client, SKY, truncate=True, options={"num_ctx": 1})
    assert refused.value.status_code == 400


def test_each_text_of_a_batch_is_truncated_and_counted(client):
    """Two tests there."""
    many = embed(client, ["short", "long " * 100, "medium text"], truncate=True, options={"num_ctx": 30})
    assert len(many.embeddings) == 3
    assert many.prompt_eval_count <= 90
    assert embed(client, ["test"] * 3).prompt_eval_count == 3 * embed(client, "test").prompt_eval_count


@pytest.mark.parametrize("words", [256, 512, 800])
def test_large_texts_are_embedded(client, words):
    """Truncated by default."""
    assert len(embed(client, " ".join(["word"] * words)).embeddings[0]) == 384
