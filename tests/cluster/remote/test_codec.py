"""codec.py: everything that the engine is asked and answers comes back as it was, and nothing else comes in."""

from __future__ import annotations

import dataclasses
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
    ALIGNMENT,
    DTYPES,
    REQUESTS,
    RESULTS,
    BadFrame,
    Buffer,
    decode_error,
    decode_request,
    decode_result,
    encode_error,
    encode_request,
    encode_result,
)
from vectord.errors import InvalidField, Untokenizable
from vectord.schema import ANYONE, Caller, EmbedRequest, EmbedResult, Request, Result, Usage

USED = Usage(lengths=[], characters=0)


def received(content: list[Buffer]) -> tuple[bytes, bytearray]:
    """As the other side has it: packed, and all arrays in one piece of memory."""
    packed, *arrays = content
    return bytes(packed), bytearray(b"".join(arrays))


def result(array: np.ndarray[Any, Any]) -> EmbedResult:
    return EmbedResult(model="m", fingerprint="f", usage=USED, dense={"float": array})


# --- requests, results, errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", get_args(Request), ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_request_arrives_as_it_was_sent(kind: type, data: st.DataObject) -> None:
    """With all of its fields, and who asks."""
    request, caller = data.draw(st.from_type(kind)), data.draw(st.from_type(Caller))
    arrived, who = decode_request(*received(encode_request(request, caller)))
    assert same(request, arrived)
    assert same(caller, who)


@pytest.mark.parametrize("kind", get_args(Result), ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_result_arrives_as_it_was_sent(kind: type, data: st.DataObject) -> None:
    """With all of its fields, arrays to the bit."""
    sent = data.draw(st.from_type(kind))
    assert same(sent, decode_result(*received(encode_result(sent))))


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_error_arrives_as_it_was_raised(kind: Any, data: st.DataObject) -> None:
    """Of the same class, with the same words, fields and numbers."""
    error = data.draw(failures(kind))
    assert same(error, decode_error(*received(encode_error(error))))


def test_a_new_request_or_result_needs_a_place_in_the_unions() -> None:
    """Whatever schema.py has that is asked or answered is in Request or Result: the tests above go by those."""
    classes = {name for name, kind in vars(schema).items() if dataclasses.is_dataclass(kind) and inspect.isclass(kind)}
    requests = {name for name in classes if name.endswith("Request")}
    results = {name for name in classes if name.endswith(("Result", "Results"))}
    assert requests <= REQUESTS.keys()
    assert results <= RESULTS.keys()


# --- arrays ---------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(sent=st.lists(arrays(), max_size=5))
def test_arrays_of_any_dtype_and_shape_arrive_to_the_bit(sent: list[np.ndarray[Any, Any]]) -> None:
    """Transposed, with steps, empty, or of no dimension at all; where they lie, any reader may read them."""
    several = EmbedResult(model="m", fingerprint="f", usage=USED, tokens=sent)
    arrived = decode_result(*received(encode_result(several)))
    assert isinstance(arrived, EmbedResult)
    assert same(sent, arrived.tokens)
    assert all(array.flags.aligned and array.flags.writeable for array in arrived.tokens or ())


@pytest.mark.parametrize("order", [">f4", ">i2"])
def test_numbers_of_another_byte_order_arrive_as_numbers(order: str) -> None:
    """In this machine's order."""
    arrived = decode_result(*received(encode_result(result(np.arange(6, dtype=order).reshape(2, 3)))))
    assert isinstance(arrived, EmbedResult)
    assert arrived.dense["float"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_large_array_is_not_copied_on_either_side() -> None:
    """What is written is the array's own memory, what was read is the memory of the frame."""
    vectors = np.ones((1000, 100), np.float32)
    content = encode_result(result(vectors))
    assert np.shares_memory(np.frombuffer(content[1], np.uint8), vectors)
    packed, memory = received(content)
    arrived = decode_result(packed, memory)
    assert isinstance(arrived, EmbedResult)
    assert np.shares_memory(np.frombuffer(memory, np.uint8), arrived.dense["float"])


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lie",
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
def test_an_array_that_is_none_is_refused(lie: object) -> None:
    """Objects, dates, texts, negative or absurd sizes, and what reaches beyond the frame."""
    packed, _ = received(encode_result(result(np.zeros(4, np.float32))))
    true = msgspec.msgpack.encode(("<f4", (4,), 0))
    assert packed.count(true) == 1
    with pytest.raises(BadFrame):
        decode_result(packed.replace(true, msgspec.msgpack.encode(lie)), bytearray(ALIGNMENT))


@settings(max_examples=300, deadline=None)
@given(packed=st.binary(max_size=200), arrays=st.binary(max_size=64))
def test_any_bytes_are_a_value_or_a_bad_frame(packed: bytes, arrays: bytes) -> None:
    """Never another error."""
    for decode in (decode_request, decode_result, decode_error):
        with pytest.raises(BadFrame):
            decode(packed, arrays)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_frame_with_a_wrong_byte_is_a_value_or_a_bad_frame(data: st.DataObject) -> None:
    """Wherever it is."""
    packed, arrays = received(encode_request(EmbedRequest(inputs=["text", [1, 2]]), ANYONE))
    at, byte = data.draw(st.integers(0, len(packed) - 1)), data.draw(st.integers(0, 255))
    try:
        decode_request(packed[:at] + bytes([byte]) + packed[at + 1 :], arrays)
    except BadFrame:
        return


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_depth_is_bounded(depth: int) -> None:
    """Arrays within arrays are no value of ours, however many."""
    with pytest.raises(BadFrame):
        decode_error(b"\x91" * depth + b"\x00", b"")


def test_a_class_of_another_name_is_refused() -> None:
    """Nothing is looked up but schema.py's own; several within several neither."""
    inner = ("Several", [("ListModels", {})])
    for name, value in (("Engine", {}), ("Caller", {}), ("Several", [inner])):
        with pytest.raises(BadFrame):
            decode_request(msgspec.msgpack.encode((ANYONE, name, value)), b"")
    with pytest.raises(BadFrame):
        decode_error(msgspec.msgpack.encode(("SystemExit", "words", {})), b"")


def test_what_cannot_be_sent_is_the_requests_fault() -> None:
    """A half of a surrogate pair, a number of more than 64 bits: the client is told, nothing is sent."""
    with pytest.raises(Untokenizable):
        encode_request(EmbedRequest(inputs=["\ud800"]), ANYONE)
    with pytest.raises(InvalidField):
        encode_request(EmbedRequest(inputs=[], dimensions=2**70), ANYONE)


def test_every_dtype_that_crosses_is_one_of_numbers() -> None:
    """An array of objects would be their addresses."""
    assert {np.dtype(dtype).kind for dtype in DTYPES} == set("fiub")
