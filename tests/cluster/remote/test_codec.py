"""codec.py: requests, results and errors are decoded as they were encoded, and everything else is refused."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.remote.values import ERRORS, arrays, failures, same

from vectord import schema
from vectord.cluster.remote.codec import (
    ALIGNMENT,
    ANSWER,
    DTYPES,
    REQUESTS,
    RESULTS,
    BadFrame,
    Buffer,
    decode_call,
    decode_result,
    decode_value,
    encode_call,
    encode_result,
    encode_value,
)
from vectord.errors import InvalidField, Untokenizable, VectordError
from vectord.schema import ANYONE, Caller, EmbedRequest, EmbedResult, Request, Result, Usage

USED = Usage(lengths=[], characters=0)


def received(content: list[Buffer]) -> tuple[bytes, bytearray]:
    """As the receiver has it: packed, and all arrays in one buffer."""
    packed, *arrays = content
    return bytes(packed), bytearray(b"".join(arrays))


def result(array: np.ndarray[Any, Any]) -> EmbedResult:
    return EmbedResult(model="m", fingerprint="f", usage=USED, dense={"float": array})


# --- requests, results, errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", get_args(Request), ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_request_arrives_unchanged(kind: type, data: st.DataObject) -> None:
    """With all fields, and its caller."""
    request, caller = data.draw(st.from_type(kind)), data.draw(st.from_type(Caller))
    method, (arrived, who) = decode_call(*received(encode_call(ANSWER, request, caller)))
    assert method == ANSWER
    assert same(request, arrived)
    assert same(caller, who)


@pytest.mark.parametrize("kind", get_args(Result), ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_result_arrives_unchanged(kind: type, data: st.DataObject) -> None:
    """With all fields; arrays bit by bit."""
    sent = data.draw(st.from_type(kind))
    assert same(sent, decode_result(*received(encode_result(sent))))


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
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
    assert requests <= REQUESTS.keys()
    assert results <= RESULTS.keys()


# --- arrays ---------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(sent=st.lists(arrays(), max_size=5))
def test_arrays_of_any_dtype_and_shape_arrive_bit_by_bit(sent: list[np.ndarray[Any, Any]]) -> None:
    """Also transposed, strided, empty and zero-dimensional ones. They are aligned and writable."""
    several = EmbedResult(model="m", fingerprint="f", usage=USED, tokens=sent)
    arrived = decode_result(*received(encode_result(several)))
    assert isinstance(arrived, EmbedResult)
    assert same(sent, arrived.tokens)
    assert all(array.flags.aligned and array.flags.writeable for array in arrived.tokens or ())


@pytest.mark.parametrize("order", [">f4", ">i2"])
def test_arrays_of_another_byte_order_keep_their_values(order: str) -> None:
    """In the native order."""
    arrived = decode_result(*received(encode_result(result(np.arange(6, dtype=order).reshape(2, 3)))))
    assert isinstance(arrived, EmbedResult)
    assert arrived.dense["float"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_large_array_is_not_copied_on_either_side() -> None:
    """The sender writes the array's memory; the receiver's array is a view of the frame."""
    vectors = np.ones((1000, 100), np.float32)
    content = encode_result(result(vectors))
    assert np.shares_memory(np.frombuffer(content[1], np.uint8), vectors)
    packed, memory = received(content)
    arrived = decode_result(packed, memory)
    assert isinstance(arrived, EmbedResult)
    assert np.shares_memory(np.frombuffer(memory, np.uint8), arrived.dense["float"])


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        ("|O", (1,), 0),
        ("<U4", (1,), 0),
        ("<M8[s]", (1,), 0),
        ("<f4", (-1,), 0),
        ("<f4", (1,) * 9, 0),
        ("<f4", (2**62, 2**62), 0),
        ("<f4", (5,), 0),
        ("<f4", (1,), 16),
        ("<f4", (1,), -16),
        ("<f4", (1,), 3),
        ("<f4", ("1",), 0),
        ("<f4", 4, 0),
        {},
    ],
    ids=str,
)
def test_an_invalid_array_is_refused(wrong: object) -> None:
    """Objects, dates, strings, negative or huge sizes, and offsets outside the frame."""
    packed, _ = received(encode_result(result(np.zeros(4, np.float32))))
    true = msgspec.msgpack.encode(("<f4", (4,), 0))
    assert packed.count(true) == 1
    with pytest.raises(BadFrame):
        decode_result(packed.replace(true, msgspec.msgpack.encode(wrong)), bytearray(ALIGNMENT))


@settings(max_examples=300, deadline=None)
@given(packed=st.binary(max_size=200), arrays=st.binary(max_size=64))
def test_any_bytes_are_a_value_or_a_bad_frame(packed: bytes, arrays: bytes) -> None:
    """Never another exception."""
    for decode in (decode_call, decode_result, partial(decode_value, VectordError)):
        with pytest.raises(BadFrame):
            decode(packed, arrays)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_frame_with_a_wrong_byte_is_a_value_or_a_bad_frame(data: st.DataObject) -> None:
    """At any offset."""
    packed, arrays = received(encode_call(ANSWER, EmbedRequest(inputs=["text", [1, 2]]), ANYONE))
    at, byte = data.draw(st.integers(0, len(packed) - 1)), data.draw(st.integers(0, 255))
    try:
        decode_call(packed[:at] + bytes([byte]) + packed[at + 1 :], arrays)
    except BadFrame:
        return


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_depth_is_bounded(depth: int) -> None:
    """Deeply nested arrays are refused."""
    with pytest.raises(BadFrame):
        decode_value(VectordError, b"\x91" * depth + b"\x00", b"")


def test_an_unknown_class_or_method_is_refused() -> None:
    """Only the classes of schema.py and errors.py are known, and MultiRequest cannot be nested."""
    inner = ("MultiRequest", [("ListModels", {})])
    for name, value in (("Engine", {}), ("Caller", {}), ("MultiRequest", [inner])):
        with pytest.raises(BadFrame):
            decode_call(msgspec.msgpack.encode((ANSWER, (name, value, ANYONE))), b"")
    for method, arguments in (("close", ()), ("spend", ("rate", "bucket", 1))):
        with pytest.raises(BadFrame):
            decode_call(msgspec.msgpack.encode((method, arguments)), b"")
    with pytest.raises(BadFrame):
        decode_value(VectordError, msgspec.msgpack.encode(("SystemExit", "words", {})), b"")


def test_a_request_that_cannot_be_encoded_is_a_client_error() -> None:
    """Half of a surrogate pair, or a number of more than 64 bits."""
    with pytest.raises(Untokenizable):
        encode_call(ANSWER, EmbedRequest(inputs=["\ud800"]), ANYONE)
    with pytest.raises(InvalidField):
        encode_call(ANSWER, EmbedRequest(inputs=[], dimensions=2**70), ANYONE)


def test_every_dtype_is_numeric() -> None:
    """An array of objects would contain memory addresses."""
    assert {np.dtype(dtype).kind for dtype in DTYPES} == set("fiub")
