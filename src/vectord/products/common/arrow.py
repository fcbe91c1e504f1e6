"""Vectors as an Arrow IPC stream: dense, sparse and ColBERT together, a row an input.

    dense        fixed_size_list<float>[D], or of the one precision that was asked; of several each has a column,
                 dense (float), dense_int8, dense_ubinary ...
    sparse       struct<indices: list<int32>, values: list<float>>
    colbert      list<fixed_size_list<float>[C]>, a vector a token; tokens alike
    tokens_seen, tokens_kept   int32: what the texts have, what the model read
    error        string, null where there is none: why this input has no vectors (partial_results)

The schema's metadata names the model and the vector space. pyarrow is an extra, imported here only and when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vectord.errors import NotAcceptable
from vectord.products.common.rendered import Rendered
from vectord.schema import EmbedResult, Float32, Result, Sparse

if TYPE_CHECKING:
    import pyarrow

ARROW = "application/vnd.apache.arrow.stream"


def check_arrow() -> None:
    """Raises NotAcceptable where pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise NotAcceptable("This server has no pyarrow; it is installed with vectord[arrow].")


def render_arrow(result: Result) -> Rendered:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    assert isinstance(result, EmbedResult)
    lengths = result.usage.lengths
    columns: dict[str, Any] = {_dense_name(name, result): _fixed(rows) for name, rows in result.dense.items()}
    if result.sparse is not None:
        columns["sparse"] = _sparse(result.sparse)
    if result.colbert is not None:
        columns["colbert"] = _each_token(result.colbert)
    if result.tokens is not None:
        columns["tokens"] = _each_token(result.tokens)
    columns["tokens_seen"] = pa.array([length.seen for length in lengths], pa.int32())
    columns["tokens_kept"] = pa.array([length.kept for length in lengths], pa.int32())
    failed = {index: error.message for index, error in result.failures.items()}
    columns["error"] = pa.array([failed.get(index) for index in range(len(lengths))], pa.string())
    facts = {"model": result.model, "fingerprint": result.fingerprint}
    return Rendered(body=_stream(columns, facts), content_type=ARROW)


def _dense_name(precision: str, result: EmbedResult) -> str:
    return "dense" if len(result.dense) == 1 or precision == "float" else f"dense_{precision}"


def _fixed(rows: npt.NDArray[np.generic]) -> pyarrow.FixedSizeListArray:
    """rows (N, D) as N lists of D numbers, without a copy where they lie side by side."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def _each_token(texts: Sequence[Float32]) -> pyarrow.ListArray:
    import pyarrow as pa  # noqa: PLC0415

    return pa.ListArray.from_arrays(_offsets([len(rows) for rows in texts]), _fixed(np.concatenate(texts)))


def _sparse(vectors: Sequence[Sparse]) -> pyarrow.StructArray:
    import pyarrow as pa  # noqa: PLC0415

    offsets = _offsets([len(vector.indices) for vector in vectors])
    indices = pa.ListArray.from_arrays(offsets, pa.array(np.concatenate([vector.indices for vector in vectors])))
    values = pa.ListArray.from_arrays(offsets, pa.array(np.concatenate([vector.values for vector in vectors])))
    return pa.StructArray.from_arrays([indices, values], ["indices", "values"])


def _offsets(lengths: Sequence[int]) -> npt.NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)  # (N + 1,)


def _stream(columns: Mapping[str, Any], facts: Mapping[str, str]) -> bytes:
    import pyarrow as pa  # noqa: PLC0415

    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    batch = batch.replace_schema_metadata(facts)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return body
