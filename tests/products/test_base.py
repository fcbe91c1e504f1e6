"""A call's errors are in the caller's words."""

from __future__ import annotations

from dataclasses import replace

from tests.products.results import embed_result

from vectord.errors import InvalidField, ModelNotFound
from vectord.products.common.dialect import Call
from vectord.products.common.rendered import Rendered
from vectord.schema import EmbedResult, ListModels, Result


def no_answer(result: Result) -> Rendered:
    raise AssertionError("nothing is answered here")


CALL = Call(ListModels(), no_answer, fields={"dimensions": "output_dimension"})


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


def test_every_word_that_a_message_quotes_is_the_bodys() -> None:
    """Those behind the first one, with a place behind them, and of parts within others."""
    call = Call(
        ListModels(), no_answer, {"inputs": "input", "normalize": "normalized", "chunk.max_tokens": "chunk_size"}
    )
    worded = call.worded(InvalidField("`inputs[3]` and `normalize`, inputs, `chunk.max_tokens` or `chunk`"))
    assert worded.message == "`input[3]` and `normalized`, inputs, `chunk_size` or `chunk`"
    assert str(worded) == worded.message


def test_an_error_of_a_part_is_worded_by_its_place() -> None:
    """The whole body's words are for what all parts have in common."""
    call = Call(ListModels(), no_answer, {"requests": "pairs"}, lambda part: {"inputs": f"pairs[{part}].text"})
    error = InvalidField("`inputs` is wrong", field="inputs")
    error.part = 2
    assert (call.worded(error).field, call.worded(error).message) == ("pairs[2].text", "`pairs[2].text` is wrong")
    assert call.worded(InvalidField("`requests`", field="requests")).field == "pairs"


def test_inputs_that_failed_alone_are_worded_in_the_answer() -> None:
    """The engine's own result stays as it is: the cache and others may have it, too."""
    shown: list[Result] = []

    def render(result: Result) -> Rendered:
        shown.append(result)
        return Rendered(body=b"")

    failures = {1: InvalidField("`inputs[1]`", field="inputs", index=1)}
    Call(ListModels(), render, {"inputs": "input"}).answered(replace(embed_result(), failures=failures))
    (result,) = shown
    assert isinstance(result, EmbedResult)
    assert (result.failures[1].field, result.failures[1].message) == ("input", "`input[1]`")
    assert failures[1].field == "inputs"
