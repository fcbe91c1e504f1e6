"""Messages of tei.v1 as requests, with a bounded number of fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord.errors import EmptyInput, InvalidField, MalformedBody, PayloadTooLarge, TooManyInputs, VectordError
from vectord.schema import (
    ClassifyRequest,
    DecodeRequest,
    EmbedRequest,
    ListModels,
    RerankRequest,
    TextOptions,
    TokenizeRequest,
)
from vectord.server.grpc import requests
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.requests import OTHER_FIELDS, check_fields

AS_SENT = TextOptions(truncate=False)
LEFT = pb.TRUNCATION_DIRECTION_LEFT


@pytest.mark.parametrize(
    ("parse", "message", "request_"),
    [
        pytest.param(
            requests.embed,
            pb.EmbedRequest(inputs="a"),
            EmbedRequest(inputs=["a"], text=AS_SENT),
            id="embed",
        ),
        pytest.param(
            requests.embed,
            pb.EmbedRequest(
                inputs="a", truncate=True, normalize=False, truncation_direction=LEFT, prompt_name="q", dimensions=8
            ),
            EmbedRequest(
                inputs=["a"],
                text=TextOptions(truncate=True, truncate_side="left", prompt_name="q"),
                normalize=False,
                dimensions=8,
            ),
            id="embed with everything",
        ),
        pytest.param(
            requests.embed,
            pb.EmbedRequest(inputs="a", normalize=True, prompt_name=""),
            EmbedRequest(inputs=["a"], text=TextOptions(truncate=False, prompt_name="")),
            id="embed with defaults said",
        ),
        pytest.param(
            requests.embed_sparse,
            pb.EmbedSparseRequest(inputs="a", truncate=True, truncation_direction=LEFT, prompt_name="q"),
            EmbedRequest(
                inputs=["a"],
                text=TextOptions(truncate=True, truncate_side="left", prompt_name="q"),
                outputs=frozenset({"sparse"}),
            ),
            id="embed_sparse",
        ),
        pytest.param(
            requests.embed_all,
            pb.EmbedAllRequest(inputs="a"),
            EmbedRequest(inputs=["a"], text=AS_SENT, outputs=frozenset({"tokens"})),
            id="embed_all",
        ),
        pytest.param(
            requests.predict,
            pb.PredictRequest(inputs="a"),
            ClassifyRequest(inputs=["a"], text=AS_SENT),
            id="predict",
        ),
        pytest.param(
            requests.predict_pair,
            pb.PredictPairRequest(inputs=["a", ""], raw_scores=True, truncate=True, truncation_direction=LEFT),
            ClassifyRequest(inputs=[("a", "")], text=TextOptions(truncate=True, truncate_side="left"), raw=True),
            id="predict a pair",
        ),
        pytest.param(
            requests.predict_pair,
            pb.PredictPairRequest(inputs=["a"]),
            ClassifyRequest(inputs=["a"], text=AS_SENT),
            id="predict a pair of one",
        ),
        pytest.param(
            requests.rerank,
            pb.RerankRequest(query="q", texts=["a", ""], raw_scores=True),
            RerankRequest(query="q", passages=["a", ""], text=AS_SENT, raw=True),
            id="rerank",
        ),
        pytest.param(
            requests.tokenize,
            pb.EncodeRequest(inputs="a"),
            TokenizeRequest(inputs=["a"], add_special_tokens=False),
            id="tokenize",
        ),
        pytest.param(
            requests.tokenize,
            pb.EncodeRequest(inputs="a", add_special_tokens=True, prompt_name="q"),
            TokenizeRequest(inputs=["a"], add_special_tokens=True, prompt_name="q"),
            id="tokenize with everything",
        ),
        pytest.param(
            requests.decode,
            pb.DecodeRequest(ids=[1, 2]),
            DecodeRequest(ids=[[1, 2]], skip_special_tokens=False),
            id="decode",
        ),
        pytest.param(requests.info, pb.InfoRequest(), ListModels(), id="info"),
    ],
)
def test_a_message_becomes_a_request(parse, message, request_):
    """proto3's default is false, except for `normalize`."""
    assert parse(message).request == request_


@pytest.mark.parametrize(
    ("parse", "message", "text"),
    [
        pytest.param(requests.embed, pb.EmbedRequest(), "`inputs` cannot be empty", id="embed"),
        pytest.param(requests.embed_all, pb.EmbedAllRequest(), "`inputs` cannot be empty", id="embed_all"),
        pytest.param(requests.embed_sparse, pb.EmbedSparseRequest(), "`inputs` cannot be empty", id="embed_sparse"),
        pytest.param(requests.predict, pb.PredictRequest(), "`inputs` cannot be empty", id="predict"),
        pytest.param(
            requests.predict_pair, pb.PredictPairRequest(inputs=["", ""]), "`inputs` cannot be empty", id="predict pair"
        ),
        pytest.param(requests.rerank, pb.RerankRequest(query="q"), "`texts` cannot be empty", id="rerank"),
        pytest.param(requests.rerank, pb.RerankRequest(texts=["a", ""]), "`texts` cannot be empty", id="rerank a pair"),
        pytest.param(requests.tokenize, pb.EncodeRequest(), "`inputs` cannot be empty", id="tokenize"),
        pytest.param(requests.decode, pb.DecodeRequest(), "`ids` cannot be empty", id="decode"),
    ],
)
def test_empty_inputs_are_refused(parse, message, text):
    """With TEI's messages, as over HTTP."""
    with pytest.raises(EmptyInput) as caught:
        parse(message)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("parse", "message", "text"),
    [
        pytest.param(
            requests.embed,
            pb.EmbedRequest(inputs="a", dimensions=0),
            "`dimensions` should be positive",
            id="dimensions",
        ),
        pytest.param(
            requests.embed,
            pb.EmbedRequest(inputs="a", truncation_direction=7),
            "`truncation_direction` must be RIGHT or LEFT",
            id="an enum proto3 does not check",
        ),
        pytest.param(
            requests.predict_pair,
            pb.PredictPairRequest(inputs=["a", "b", "c"]),
            "`inputs` must have a single or two elements. Given: 3",
            id="three",
        ),
        pytest.param(
            requests.predict_pair,
            pb.PredictPairRequest(),
            "`inputs` must have a single or two elements. Given: 0",
            id="none",
        ),
    ],
)
def test_an_invalid_value_is_refused(parse, message, text):
    """With its field."""
    with pytest.raises(InvalidField) as caught:
        parse(message)
    assert caught.value.message == text


def test_a_side_that_the_model_cannot_cut_is_refused_under_the_messages_name():
    for message in (
        requests.embed(pb.EmbedRequest(inputs="a")),
        requests.rerank(pb.RerankRequest(texts=["a"], query="q")),
    ):
        assert InvalidField("{field}", field="truncate_side").named(message.names).field_name == "truncation_direction"


@pytest.mark.parametrize(
    ("parse", "kind", "content"),
    [
        pytest.param(requests.rerank, pb.RerankRequest, b"\x12\x00" * 250_001, id="texts of two bytes"),
        pytest.param(requests.decode, pb.DecodeRequest, b"\x0a\xc1\x84\x3d" + bytes(1_000_001), id="ids of one byte"),
    ],
)
def test_too_many_items_are_refused_by_their_count(parse, kind, content):
    """They take few bytes in the message and many as Python values."""
    with pytest.raises(PayloadTooLarge):
        parse(requests.decode_message(kind, content))


@pytest.mark.parametrize("content", [b"\xff", b"\x0a\x05ab", b"\x0a\x01\xff"], ids=["no tag", "cut off", "no UTF-8"])
def test_an_invalid_message_is_refused(content):
    """The error contains none of its bytes."""
    with pytest.raises(MalformedBody) as caught:
        requests.decode_message(pb.EmbedRequest, content)
    assert caught.value.message == "The message is not a valid tei.v1.EmbedRequest."
    assert caught.value.__cause__ is None


# --- fields ----------------------------------------------------------------------------------------------------


def test_too_many_fields_are_refused() -> None:
    """Empty texts count; messages within the limit pass with their other fields."""
    check_fields(pb.RerankRequest(query="q", texts=["a" * 300] * 10, truncate=True).SerializeToString(), 10, "texts")
    with pytest.raises(TooManyInputs, match="may have at most 10 inputs"):
        check_fields(pb.RerankRequest(texts=[""] * (11 + OTHER_FIELDS)).SerializeToString(), 10, "texts")


@given(st.binary(max_size=40))
def test_any_bytes_are_counted_or_refused(content: bytes) -> None:
    """Invalid bytes are left to the decoder or refused here."""
    try:
        check_fields(content, 10, "texts")
    except VectordError as error:
        assert isinstance(error, MalformedBody)
