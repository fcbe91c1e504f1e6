"""hypothesis strategies for the values of schema.py and errors.py, and a comparison of them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as numbers

from vectord import errors
from vectord.errors import VectordError
from vectord.schema import ChunkedDocument, EmbedResult, ModelInfo, MultiVectorOptions, Muvera, Precision, TextLengths

ERRORS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, VectordError)]
DTYPES = ("<f2", "<f4", "<f8", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "|i1", "|u1", "|b1")
INTEGERS = st.integers(-(2**63), 2**63 - 1)


def arrays() -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Of numbers of every kind, with 0 to 4 dimensions; also empty ones and views."""
    shapes = numbers.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
    made = st.sampled_from(DTYPES).flatmap(lambda dtype: numbers.arrays(np.dtype(dtype), shapes))
    return st.one_of(
        made, made.map(lambda array: array.T), made.map(lambda array: array[..., ::2] if array.ndim else array)
    )


@st.composite
def failures(draw: st.DrawFn, kind: type[VectordError] | None = None) -> VectordError:
    """An error with random attributes."""
    chosen = kind or draw(st.sampled_from(ERRORS))
    small = st.none() | INTEGERS
    can_say: dict[str, Any] = {
        "field": st.none() | st.text(),
        "index": small,
        "limit": small,
        "given": small,
        "retry_after_s": st.floats(0, 1e6),
        "allowed": st.lists(st.text()).map(tuple),
    }
    takes = set(inspect.signature(chosen.__init__).parameters) & set(can_say)
    error = chosen(draw(st.text()), **{name: draw(can_say[name]) for name in sorted(takes)})
    error.part = draw(small)
    return error


st.register_type_strategy(VectordError, failures())
st.register_type_strategy(int, INTEGERS)
# Not bytes, which are a sequence of numbers too.
st.register_type_strategy(Sequence, lambda kind: st.lists(st.from_type(get_args(kind)[0]), max_size=4))


def of_hints(kind: type[msgspec.Struct], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of every field; hypothesis would take msgspec's mark of an empty dictionary for its default."""
    hints = get_type_hints(kind)
    return st.builds(kind, **({name: st.from_type(hints[name]) for name in kind.__struct_fields__} | fields))


st.register_type_strategy(TextLengths, of_hints(TextLengths))  # before those that have them
VECTORS = st.dictionaries(st.sampled_from(get_args(Precision)), arrays())  # hypothesis makes none of np.generic
ROWS = st.none() | st.lists(arrays(), max_size=4)
st.register_type_strategy(EmbedResult, of_hints(EmbedResult, dense=VECTORS, colbert=ROWS))
# hypothesis does not read msgspec's limits.
COUNTS = st.integers(1, 64)
st.register_type_strategy(
    Muvera, st.builds(Muvera, k_sim=st.integers(1, 10), dim_proj=COUNTS, r_reps=COUNTS, seed=COUNTS)
)
st.register_type_strategy(
    MultiVectorOptions,
    of_hints(
        MultiVectorOptions,
        dimensions=st.none() | COUNTS,
        pool_factor=st.floats(1, 1000),
        protected_tokens=COUNTS,
    ),
)
st.register_type_strategy(ModelInfo, of_hints(ModelInfo))
st.register_type_strategy(ChunkedDocument, st.builds(ChunkedDocument, vectors=VECTORS))


def same(one: Any, other: Any) -> bool:
    """Equal in every field, bit by bit; any sequence may have become a list."""
    if isinstance(one, VectordError):
        return type(one) is type(other) and one.args == other.args and same(vars(one), vars(other))
    if isinstance(one, msgspec.Struct):
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__
        )
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and not isinstance(one, str | bytes):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (isinstance(one, float) and math.isnan(one)))
