"""The official openai SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from tests.clients.texts import MAX_TOKENS, MODEL, TEXTS, TOO_LONG, assert_same_vectors


@pytest.fixture
def client(server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server}/v1", api_key="none is needed") as client:
        yield client


def vectors(answer: Any) -> list[list[float]]:
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    return [item.embedding for item in answer.data]


def test_default_base64_gives_the_models_vectors(client, own):
    """By default the SDK requests base64 and decodes it."""
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert_same_vectors(vectors(answer), own.embed(TEXTS))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS) * 2


def test_explicit_floats_equal_the_base64_answer(client):
    """Both encodings contain the same float32 bits."""
    base64 = vectors(client.embeddings.create(model=MODEL, input=TEXTS[:3]))
    floats = vectors(client.embeddings.create(model=MODEL, input=TEXTS[:3], encoding_format="float"))
    assert np.array_equal(np.float32(floats), np.float32(base64))


def test_token_arrays_equal_their_texts(client, own):
    """A list of the model's ids is one input, a list of lists several; ids include special tokens."""
    ids = [own.token_ids(text) for text in TEXTS[:3]]
    assert_same_vectors(vectors(client.embeddings.create(model=MODEL, input=ids)), own.embed(TEXTS[:3]))
    assert_same_vectors(vectors(client.embeddings.create(model=MODEL, input=ids[0])), own.embed(TEXTS[:1]))


def test_dimensions_are_truncated_then_normalized(client, own):
    """`dimensions` gives unit vectors of that width; force_dimensions is needed if the model is not trained for it."""
    with pytest.raises(openai.BadRequestError, match="not trained"):
        client.embeddings.create(model=MODEL, input=TEXTS, dimensions=64)
    forced = {"force_dimensions": True}
    got = vectors(client.embeddings.create(model=MODEL, input=TEXTS, dimensions=64, extra_body=forced))
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)
    assert_same_vectors(got, own.embed(TEXTS)[:, :64])


def test_models_are_listed_and_found_by_an_id_with_a_slash(client):
    """client.models.list and .retrieve."""
    assert next(iter(client.models.list())).id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_vector_space_can_be_required(client):
    """By a header or in the body; a response header names the space. Another one is 412, which no SDK retries."""
    answer = client.embeddings.with_raw_response.create(model=MODEL, input="x")
    space = answer.headers["x-vectord-fingerprint"]
    client.embeddings.create(model=MODEL, input="x", extra_body={"expect_fingerprint": space})
    client.embeddings.create(model=MODEL, input="x", extra_headers={"x-vectord-expect-fingerprint": space})
    for other in (
        {"extra_body": {"expect_fingerprint": "f00d"}},
        {"extra_headers": {"x-vectord-expect-fingerprint": "0"}},
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            client.embeddings.create(model=MODEL, input="x", **other)
        assert refused.value.status_code == 412


def test_errors_are_the_sdks_own_classes(client):
    """Each error is the exception that OpenAI's users catch, with its code and its field."""
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="no-such-model", input="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as empty:
        client.embeddings.create(model=MODEL, input=[])
    assert empty.value.param == "input"
    with pytest.raises(openai.BadRequestError, match=str(MAX_TOKENS)) as long:
        client.embeddings.create(model=MODEL, input=["short", TOO_LONG])
    assert long.value.code == "context_length_exceeded"


def test_a_wrong_key_is_an_authentication_error(guarded_server, key):
    """The right key embeds."""
    with openai.OpenAI(base_url=f"{guarded_server}/v1", api_key=key) as client:
        assert len(vectors(client.embeddings.create(model=MODEL, input="x"))[0]) == 384
    with openai.OpenAI(base_url=f"{guarded_server}/v1", api_key="wrong") as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            stranger.embeddings.create(model=MODEL, input="x")
        assert refused.value.code == "invalid_api_key"


def test_truncation_can_be_requested_in_extra_body(client):
    """A long text is truncated on request, and the response names it."""
    answer = client.embeddings.create(model=MODEL, input=["short", TOO_LONG], extra_body={"truncate": True})
    assert answer.usage.prompt_tokens == MAX_TOKENS + 3
    assert answer.usage.truncated_inputs == [1]


def test_one_bad_text_fails_alone_on_request(client, own):
    """With `partial_results` the SDK decodes the other texts, and the failed one has its error."""
    texts = [TEXTS[0], TOO_LONG, TEXTS[1]]
    answer = client.embeddings.create(model=MODEL, input=texts, extra_body={"partial_results": True})
    good, bad, fine = answer.data
    assert_same_vectors([good.embedding, fine.embedding], own.embed(TEXTS[:2]))
    assert (bad.object, bad.index, bad.error["code"]) == ("error", 1, "context_length_exceeded")


@pytest.mark.parametrize("prefix", ["openai/v1", "v1/openai", "v1-openai", "engines/v1", "api/v0"])
def test_paths_of_other_servers_are_answered(server, own, prefix):
    with openai.OpenAI(base_url=f"{server}/{prefix}", api_key="none is needed") as client:
        assert_same_vectors(vectors(client.embeddings.create(model=MODEL, input=TEXTS[:2])), own.embed(TEXTS[:2]))
        assert client.models.list().data[0].id == MODEL


def test_azures_client_names_the_model_in_the_path(guarded_server, key):
    """It sends the key as `api-key`."""
    with openai.AzureOpenAI(azure_endpoint=guarded_server, api_version="2024-10-21", api_key=key) as client:
        answer = client.embeddings.create(model=MODEL, input=TEXTS[:2])
    assert answer.model == MODEL
    assert len(vectors(answer)) == 2
