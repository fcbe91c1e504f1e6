"""vLLM's own tests of embeddings, of cross-encoders and of Cohere's API, in our words, on a server of its profile.

Scores, by the cases there: embeddings 17 of 20, cross-encoders 22 of 23, Cohere 15 of 15. Of the other four cases,
three look for pydantic's words, which repeat the value, and one requests `token_classify` of a cross-encoder. The
models here are MiniLM and a random cross-encoder.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from tests.clients.conftest import Serve
from tests.clients.texts import MAX_TOKENS, MODEL

RERANKER = "tiny-reranker"
TEXTS = ["A cook made dinner for us.", "The dog slept under a tree.", "At night the stars are bright."]
QUERIES = ["where is Paris?", "where is Berlin?"]
ANSWERS = ["Paris is in France.", "Berlin is in Germany."]
TEMPLATE = "{% for message in messages %}{{message['role'] + ': ' + message['content'] + '\n'}}{% endfor %}"
MESSAGES = [
    {"role": "user", "content": "The river runs to the sea."},
    {"role": "assistant", "content": "It is long."},
    {"role": "user", "content": "How long is it?"},
]
DTYPES = ["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]


@pytest.fixture(scope="module")
def url(serve: Serve, written: Path) -> str:
    return serve(MODEL, str(written / RERANKER), "--profile", "vllm", "--chat-template", TEMPLATE)


@pytest.fixture(scope="module")
def client(url: str) -> OpenAI:
    return OpenAI(api_key="any", base_url=f"{url}/v1")


def ask(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(url + path, json={"model": MODEL, **body}, timeout=60)


def answer(url: str, path: str, **body: Any) -> Any:
    return ask(url, path, **body).raise_for_status().json()


def embed(url: str, texts: Any, **options: Any) -> list[Any]:
    return [one["embedding"] for one in answer(url, "/v1/embeddings", input=texts, **options)["data"]]


def cosine(left: Any, right: Any) -> float:
    a, b = np.asarray(left, np.float64), np.asarray(right, np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


# --- embeddings: embed/test_online.py -------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [TEXTS[:1], TEXTS], ids=["one", "several"])
def test_texts_have_vectors_and_usage(client, url, texts):
    """`completion_tokens` is 0. Token ids get the vectors of their texts."""
    ids = [answer(url, "/tokenize", prompt=text)["tokens"] for text in texts]
    for given in (texts, ids):
        found = client.embeddings.create(model=MODEL, input=given, encoding_format="float")
        assert found.id
        assert [len(one.embedding) for one in found.data] == [384] * len(texts)
        usage = found.usage.model_dump()
        assert usage["prompt_tokens"] == usage["total_tokens"] == sum(map(len, ids))
        assert usage["completion_tokens"] == 0


def test_base64_is_the_default_of_openais_client(client):
    """With the same numbers as floats."""
    floats = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float").data
    packed = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="base64").data
    usual = client.embeddings.create(model=MODEL, input=TEXTS).data
    for number, one, other in zip(floats, packed, usual, strict=True):
        assert np.frombuffer(base64.b64decode(one.embedding), "<f4").tolist() == pytest.approx(number.embedding)
        assert other.embedding == pytest.approx(number.embedding)


def decoded(raw: bytes, dtype: str, endianness: str) -> list[float]:
    order = {"native": "=", "little": "<", "big": ">"}[endianness]
    if dtype in ("float32", "float16"):
        return np.frombuffer(raw, f"{order}f{4 if dtype == 'float32' else 2}").astype(np.float64).tolist()
    if dtype == "bfloat16":
        return (np.frombuffer(raw, f"{order}u2").astype(np.uint32) << 16).view(np.float32).tolist()
    bits, mantissa = np.frombuffer(raw, np.uint8).astype(np.int64), 3 if dtype == "fp8_e4m3" else 2
    exponent, fraction = bits >> mantissa & (2 ** (7 - mantissa) - 1), bits & (2**mantissa - 1)
    bias = 7 if mantissa == 3 else 15
    size = np.where(exponent > 0, (1 + fraction / 2**mantissa) * 2.0 ** (exponent - bias), 0)
    return np.where(bits >= 128, -size, size).tolist()


@pytest.mark.parametrize("encoding", ["base64", "bytes", "bytes_only"])
def test_vectors_in_each_type_and_byte_order(url, encoding):
    """Three tests there, for all types and orders."""
    expected = embed(url, TEXTS)
    for dtype in DTYPES:
        for endianness in ("native", "little", "big"):
            options = {"encoding_format": encoding, "embed_dtype": dtype, "endianness": endianness}
            found = ask(url, "/v1/embeddings", input=TEXTS, **options)
            if encoding == "base64":
                parts = [base64.b64decode(one["embedding"]) for one in found.json()["data"]]
            elif encoding == "bytes":
                places = json.loads(found.headers["metadata"])["data"]
                parts = [found.content[place["start"] : place["end"]] for place in places]
            else:
                assert "metadata" not in found.headers
                size = len(found.content) // len(TEXTS)
                parts = [found.content[at * size : at * size + size] for at in range(len(TEXTS))]
            for part, vector in zip(parts, expected, strict=True):
                assert cosine(decoded(part, dtype, endianness), vector) > 0.99


@pytest.mark.parametrize("name", ["encoding_format", "embed_dtype", "endianness"])
def test_unknown_words_are_refused(url, name):
    """There, pydantic's words repeat the value; here, the message names the field."""
    refused = ask(url, "/v1/embeddings", input=TEXTS, **{"encoding_format": "base64", name: "bad"})
    assert refused.status_code == 400
    assert name in refused.json()["error"]["message"]


def test_texts_and_ids_are_truncated(client, url):
    """To the requested number of tokens. The ids may have no special tokens."""
    text = "a sentence with more than ten tokens, of which the last ones are cut off"
    ids = answer(url, "/tokenize", prompt=text)["tokens"]
    assert len(ids) > 12
    for given in (text, ids, ids[1:-1]):
        found = client.embeddings.create(model=MODEL, input=given, extra_body={"truncate_prompt_tokens": 10})
        assert found.usage.prompt_tokens == found.usage.total_tokens == 10


def test_truncation_above_the_models_length_is_refused(client):
    """As a bad request."""
    with pytest.raises(BadRequestError, match="smaller truncation size"):
        client.embeddings.create(model=MODEL, input=TEXTS, extra_body={"truncate_prompt_tokens": 8193})


@pytest.mark.parametrize(
    ("options", "end"),
    [({}, "\n"), ({"add_generation_prompt": True}, "\n"), ({"continue_final_message": True}, "")],
    ids=["plain", "prompt", "open"],
)
@pytest.mark.parametrize("specials", [False, True])
def test_messages_are_formatted_by_the_chat_template(url, options, end, specials):
    """As the text of the template, without special tokens unless these are requested."""
    body = {"messages": MESSAGES, "add_special_tokens": specials, **options}
    text = "".join(f"{one['role']}: {one['content']}\n" for one in MESSAGES).removesuffix("\n") + end
    found = answer(url, "/v1/embeddings", **body)
    expected = answer(url, "/v1/embeddings", input=text, add_special_tokens=specials)
    assert found["usage"] == expected["usage"]
    assert [one["embedding"] for one in found["data"]] == [one["embedding"] for one in expected["data"]]
    tokens = answer(url, "/tokenize", **body)["tokens"]
    assert tokens == answer(url, "/tokenize", prompt=text, add_special_tokens=specials)["tokens"]


def test_a_generation_prompt_excludes_an_open_end(url):
    """In vLLM's words."""
    refused = ask(url, "/v1/embeddings", messages=MESSAGES, continue_final_message=True, add_generation_prompt=True)
    expected = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
    assert refused.status_code == 400
    assert expected in refused.json()["error"]["message"]


@pytest.mark.parametrize("body", [{"input": TEXTS}, {"messages": MESSAGES}], ids=["input", "messages"])
def test_invocations_answer_like_embeddings(url, body):
    """With the same keys and vectors; two tests there."""
    usual, invoked = (answer(url, path, **body) for path in ("/v1/embeddings", "/invocations"))
    assert usual.keys() == invoked.keys()
    assert [one["embedding"] for one in usual["data"]] == [one["embedding"] for one in invoked["data"]]


def test_vectors_have_unit_length_unless_it_is_switched_off(url):
    """By `use_activation`, which replaced `normalize`."""
    usual, unit, raw = (embed(url, TEXTS[:1], use_activation=value)[0] for value in (None, True, False))
    assert usual == unit
    assert np.linalg.norm(raw) > 1.1
    assert np.allclose(np.asarray(raw) / np.linalg.norm(raw), unit, atol=1e-5)


def test_pooling_embeds_texts_and_tokens(url):
    """Two tests there."""
    (pooled,) = answer(url, "/pooling", input=TEXTS[:1], task="embed")["data"]
    assert len(pooled["data"]) == 384
    (tokens,) = answer(url, "/pooling", input=TEXTS[:1], task="token_embed")["data"]
    assert np.shape(tokens["data"]) == (len(answer(url, "/tokenize", prompt=TEXTS[0])["tokens"]), 384)


@pytest.mark.parametrize("task", ["classify", "token_classify", "plugin"])
def test_tasks_of_other_models_are_refused(url, task):
    """With the type of vLLM's error."""
    refused = ask(url, "/pooling", input=TEXTS, task=task)
    assert_unsupported(refused, task)


def assert_unsupported(refused: httpx.Response, task: str) -> None:
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "BadRequestError")
    assert error["message"].startswith(f"Unsupported task: '{task}'")


# --- cross-encoders: scoring/test_cross_encoder_online.py -----------------------------------------------------


def rank(url: str, path: str = "/rerank", **body: Any) -> Any:
    return answer(url, path, **{"model": RERANKER, "query": QUERIES[0], "documents": ANSWERS, **body})


def test_models_and_tokens(url):
    """The names that are served, and ids with special tokens."""
    assert {one["id"] for one in httpx.get(f"{url}/v1/models").json()["data"]} == {MODEL, RERANKER}
    tokens = answer(url, "/tokenize", model=RERANKER, prompt=TEXTS[0])["tokens"]
    assert len(tokens) > 2


@pytest.mark.parametrize(("first", "second"), [(QUERIES[0], ANSWERS[0]), (QUERIES[0], ANSWERS), (QUERIES, ANSWERS)])
@pytest.mark.parametrize(
    "names", [("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")]
)
def test_pairs_have_scores(url, first, second, names):
    """One with one, one with several, each with its own; seven tests there."""
    found = answer(url, "/score", model=RERANKER, **{names[0]: first, names[1]: second})
    several = second if isinstance(second, list) else [second]
    queries = first if isinstance(first, list) else [first] * len(several)
    scores = [
        rank(url, query=query, documents=[text])["results"][0] for query, text in zip(queries, several, strict=True)
    ]
    assert [one["score"] for one in found["data"]] == pytest.approx(
        [one["relevance_score"] for one in scores], rel=0.01
    )


@pytest.mark.parametrize(("options", "count"), [({}, 3), ({"top_n": 2}, 2)], ids=str)
def test_documents_are_ranked(url, options, count):
    """Best first, as probabilities."""
    results = rank(url, documents=[*ANSWERS, TEXTS[0]], **options)["results"]
    scores = [one["relevance_score"] for one in results]
    assert len(scores) == count
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize("path", ["/rerank", "/score"])
def test_pairs_that_are_too_long_are_refused(url, path):
    """In vLLM's words, and so is a truncation above the model's length."""
    body = {"model": RERANKER, "query" if path == "/rerank" else "queries": "word " * 9000, "documents": ANSWERS}
    refused = ask(url, path, **body)
    assert refused.status_code == 400
    assert "Please reduce the length of the input prompt" in refused.text
    refused = ask(url, path, **body, truncate_prompt_tokens=10_000)
    assert refused.status_code == 400
    assert "Please request a smaller truncation size." in refused.text


def test_invocations_answer_like_rerank(url):
    """With the same keys and scores."""
    usual, invoked = rank(url), rank(url, "/invocations")
    assert usual.keys() == invoked.keys()
    assert usual["results"] == invoked["results"]


def test_activation_is_a_sigmoid(url):
    """On by default."""
    usual, on, off = (
        [one["relevance_score"] for one in rank(url, use_activation=value)["results"]] for value in (None, True, False)
    )
    assert usual == on
    assert 1 / (1 + np.exp(-np.asarray(off))) == pytest.approx(on, abs=1e-2)


def test_documents_are_cut_to_max_tokens_per_doc(url):
    """Two tests there: long documents are ranked, and cost fewer tokens."""
    long = ["The river runs to the sea. " * 10]
    whole = rank(url, documents=long)["usage"]["prompt_tokens"]
    cut = rank(url, documents=long, max_tokens_per_doc=10)["usage"]["prompt_tokens"]
    assert 0 < cut < whole


@pytest.mark.parametrize("tokens", [-5])
def test_max_tokens_per_doc_is_positive(url, tokens):
    """One test there, in the same words."""
    body = {"model": RERANKER, "query": QUERIES[0], "documents": ANSWERS, "max_tokens_per_doc": tokens}
    refused = ask(url, "/rerank", **body)
    assert refused.status_code == 400
    assert "max_tokens_per_doc must be a positive integer" in refused.text


@pytest.mark.parametrize("task", ["embed", "token_embed", "plugin"])
def test_a_cross_encoder_embeds_nothing(url, task):
    """With the type and the words of vLLM's error."""
    assert_unsupported(ask(url, "/pooling", model=RERANKER, input=TEXTS, task=task), task)


def test_pooling_classifies_with_a_cross_encoder(url):
    """One score, the same for a text and for its token ids."""
    ids = answer(url, "/tokenize", model=RERANKER, prompt=TEXTS[0])["tokens"]
    text, tokens = (
        answer(url, "/pooling", model=RERANKER, input=given, task="classify")["data"][0] for given in (TEXTS[0], ids)
    )
    assert len(text["data"]) == 1
    assert tokens == text


# --- Cohere's API: embed/test_cohere_online.py ----------------------------------------------------------------


def cohere(url: str, texts: list[str], types: list[str], **body: Any) -> Any:
    return answer(url, "/v2/embed", texts=texts, embedding_types=types, **body)


def test_cohere_embeds_without_a_kind_of_input(url):
    """Two tests there, and one for several texts."""
    vectors = cohere(url, TEXTS, ["float"])["embeddings"]["float"]
    assert np.shape(vectors) == (3, 384)
    assert np.linalg.norm(vectors[0]) == pytest.approx(1, abs=0.01)


def test_cohere_refuses_an_unknown_kind_of_input(url):
    """In vLLM's words."""
    refused = ask(url, "/v2/embed", texts=TEXTS, embedding_types=["float"], input_type="nonexistent_type")
    assert refused.status_code == 400
    assert "Unsupported input_type" in refused.text


def test_cohere_and_openai_have_the_same_vectors(url):
    """Of a model without prompts."""
    assert cosine(cohere(url, TEXTS[:1], ["float"])["embeddings"]["float"][0], embed(url, TEXTS[:1])[0]) > 0.9999


def test_cohere_has_bits_and_base64(url):
    """Two tests there."""
    found = cohere(url, TEXTS, ["float", "binary", "ubinary", "base64"])["embeddings"]
    assert [len(found[kind][0]) for kind in ("float", "binary", "ubinary")] == [384, 48, 48]
    assert np.frombuffer(base64.b64decode(found["base64"][0]), "<f4").tolist() == pytest.approx(found["float"][0])


def test_cohere_repeats_the_texts_and_counts_tokens(url):
    """With an id and the version of the API."""
    found = cohere(url, TEXTS, ["float"])
    assert found["id"] and found["texts"] == TEXTS
    assert found["meta"]["api_version"]["version"] == "2"
    assert found["meta"]["tokens"]["input_tokens"] > 0


def test_cohere_vectors_of_related_texts_are_closer(url):
    """A test of meaning."""
    near, other, far = cohere(url, ["machine learning", "deep learning", "a cake recipe"], ["float"])["embeddings"][
        "float"
    ]
    assert cosine(near, other) > cosine(near, far)


def test_cohere_requires_an_input(url):
    """400 without texts."""
    assert ask(url, "/v2/embed").status_code == 400


def test_cohere_truncates_either_end_or_refuses(url):
    """Four tests there."""
    text = " ".join([f"alpha{n}" for n in range(300)] + [f"omega{n}" for n in range(300)])
    end, start = (cohere(url, [text], ["float"], truncate=side)["embeddings"]["float"][0] for side in ("END", "START"))
    assert cosine(end, start) < 0.99
    refused = ask(url, "/v2/embed", texts=[text], embedding_types=["float"], truncate="NONE")
    assert refused.status_code == 400
    assert str(MAX_TOKENS) in refused.text
