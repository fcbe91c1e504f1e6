"""codec.py: requests, results and errors are decoded as they were encoded."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.remote.values import ERRORS, arrays, failures, same

from vectord import schema
from vectord.cluster.remote.codec import (
    Buffer,
    decode_call,
    decode_value,
    encode_call,
    encode_value,
)
from vectord.errors import InvalidField, Untokenizable, VectordError
from vectord.schema import ANYONE, Caller, EmbedRequest, EmbedResult, Request, Result, TextLengths, Usage

USED = Usage(lengths=TextLengths(), characters=0)


def received(content: list[Buffer]) -> tuple[bytes, bytearray]:
    """As the receiver has it: packed, and all arrays in one buffer."""
    packed, *arrays = content
    return bytes(packed), bytearray(b"".join(arrays))


def result(array: np.ndarray[Any, Any]) -> EmbedResult:
    return EmbedResult(model="m", fingerprint="f", usage=USED, dense={"float": array})


# --- requests, results, errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", get_args(Request), ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_every_request_arrives_unchanged(kind: type, data: st.DataObject) -> None:
    """With all fields, and its caller."""
    request, caller = data.draw(st.from_type(kind)), data.draw(st.from_type(Caller))
    method, (arrived, who, tokenized) = decode_call(*received(encode_call("answer", request, caller, None)))
    assert method == "answer"
    assert same(request, arrived)
    assert same(caller, who)
    assert tokenized is None


@pytest.mark.parametrize("kind", get_args(Result), ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_every_result_arrives_unchanged(kind: type, data: st.DataObject) -> None:
    """With all fields; arrays bit by bit."""
    sent = data.draw(st.from_type(kind))
    assert same(sent, decode_value(Result, *received(encode_value(sent))))


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_every_error_arrives_unchanged(kind: Any, data: st.DataObject) -> None:
    """Of the same class, with the same template and attributes."""
    error = data.draw(failures(kind))
    assert same(error, decode_value(VectordError, *received(encode_value(error))))


def test_the_unions_contain_every_request_and_result() -> None:
    """The tests above iterate over the unions Request and Result of schema.py."""
    classes = {
        name for name, kind in vars(schema).items() if inspect.isclass(kind) and issubclass(kind, msgspec.Struct)
    }
    requests = {name for name in classes if name.endswith("Request")}
    results = {name for name in classes if name.endswith(("Result", "Results"))}
    assert requests <= {kind.__name__ for kind in get_args(Request)}
    assert results <= {kind.__name__ for kind in get_args(Result)}


# --- arrays ---------------------------------------------------------------------------------------------------


@given(sent=st.lists(arrays(), max_size=5))
def test_arrays_of_any_dtype_and_shape_arrive_bit_by_bit(sent: list[np.ndarray[Any, Any]]) -> None:
    """Also transposed, strided, empty and zero-dimensional ones. They are aligned and writable."""
    several = EmbedResult(model="m", fingerprint="f", usage=USED, tokens=sent)
    arrived = decode_value(Result, *received(encode_value(several)))
    assert isinstance(arrived, EmbedResult)
    assert same(sent, arrived.tokens)
    assert all(array.flags.aligned and array.flags.writeable for array in arrived.tokens or ())


@pytest.mark.parametrize("order", [">f4", ">i2"])
def test_arrays_of_another_byte_order_keep_their_values(order: str) -> None:
    """In the native order."""
    arrived = decode_value(Result, *received(encode_value(result(np.arange(6, dtype=order).reshape(2, 3)))))
    assert isinstance(arrived, EmbedResult)
    assert arrived.dense["float"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_large_array_is_not_copied_on_either_side() -> None:
    """The sender writes the array's memory; the receiver's array is a view of the frame."""
    vectors = np.ones((1000, 100), np.float32)
    content = encode_value(result(vectors))
    assert np.shares_memory(np.frombuffer(content[1], np.uint8), vectors)
    packed, memory = received(content)
    arrived = decode_value(Result, packed, memory)
    assert isinstance(arrived, EmbedResult)
    assert np.shares_memory(np.frombuffer(memory, np.uint8), arrived.dense["float"])


def test_a_request_that_cannot_be_encoded_is_a_client_error() -> None:
    """Half of a surrogate pair, or a number of more than 64 bits."""
    with pytest.raises(Untokenizable):
        encode_call("answer", EmbedRequest(inputs=["\ud800"]), ANYONE, None)
    with pytest.raises(InvalidField):
        encode_call("answer", EmbedRequest(inputs=[], dimensions=2**70), ANYONE, None)
