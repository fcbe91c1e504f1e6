"""Fields are counted before a message is decoded."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc")

from hypothesis import given
from hypothesis import strategies as st

from vectord.errors import MalformedBody, TooManyInputs, VectordError
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.requests import OTHER_FIELDS, check_fields


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
