"""A call's errors are in the caller's words."""

from __future__ import annotations

from vectord.dialects.base import Call
from vectord.errors import InvalidField, ModelNotFound
from vectord.schema import ListModels

CALL = Call(ListModels(), lambda result: None, fields={"dimensions": "output_dimension"})  # type: ignore[arg-type,return-value]


def test_a_field_goes_by_the_bodys_name():
    """In the message and beside it; nothing else of the error changes, and the engine's own stays as it was."""
    error = InvalidField("`dimensions` must be between 1 and 8; got 9.", field="dimensions", limit=8, given=9)
    worded = CALL.worded(error)
    assert isinstance(worded, InvalidField)
    assert (worded.field, worded.message) == ("output_dimension", "`output_dimension` must be between 1 and 8; got 9.")
    assert (worded.limit, worded.given) == (8, 9)
    assert (error.field, error.message[:12]) == ("dimensions", "`dimensions`")


def test_other_errors_are_as_they_are():
    """Also those about no field at all."""
    for error in (InvalidField("No.", field="input"), ModelNotFound("No.")):
        assert CALL.worded(error) is error
