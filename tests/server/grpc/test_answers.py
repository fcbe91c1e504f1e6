"""Results as messages of tei.v1."""

from __future__ import annotations

import numpy as np
import pytest
from tests.products.results import VECTORS, classify_result, embed_result, model_info, model_list, rerank_result, usage

from vectord import __version__
from vectord.schema import DecodeResult, EmbedResult, Sparse, Timings, Token, TokenizeResult, Usage
from vectord.server.grpc import answers
from vectord.server.grpc import tei_pb2 as pb

METADATA = pb.Metadata(
    compute_chars=40,
    compute_tokens=4,
    total_time_ns=1_234_500_000,
    tokenization_time_ns=1_900_000,
    queue_time_ns=2_999_900,
    inference_time_ns=35_100_000,
)
USED = usage([(9, 4)])


def test_embed():
    """The exact row, and the times in nanoseconds."""
    response = answers.embed(embed_result(VECTORS[1:], USED))
    assert np.array_equal(np.array(response.embeddings, np.float32), VECTORS[1])
    assert response == pb.EmbedResponse(embeddings=VECTORS[1].tolist(), metadata=METADATA)


@pytest.mark.parametrize("width", [1, 31, 32, 4095, 4096, 600_000])
def test_packed_numbers_equal_those_of_protobuf(width):
    """At every length that needs another byte."""
    row = np.arange(2 * width, dtype=np.float64)[None, ::2] / 3
    assert answers.embed(embed_result(row, USED)) == pb.EmbedResponse(
        embeddings=row[0].astype(np.float32).tolist(), metadata=METADATA
    )


def test_embed_all():
    """One vector per token, also for a view of wider rows."""
    tokens = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    result = EmbedResult(model="served", fingerprint="f00d", tokens=[tokens], usage=USED)
    shown = [pb.TokenEmbedding(embeddings=row) for row in ([0, 2], [4, 6], [8, 10])]
    assert answers.embed_all(result) == pb.EmbedAllResponse(token_embeddings=shown, metadata=METADATA)


def test_embed_sparse():
    """Entries in the model's order."""
    words = Sparse(np.array([7, 3], np.int32), np.array([0.5, 2], np.float32))
    result = EmbedResult(model="served", fingerprint="f00d", sparse=[words], usage=USED)
    shown = [pb.SparseValue(index=7, value=0.5), pb.SparseValue(index=3, value=2)]
    assert answers.embed_sparse(result) == pb.EmbedSparseResponse(sparse_embeddings=shown, metadata=METADATA)


def test_predict():
    """Best label first."""
    response = answers.predict(classify_result([0.25, 0.75, 0.0]))
    assert [(each.label, each.score) for each in response.predictions] == [("glad", 0.75), ("sad", 0.25), ("mad", 0)]
    assert response.metadata.compute_tokens == 3


@pytest.mark.parametrize("return_text", [False, True])
def test_rerank(return_text):
    """Best first, the last of equal ones first; texts only if requested, also empty ones."""
    response = answers.rerank("qq", ["a", "", "c"], return_text, rerank_result(0.5, 0.5, 1))
    assert [(rank.index, rank.score) for rank in response.ranks] == [(2, 1), (1, 0.5), (0, 0.5)]
    assert [rank.HasField("text") for rank in response.ranks] == [return_text] * 3
    assert [rank.text for rank in response.ranks] == (["c", "", "a"] if return_text else [""] * 3)
    assert response.metadata.compute_chars == 8
    assert response.metadata.compute_tokens == 27


def test_tokenize():
    """A special token has no offsets; the first other token begins at 0."""
    tokens = [Token(101, "[CLS]", True, None, None), Token(7, "é", False, 0, 2)]
    response = answers.tokenize(TokenizeResult(model="served", tokens=[tokens], usage=USED))
    special, letter = response.tokens
    assert (special.id, special.text, special.special, special.HasField("start")) == (101, "[CLS]", True, False)
    assert (letter.special, letter.HasField("start"), letter.start, letter.stop) == (False, True, 0, 2)


def test_decode():
    """One text."""
    assert answers.decode(DecodeResult(model="served", texts=["a"])) == pb.DecodeResponse(text="a")


@pytest.mark.parametrize(
    ("facts", "model_type"),
    [
        pytest.param({}, pb.MODEL_TYPE_EMBEDDING, id="embeds"),
        pytest.param({"outputs": {"sparse"}}, pb.MODEL_TYPE_EMBEDDING, id="SPLADE"),
        pytest.param({"outputs": set(), "reranks": True, "labels": ("x",)}, pb.MODEL_TYPE_RERANKER, id="reranks"),
        pytest.param({"outputs": set(), "labels": ("x", "y")}, pb.MODEL_TYPE_CLASSIFIER, id="classifies"),
    ],
)
def test_info(facts, model_type):
    """The first model, and the limits in force."""
    assert answers.info(model_list(model_info(**facts), "second")) == pb.InfoResponse(
        version=__version__,
        model_id="org/model",
        model_sha="abc123",
        model_dtype="bfloat16",
        model_type=model_type,
        max_concurrent_requests=4096,
        max_input_length=256,
        max_batch_tokens=16_384,
        max_client_batch_size=2048,
        tokenization_workers=2,
    )


def test_figures_fit_their_fields():
    """A long query counts once per text, which can exceed 32 bits."""
    used = Usage(lengths=(), characters=2**40, further_tokens=2**40, timings=Timings())
    shown = answers.metadata(used)
    assert (shown.compute_chars, shown.compute_tokens) == (2**32 - 1, 2**32 - 1)
