"""Both clients against a real server on a real socket, with real and tiny models."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from tests.client.conftest import API_KEY

import vectord
from vectord.client import BadRequest, ConnectionFailed, NotFound, Unauthorized

CLIENT = {"api_key": API_KEY, "texts_per_request": 4}
TEXTS = [f"bird {number} sings in the old green tree {'again and ' * (number % 5)}" for number in range(30)]
CLOSE = 0.9999


@pytest.fixture(scope="module")
def reference(server):
    """(30, 384), from one request by hand."""
    body = {"inputs": TEXTS}
    answer = httpx.post(f"{server}/vectord/embed", json=body, headers={"x-api-key": API_KEY}, timeout=60).json()
    return np.array([item["dense"] for item in answer["data"]], np.float32)


def cosines(left, right):
    left, right = (np.asarray(one, np.float64) for one in (left, right))
    return (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


def test_vectors_are_those_of_one_request(call, server, reference):
    """Although the client sends eight."""
    vectors = call(server, "embed", TEXTS, client=CLIENT)
    assert vectors.shape == reference.shape
    assert cosines(vectors, reference).min() > CLOSE
    assert call(server, "embed", TEXTS[3], client=CLIENT) @ vectors[3] > CLOSE


def test_smaller_dtypes_are_close(call, server, reference):
    """As close as their precision allows. ubinary has the signs, eight in a byte, the first one highest."""
    for dtype, floor in (("float16", 0.9999), ("int8", 0.99)):
        assert cosines(call(server, "embed", TEXTS, dtype=dtype, client=CLIENT), reference).min() > floor
    bits = np.unpackbits(call(server, "embed", TEXTS, dtype="ubinary", client=CLIENT), axis=1)
    assert (bits == (reference > 0)).mean() > 0.99


def test_three_kinds_of_vectors_from_one_pass(call, server):
    """Of a model like BGE-M3."""
    made = call(server, "embed_all", TEXTS, model="tiny-bge-m3", client=CLIENT)
    assert made.dense.shape == (30, 32)
    assert made.sparse.shape[0] == 30
    assert made.sparse.nnz > 30
    assert [rows.shape[1] for rows in made.colbert] == [32] * 30
    assert np.allclose(np.linalg.norm(np.concatenate(made.colbert), axis=1), 1, atol=1e-3)
    body = {"inputs": TEXTS[7], "outputs": ["sparse"], "model": "tiny-bge-m3"}
    by_hand = httpx.post(f"{server}/vectord/embed", json=body, headers={"x-api-key": API_KEY}).json()["data"][0]
    row = made.sparse[[7]].tocoo()
    weights = dict(zip(by_hand["sparse"]["indices"], by_hand["sparse"]["values"], strict=True))
    assert dict(zip(row.coords[1].tolist(), row.data.tolist(), strict=True)) == pytest.approx(weights, abs=0.03)
    assert (made.model, made.truncated, made.tokens_read > 100) == ("tiny-bge-m3", [], True)


def test_a_truncated_text_is_named(call, server):
    """Without truncation the text is refused."""
    texts = [*TEXTS, "word " * 400]
    made = call(server, "embed_all", texts, outputs=["dense"], truncate=True, client=CLIENT)
    assert made.truncated == [30]
    with pytest.raises(BadRequest, match=r"^`inputs\[30\]` must have at most 256 tokens; got 402\. Send ") as bad:
        call(server, "embed", texts, client=CLIENT)
    assert (bad.value.index, bad.value.limit, bad.value.given, bad.value.type) == (30, 256, 402, "input_too_long")


def test_documents_are_split_into_chunks(call, server):
    """Spans refer to the whole document."""
    text = "One bird sang in the tree. The other two listened. Then they flew south, where it is warm. " * 3
    (document,) = call(server, "documents", text, chunk={"max_tokens": 20, "by": "sentences"}, mean=True, client=CLIENT)
    assert "".join(text[span.start : span.stop] for span in document.spans) == text
    assert document.vectors.shape == (len(document.spans), 384)
    assert document.mean.shape == (384,)
    assert max(document.tokens) <= 20


def test_a_cross_encoder_ranks_and_classifies(call, server):
    """It returns the scores of pairs, and the label of a pair."""
    ranking = call(server, "rerank", "bird", TEXTS, model="tiny-reranker", client=CLIENT)
    assert (len(ranking), ranking.score_kind) == (30, "logit")
    labels = call(server, "classify", [("bird", TEXTS[0])], model="tiny-reranker", client=CLIENT)
    assert len(labels[0]) == 1


def test_similarity_is_the_cosine(call, server, reference):
    """Of the first text and each other one."""
    scores = call(server, "similarity", TEXTS[0], TEXTS, client=CLIENT)
    assert scores == pytest.approx(reference @ reference[0], abs=0.01)


def test_tokenize_and_decode_are_inverse(call, server):
    """With and without special tokens."""
    (tokens,) = call(server, "tokenize", "Hello", client=CLIENT)
    assert [token.text for token in tokens] == ["[CLS]", "Hello", "[SEP]"]
    assert call(server, "decode", [[token.id for token in tokens]], client=CLIENT) == ["hello"]


def test_models_and_health_describe_the_server(call, server):
    """The default model is first; health needs a key only to name the models."""
    models = call(server, "models", client=CLIENT)
    assert [model.name for model in models] == ["all-MiniLM-L6-v2", "tiny-bge-m3", "tiny-reranker"]
    assert (models[0].dimensions, models[0].max_input_tokens, models[2].reranks) == (384, 256, True)
    health = call(server, "health", client=CLIENT)
    assert health.ready
    assert set(health.states) == {model.name for model in models}
    anyones = call(server, "health")
    assert anyones.ready
    assert not anyones.states


def test_errors_have_their_classes(call, server):
    """For a missing key, an unknown model or route, and an invalid option."""
    with pytest.raises(Unauthorized, match="key is required"):
        call(server, "embed", "a")
    with pytest.raises(NotFound, match="No such model") as missing:
        call(server, "embed", "a", model="no-such-model", client=CLIENT)
    assert (missing.value.type, len(missing.value.request_id)) == ("model_not_found", 32)  # as in the server's log
    with pytest.raises(NotFound):
        call(f"{server}/v1", "embed", "a", client=CLIENT)
    with pytest.raises(BadRequest, match="not trained to be cut"):
        call(server, "embed", "a", dimensions=4, client=CLIENT)


def test_a_missing_server_is_a_failed_connection(call):
    """After the retries."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match="No server answers"):
            call(url, "embed", "a", client={"max_retries": 0})


def test_threads_can_share_a_client(server, reference):
    """Each gets its own results."""
    with vectord.Client(server, **CLIENT) as client, ThreadPoolExecutor(5) as pool:
        made = list(pool.map(lambda n: client.embed(TEXTS[n:]), range(0, 30, 6)))
    assert all(cosines(vectors, reference[n * 6 :]).min() > CLOSE for n, vectors in enumerate(made))


async def test_tasks_can_share_a_client(server, reference):
    """Each gets its own results."""
    async with vectord.AsyncClient(server, **CLIENT) as client:
        made = await asyncio.gather(*(client.embed(TEXTS[n:]) for n in range(0, 30, 6)))
    assert all(cosines(vectors, reference[n * 6 :]).min() > CLOSE for n, vectors in enumerate(made))


@pytest.mark.parametrize("kind", [vectord.Client, vectord.AsyncClient])
async def test_the_httpx_client_is_closed(server, kind):
    """At the end of the `with` block; also that of the caller."""
    http = httpx.AsyncClient()
    if kind is vectord.Client:
        with vectord.Client(server, http=http, **CLIENT) as client:
            assert client.embed("a").shape == (384,)
    else:
        async with vectord.AsyncClient(server, http=http, **CLIENT) as client:
            assert (await client.embed("a")).shape == (384,)
    assert http.is_closed
    with pytest.raises(RuntimeError, match="closed"):
        await asyncio.to_thread(client.models) if kind is vectord.Client else await client.models()


def test_another_kind_of_http_is_a_type_error():
    """Such as httpx.Client, which cannot be awaited."""
    with httpx.Client() as http, pytest.raises(TypeError, match=r"http must be an httpx\.AsyncClient, not Client"):
        vectord.Client(http=http)


async def test_threads_use_the_client_beside_a_running_event_loop(server, reference):
    """As in a notebook, whose cells run on a loop."""
    with vectord.Client(server, **CLIENT) as client:
        assert cosines(client.embed(TEXTS[:3]), reference[:3]).min() > CLOSE


def test_the_texts_of_an_iterator_may_use_the_client(server):
    """The caller's thread reads them."""
    with vectord.Client(server, **CLIENT) as client:
        texts = (f"text {len(client.models())}" for _ in range(9))
        assert sum(len(batch.texts) for batch in client.embed_iter(texts)) == 9
