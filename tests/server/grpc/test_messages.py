"""Messages of tei.v1 as requests, and results as messages."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import Message
from msgspec.structs import replace
from tests.products.results import classify_result, embed_result, model_info, model_list, rerank_result, usage

from vectord import __version__
from vectord.errors import EmptyInput, InvalidField, MalformedBody, PayloadTooLarge
from vectord.schema import (
    ClassifyRequest,
    DecodeRequest,
    DecodeResult,
    EmbedRequest,
    EmbedResult,
    ListModels,
    RerankRequest,
    Sparse,
    TextLengths,
    TextOptions,
    Timings,
    Token,
    TokenizeRequest,
    TokenizeResult,
    Usage,
)
from vectord.server.grpc import messages
from vectord.server.grpc import tei_pb2 as pb

AS_SENT = TextOptions(truncate=False)
LEFT = pb.TRUNCATION_DIRECTION_LEFT
CUT_LEFT = TextOptions(truncate=True, truncate_side="left", prompt_name="q")


PARSERS = {method.kind: method.parse for method in messages.METHODS}


def parsed(message: Message) -> messages.ParsedMessage:
    return PARSERS[type(message)](message)


@pytest.mark.parametrize(
    ("message", "request_"),
    [
        (pb.EmbedRequest(inputs="a"), EmbedRequest(inputs=["a"], text=AS_SENT)),
        (
            pb.EmbedRequest(
                inputs="a", truncate=True, normalize=False, truncation_direction=LEFT, prompt_name="q", dimensions=8
            ),
            EmbedRequest(inputs=["a"], text=CUT_LEFT, normalize=False, dimensions=8),
        ),
        (
            pb.EmbedRequest(inputs="a", normalize=True, prompt_name=""),
            EmbedRequest(inputs=["a"], text=TextOptions(truncate=False, prompt_name="")),
        ),
        (
            pb.EmbedSparseRequest(inputs="a", truncate=True, truncation_direction=LEFT, prompt_name="q"),
            EmbedRequest(inputs=["a"], text=CUT_LEFT, outputs=frozenset({"sparse"})),
        ),
        (
            pb.EmbedAllRequest(inputs="a"),
            EmbedRequest(inputs=["a"], text=AS_SENT, outputs=frozenset({"tokens"})),
        ),
        (pb.PredictRequest(inputs="a"), ClassifyRequest(inputs=["a"], text=AS_SENT)),
        (
            pb.PredictPairRequest(inputs=["a", ""], raw_scores=True, truncate=True, truncation_direction=LEFT),
            ClassifyRequest(inputs=[("a", "")], text=replace(CUT_LEFT, prompt_name=None), raw=True),
        ),
        (pb.PredictPairRequest(inputs=["a"]), ClassifyRequest(inputs=["a"], text=AS_SENT)),
        (
            pb.RerankRequest(query="q", texts=["a", ""], raw_scores=True),
            RerankRequest(query="q", passages=["a", ""], text=AS_SENT, raw=True),
        ),
        (pb.EncodeRequest(inputs="a"), TokenizeRequest(inputs=["a"], add_special_tokens=False)),
        (
            pb.EncodeRequest(inputs="a", add_special_tokens=True, prompt_name="q"),
            TokenizeRequest(inputs=["a"], add_special_tokens=True, prompt_name="q"),
        ),
        (pb.DecodeRequest(ids=[1, 2]), DecodeRequest(ids=[[1, 2]], skip_special_tokens=False)),
        (pb.InfoRequest(), ListModels()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_becomes_a_request(message, request_):
    """proto3's default is false, except for `normalize`."""
    assert parsed(message).request == request_


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        *(
            (message, EmptyInput, "`inputs` cannot be empty")
            for message in (
                *(pb.EmbedRequest(), pb.EmbedAllRequest(), pb.EmbedSparseRequest(), pb.PredictRequest()),
                *(pb.PredictPairRequest(inputs=["", ""]), pb.EncodeRequest()),
            )
        ),
        (pb.RerankRequest(query="q"), EmptyInput, "`texts` cannot be empty"),
        (pb.RerankRequest(texts=["a", ""]), EmptyInput, "`texts` cannot be empty"),
        (pb.DecodeRequest(), EmptyInput, "`ids` cannot be empty"),
        (pb.EmbedRequest(inputs="a", dimensions=0), InvalidField, "`dimensions` should be positive"),
        (
            pb.EmbedRequest(inputs="a", truncation_direction=7),  # an enum, which proto3 does not check
            InvalidField,
            "`truncation_direction` must be RIGHT or LEFT",
        ),
        (
            pb.PredictPairRequest(inputs=["a", "b", "c"]),
            InvalidField,
            "`inputs` must have a single or two elements. Given: 3",
        ),
        (pb.PredictPairRequest(), InvalidField, "`inputs` must have a single or two elements. Given: 0"),
    ],
)
def test_empty_and_invalid_values_are_refused(message, error, text):
    """With TEI's messages, as over HTTP."""
    with pytest.raises(error) as caught:
        parsed(message)
    assert caught.value.message == text


def test_a_side_that_the_model_cannot_cut_is_refused_under_the_messages_name():
    for message in (pb.EmbedRequest(inputs="a"), pb.RerankRequest(texts=["a"], query="q")):
        error = parsed(message).named(InvalidField("{field}", field="truncate_side"))
        assert error.field_name == "truncation_direction"


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        pytest.param(pb.RerankRequest, b"\x12\x00" * 250_001, id="texts of two bytes"),
        pytest.param(pb.DecodeRequest, b"\x0a\xc1\x84\x3d" + bytes(1_000_001), id="ids of one byte"),
    ],
)
def test_too_many_items_are_refused_by_their_count(kind, content):
    """They take few bytes in the message and many as Python values."""
    with pytest.raises(PayloadTooLarge):
        parsed(messages.decode_message(kind, content))


@pytest.mark.parametrize("content", [b"\xff", b"\x0a\x05ab", b"\x0a\x01\xff"], ids=["no tag", "cut off", "no UTF-8"])
def test_an_invalid_message_is_refused(content):
    """The error contains none of its bytes."""
    with pytest.raises(MalformedBody) as caught:
        messages.decode_message(pb.EmbedRequest, content)
    assert caught.value.message == "The message is not a valid tei.v1.EmbedRequest."
    assert caught.value.__cause__ is None


# --- responses -------------------------------------------------------------------------------------------------

METADATA = pb.Metadata(
    compute_chars=40,
    compute_tokens=4,
    total_time_ns=1_234_500_000,
    tokenization_time_ns=1_900_000,
    queue_time_ns=2_999_900,
    inference_time_ns=35_100_000,
)
USED = usage([(9, 4)])


@pytest.mark.parametrize("width", [1, 31, 32, 4095, 4096, 600_000])
def test_packed_numbers_equal_those_of_protobuf(width):
    """At every length that needs another byte."""
    row = np.arange(2 * width, dtype=np.float64)[None, ::2] / 3
    assert messages.embedding(embed_result(row, USED)) == pb.EmbedResponse(
        embeddings=row[0].astype(np.float32).tolist(), metadata=METADATA
    )


def test_embed_all():
    """One vector per token, also for a view of wider rows."""
    tokens = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    result = EmbedResult(model="served", fingerprint="f00d", tokens=[tokens], usage=USED)
    shown = [pb.TokenEmbedding(embeddings=row) for row in ([0, 2], [4, 6], [8, 10])]
    assert messages.token_embeddings(result) == pb.EmbedAllResponse(token_embeddings=shown, metadata=METADATA)


def test_embed_sparse():
    """Entries in the model's order."""
    words = Sparse(np.array([7, 3], np.int32), np.array([0.5, 2], np.float32))
    result = EmbedResult(model="served", fingerprint="f00d", sparse=[words], usage=USED)
    shown = [pb.SparseValue(index=7, value=0.5), pb.SparseValue(index=3, value=2)]
    assert messages.sparse_embedding(result) == pb.EmbedSparseResponse(sparse_embeddings=shown, metadata=METADATA)


def test_predict():
    """Best label first."""
    response = messages.predictions(classify_result([0.25, 0.75, 0.0]))
    assert [(each.label, each.score) for each in response.predictions] == [("glad", 0.75), ("sad", 0.25), ("mad", 0)]
    assert response.metadata.compute_tokens == 3


@pytest.mark.parametrize("return_text", [False, True])
def test_rerank(return_text):
    """Best first, the last of equal ones first; texts only if requested, also empty ones."""
    response = messages.ranking("qq", ["a", "", "c"], return_text, rerank_result(0.5, 0.5, 1))
    assert [(rank.index, rank.score) for rank in response.ranks] == [(2, 1), (1, 0.5), (0, 0.5)]
    assert [rank.HasField("text") for rank in response.ranks] == [return_text] * 3
    assert [rank.text for rank in response.ranks] == (["c", "", "a"] if return_text else [""] * 3)
    assert response.metadata.compute_chars == 8
    assert response.metadata.compute_tokens == 27


def test_tokenize():
    """A special token has no offsets; the first other token begins at 0."""
    tokens = [Token(101, "[CLS]", True, None, None), Token(7, "é", False, 0, 2)]
    response = messages.tokens(TokenizeResult(model="served", tokens=[tokens], usage=USED))
    special, letter = response.tokens
    assert (special.id, special.text, special.special, special.HasField("start")) == (101, "[CLS]", True, False)
    assert (letter.special, letter.HasField("start"), letter.start, letter.stop) == (False, True, 0, 2)


def test_decode():
    """One text."""
    assert messages.decoded(DecodeResult(model="served", texts=["a"])) == pb.DecodeResponse(text="a")


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
    assert messages.facts(model_list(model_info(**facts), "second")) == pb.InfoResponse(
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
    used = Usage(lengths=TextLengths(), characters=2**40, further_tokens=2**40, timings=Timings())
    shown = messages.metadata(used)
    assert (shown.compute_chars, shown.compute_tokens) == (2**32 - 1, 2**32 - 1)
