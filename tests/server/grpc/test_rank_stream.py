"""Texts of a stream that are ranked together."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc")

from dataclasses import replace

from tests.products.results import rerank_result, usage

from vectord.errors import EmptyInput, MalformedBody, PayloadTooLarge
from vectord.schema import RerankRequest, TextOptions, Timings
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.streams import TEXT_OVERHEAD_BYTES, RankStream


def message(text: str, **options) -> bytes:
    return pb.RerankStreamRequest(**{"query": "q", "text": text, **options}).SerializeToString()


def test_each_text_is_a_separate_request():
    """With its own query and truncation; the first message decides on raw scores."""
    stream = RankStream(10_000)
    first = stream.read(message("a", raw_scores=True, truncate=True, truncation_direction=pb.TRUNCATION_DIRECTION_LEFT))
    assert first == RerankRequest(
        query="q", passages=["a"], text=TextOptions(truncate=True, truncate_side="left"), raw=True
    )
    second = stream.read(message("", query="r", raw_scores=False))
    assert second == RerankRequest(query="r", passages=[""], text=TextOptions(truncate=False), raw=True)


@pytest.mark.parametrize("return_text", [False, True])
def test_the_response_is_one_ranking(return_text):
    """Best first; tokens are summed, and times are means except for the total."""
    stream = RankStream(10_000)
    for text, score, seconds in (("a", 0.5, 1.0), ("bb", 0.5, 2.0), ("c", 1.0, 6.0)):
        stream.read(message(text, return_text=return_text if text == "a" else not return_text))
        timings = Timings(tokenize_s=seconds, queue_s=seconds / 2, inference_s=seconds / 4, total_s=99)
        stream.add(rerank_result(score, usage=replace(usage([(9, 9)]), timings=timings)))
    response = pb.RerankResponse.FromString(stream.response())
    assert [(rank.index, rank.score) for rank in response.ranks] == [(2, 1), (1, 0.5), (0, 0.5)]
    assert [rank.text for rank in response.ranks] == (["c", "bb", "a"] if return_text else [""] * 3)
    cost = response.metadata
    assert (cost.compute_chars, cost.compute_tokens) == (7, 27)
    seconds = (cost.tokenization_time_ns / 1e9, cost.queue_time_ns / 1e9, cost.inference_time_ns / 1e9)
    assert seconds == (3, 1.5, 0.75)
    assert 0 < cost.total_time_ns < 60e9


@pytest.mark.parametrize(
    ("content", "error"),
    [
        pytest.param(message("", query=""), EmptyInput, id="an empty pair"),
        pytest.param(b"\xff", MalformedBody, id="no message"),
    ],
)
def test_an_invalid_text_is_refused(content, error):
    """As in a single request."""
    with pytest.raises(error):
        RankStream(10_000).read(content)


def test_the_bytes_of_a_stream_are_bounded():
    """A stream may be endless."""
    stream = RankStream(3 * (TEXT_OVERHEAD_BYTES + len(message("a"))))
    for _ in range(3):
        stream.read(message("a"))
    with pytest.raises(PayloadTooLarge):
        stream.read(message("a"))


def test_a_stream_without_texts_is_an_error():
    """As an empty list of texts."""
    with pytest.raises(EmptyInput, match="`texts` cannot be empty"):
        RankStream(10_000).response()
