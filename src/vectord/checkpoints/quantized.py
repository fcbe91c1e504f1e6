"""Quantized safetensors as the matrices that they stand for: `expand(weights, config)`.

reader.py checks quantization_config at start with `read_quantization`; network.py expands a checkpoint in the loading
thread. A matrix is computed in float32 when a network reads it. Inputs of layers are not quantized.

A number is (value of its code - zero point) * scale. A row has a scale, and perhaps a zero point, for each group of
columns. Sources: AutoAWQ, AutoGPTQ, bitsandbytes, compressed-tensors; Fp8Dequantize of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from vectord.checkpoints.files.read import Settings
from vectord.checkpoints.files.weight import E4M3, ROWS_AT_ONCE, ComputedWeight, Weight
from vectord.errors import ModelUnavailable
from vectord.schema import Float32

Codes: TypeAlias = npt.NDArray[Any]
Layer: TypeAlias = Mapping[str, Weight]  # the tensors of a layer by their names after the layer's

KEYS = ("quantization_config", "compression_config")  # the second is older
Size: TypeAlias = Annotated[int, Meta(ge=1, lt=2**31)]
_OF_INPUTS = ("activation_scale", "input_global_scale", "input_scale", "input_zero_point", "k_scale", "v_scale")


class _Matrix(msgspec.Struct, frozen=True, kw_only=True):
    codes: Codes  # (O, I)
    scales: Float32  # (O, G)
    groups: Codes  # (I,) of each column
    zeros: Codes | None = None  # (O, G)
    table: Float32 | None = None  # the value of each code; None: the code

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises ValueError for parts that are not of one matrix of this shape: numpy would repeat or wrap them."""
        rows, columns = shape
        width = self.scales.shape[1]
        if (self.codes.shape, len(self.scales), self.groups.shape) != (shape, rows, (columns,)):
            raise ValueError("sizes differ")
        if self.zeros is not None and self.zeros.shape != self.scales.shape:
            raise ValueError("scales and zero points differ in number")
        if columns and not 0 <= self.groups.min() <= self.groups.max() < width:
            raise ValueError(f"a column is of no group of the {width}")

    def rows(self) -> Iterator[Float32]:
        for start in range(0, len(self.codes), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            numbers = self.codes[part].astype(np.float32) if self.table is None else self.table[self.codes[part]]
            if self.zeros is not None:
                numbers -= self.zeros[part].astype(np.float32)[:, self.groups]
            numbers *= self.scales[part][:, self.groups]
            yield numbers


# --- formats --------------------------------------------------------------------------------------------------


class _Fp8(msgspec.Struct, frozen=True, tag_field="quant_method", tag="fp8"):
    fmt: Literal["e4m3"] = "e4m3"
    weight_block_size: tuple[Size, Size] | None = None

    parts: ClassVar = ("weight", "weight_scale_inv", "weight_scale")
    markers: ClassVar = ("weight_scale_inv", "weight_scale")

    def shape(self, layer: Layer) -> tuple[int, ...]:
        return layer["weight"].shape

    def matrix(self, layer: Layer) -> _Matrix:
        scale = layer.get("weight_scale_inv") or layer["weight_scale"]  # both are multiplied
        return _bytes(layer["weight"], scale, None, self.weight_block_size)


class _Weights(msgspec.Struct, frozen=True):
    num_bits: int = 8
    symmetric: bool = True
    block_structure: tuple[Size, Size] | None = None


class _Group(msgspec.Struct, frozen=True):
    weights: _Weights
    format: str | None = None


class _CompressedTensors(msgspec.Struct, frozen=True, tag_field="quant_method", tag="compressed-tensors"):
    format: Literal["pack-quantized", "int-quantized", "float-quantized", "naive-quantized"]
    config_groups: dict[str, _Group]
    transform_config: dict[str, Any] = {}
    sparsity_config: dict[str, Any] | None = None

    parts: ClassVar = "weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"
    markers: ClassVar = ("weight_scale",)

    def __post_init__(self) -> None:
        groups = list(self.config_groups.values())
        if not groups or any(group.weights != groups[0].weights for group in groups):
            raise ValueError("config_groups must have one scheme for all weights")
        if any(group.format not in (None, self.format) for group in groups):
            raise ValueError("config_groups must have one format")
        if self.format == "pack-quantized" and self._weights.num_bits not in (2, 4, 8):
            raise ValueError("num_bits must be 2, 4 or 8")
        if self.transform_config or (self.sparsity_config or {}).get("format", "dense") != "dense":
            raise ValueError("transform_config and sparsity_config must be empty")

    @property
    def _weights(self) -> _Weights:
        return next(iter(self.config_groups.values())).weights

    def shape(self, layer: Layer) -> tuple[int, ...]:
        if self.format != "pack-quantized":
            return layer["weight"].shape
        rows, columns = (int(size) for size in layer["weight_shape"].array)
        held, numbers = layer["weight_packed"].shape
        if rows != held or not 0 < columns <= numbers * 32 // self._weights.num_bits:
            raise ValueError(f"{held} x {numbers} packed numbers are not {rows} x {columns} codes")
        return rows, columns

    def matrix(self, layer: Layer) -> _Matrix:
        scheme = self._weights
        if self.format != "pack-quantized":
            zeros = layer["weight_zero_point"].array if "weight_zero_point" in layer else None
            return _bytes(layer["weight"], layer["weight_scale"], zeros, scheme.block_structure)
        rows, columns = self.shape(layer)
        scales = _spread(layer["weight_scale"].as_float32(), rows)
        own_groups: Codes = layer["weight_g_idx"].array if "weight_g_idx" in layer else np.array([-1])
        return _Matrix(
            codes=_unpack(layer["weight_packed"], scheme.num_bits)[:, :columns],
            scales=scales,
            groups=own_groups if (own_groups >= 0).all() else _even(columns, scales.shape[1]),
            zeros=np.full(scales.shape, 1 << (scheme.num_bits - 1))
            if scheme.symmetric
            else _unpack(layer["weight_zero_point"], scheme.num_bits, axis=0)[:rows],
        )


class _Gptq(msgspec.Struct, frozen=True, tag_field="quant_method", tag="gptq"):
    bits: Literal[2, 4, 8]
    checkpoint_format: Literal["gptq", "gptq_v2"] = "gptq"
    dynamic: dict[str, Any] | None = None

    parts: ClassVar = ("qweight", "qzeros", "scales", "g_idx")
    markers: ClassVar = ("qweight",)

    def __post_init__(self) -> None:
        if any(not name.startswith("-:") for name in self.dynamic or {}):
            raise ValueError("dynamic must only name layers that are not quantized")

    def shape(self, layer: Layer) -> tuple[int, ...]:
        return layer["scales"].shape[1], layer["qweight"].shape[0] * 32 // self.bits

    def matrix(self, layer: Layer) -> _Matrix:
        zeros: Codes = _unpack(layer["qzeros"], self.bits)
        if self.checkpoint_format == "gptq":  # which stores them less 1
            zeros = (zeros + 1) & ((1 << self.bits) - 1)
        scales = np.ascontiguousarray(layer["scales"].as_float32().T)
        codes = _unpack(layer["qweight"], self.bits, axis=0).T
        groups: Codes = layer["g_idx"].array if "g_idx" in layer else _even(codes.shape[1], scales.shape[1])
        return _Matrix(codes=codes, scales=scales, groups=groups, zeros=zeros.T)


class _Awq(msgspec.Struct, frozen=True, tag_field="quant_method", tag="awq"):
    bits: Literal[4]
    version: Literal["gemm", "GEMM"] = "gemm"

    parts: ClassVar = ("qweight", "qzeros", "scales")
    markers: ClassVar = ("qweight",)

    def shape(self, layer: Layer) -> tuple[int, ...]:
        return layer["scales"].shape[1], layer["qweight"].shape[0]

    def matrix(self, layer: Layer) -> _Matrix:
        codes, zeros = (
            _unpack(layer[name], 4).reshape(len(layer[name].array), -1, 8)[:, :, _AWQ_PLACES] for name in self.parts[:2]
        )
        scales = np.ascontiguousarray(layer["scales"].as_float32().T)
        codes = codes.reshape(len(codes), -1).T
        return _Matrix(
            codes=codes,
            scales=scales,
            groups=_even(codes.shape[1], scales.shape[1]),
            zeros=zeros.reshape(len(zeros), -1).T,
        )


_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of the codes of eight columns in a packed number


class _Nf4State(msgspec.Struct, frozen=True):
    blocksize: Size
    shape: tuple[Size, Size]
    nested_blocksize: Size = 256
    nested_offset: float = 0.0


class _BitsAndBytes(msgspec.Struct, frozen=True, tag_field="quant_method", tag="bitsandbytes"):
    bnb_4bit_quant_storage: Literal["uint8"] = "uint8"

    parts: ClassVar = (
        *("weight", "SCB", "weight_format", "weight.absmax", "weight.quant_map", "weight.nested_absmax"),
        *("weight.nested_quant_map", "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"),
    )
    markers: ClassVar = ("SCB", "weight.absmax")

    def _state(self, layer: Layer) -> _Nf4State:
        name = next(name for name in self.parts[-2:] if name in layer)
        return msgspec.json.decode(layer[name].array.tobytes(), type=_Nf4State)

    def shape(self, layer: Layer) -> tuple[int, ...]:
        if "SCB" in layer:
            return layer["weight"].shape
        rows, columns = self._state(layer).shape
        if rows * columns != 2 * layer["weight"].array.size:
            raise ValueError(f"{layer['weight'].array.size} bytes are not {rows} x {columns} codes")
        return rows, columns

    def matrix(self, layer: Layer) -> _Matrix:
        weight: Codes = layer["weight"].array
        if "SCB" in layer:
            scales = layer["SCB"].as_float32()[:, None] / np.float32(127)
            return _Matrix(codes=weight, scales=scales, groups=_even(weight.shape[1], 1))
        state = self._state(layer)
        absmax = layer["weight.absmax"].array.reshape(-1)
        scales = absmax.astype(np.float32)
        if "weight.nested_absmax" in layer:
            nested = layer["weight.nested_absmax"].as_float32()[np.arange(len(absmax)) // state.nested_blocksize]
            scales = layer["weight.nested_quant_map"].as_float32()[absmax] * nested + np.float32(state.nested_offset)
        rows, columns = state.shape
        packed = weight.reshape(-1)
        return _Matrix(
            codes=np.stack([packed >> 4, packed & 15], axis=1).reshape(rows, columns),
            scales=scales.reshape(rows, columns // state.blocksize),
            groups=_even(columns, columns // state.blocksize),
            table=layer["weight.quant_map"].as_float32(),
        )


Quantization: TypeAlias = _Awq | _BitsAndBytes | _CompressedTensors | _Fp8 | _Gptq
_SUPPORTED = (
    "fp8 (e4m3), gptq, awq (gemm), bitsandbytes, and compressed-tensors with one scheme in the formats pack-quantized, "
    "int-quantized, float-quantized and naive-quantized"
)


def _bytes(codes: Weight, scales: Weight, zeros: Codes | None, block: tuple[int, int] | None) -> _Matrix:
    """A matrix with a byte for each code, and a scale for each block, by default for an even part of the rows."""
    if codes.dtype not in ("F8_E4M3", "I8"):
        raise ValueError(f"{codes.name} has codes of the type {codes.dtype}")
    rows, columns = codes.shape
    high, wide = block or (None, None)
    spread = _spread(scales.as_float32(), rows, high)
    if wide is not None and spread.shape[1] != -(-columns // wide):
        raise ValueError(f"{columns} columns are not {spread.shape[1]} blocks of {wide}")
    return _Matrix(
        codes=codes.array,
        scales=spread,
        groups=_even(columns, spread.shape[1]) if wide is None else np.arange(columns) // wide,
        zeros=None if zeros is None else _spread(zeros, rows, high),
        table=E4M3 if codes.dtype == "F8_E4M3" else None,
    )


def _spread(numbers: Codes, rows: int, high: int | None = None) -> Codes:
    """(rows, G) of numbers (rows / high, G), or of one number for the whole matrix. high: by default an even part."""
    numbers = numbers.reshape(1, 1) if numbers.size == 1 else numbers
    high = max(1, min(high or rows // len(numbers), rows))
    if len(numbers) != -(-rows // high):
        raise ValueError(f"{rows} rows are not {len(numbers)} parts of {high}")
    return np.repeat(numbers, high, axis=0)[:rows]


def _even(columns: int, groups: int) -> Codes:
    """(columns,) the group of each column, of groups of one size."""
    if columns % groups:
        raise ValueError(f"{columns} columns are not {groups} groups")
    return np.arange(columns) // (columns // groups)


def _unpack(packed: Weight, bits: int, axis: int = 1) -> npt.NDArray[np.uint8]:
    """The codes in numbers of 32 bits, the lowest bits first, along an axis."""
    if packed.dtype not in ("I32", "U32") or len(packed.shape) != 2:
        raise ValueError(f"{packed.name} is not a matrix of whole numbers of 32 bits")
    numbers = np.moveaxis(packed.array.view(np.uint32), axis, 1)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (numbers[:, :, None] >> shifts & np.uint32((1 << bits) - 1)).astype(np.uint8)
    return np.moveaxis(codes.reshape(len(numbers), -1), 1, axis)


# --- reading --------------------------------------------------------------------------------------------------


def read_quantization(config: Settings) -> Quantization | None:
    """Return config.json's quantization; None: it has none, or the operator ignores the key.

    Keys that say how the codes were made are not read. Raises ModelUnavailable, naming method and supported ones.
    """
    for key in KEYS:
        found = config.get(key)
        if found is None or key in config.allowed:
            continue
        fields = found if isinstance(found, dict) else {"quant_method": found}
        fields = {
            "quant_method": "compressed-tensors",
            **{name: each for name, each in fields.items() if each is not None},
        }
        try:
            quantization: Quantization = msgspec.convert(fields, Quantization)
        except msgspec.ValidationError as error:
            raise ModelUnavailable(
                f"{config.path}: the weights are quantized ({key}: {str(fields['quant_method'])[:40]}) in a form that "
                f"is not supported: {error}; supported are {_SUPPORTED}; serve the model that they were made from, or "
                "a GGUF file of it"
            ) from None
        return quantization
    return None


def expand(weights: Mapping[str, Weight], config: Settings) -> Mapping[str, Weight]:
    """Return the tensors with the matrix of each quantized layer under its usual name, X.weight.

    Raises ModelUnavailable as `read_quantization`, without quantized layers, and for a layer whose tensors are missing
    or do not fit together.
    """
    quantization = read_quantization(config)
    if quantization is None:
        return weights
    layers: dict[str, dict[str, Weight]] = {}
    for name, weight in weights.items():
        for part in quantization.parts:
            if name.endswith(f".{part}"):
                layers.setdefault(name.removesuffix(f".{part}"), {})[part] = weight
    layers = {name: layer for name, layer in layers.items() if not layer.keys().isdisjoint(quantization.markers)}
    if not layers:
        key = next(key for key in KEYS if key in config)
        raise ModelUnavailable(f"{config.path}: {key} describes quantized weights, but no layer of the checkpoint is")
    used = {weight.name for layer in layers.values() for weight in layer.values()}
    plain = {
        name: weight
        for name, weight in weights.items()
        if name not in used and name.rpartition(".")[2] not in _OF_INPUTS
    }
    return plain | {f"{name}.weight": _expanded(name, layer, quantization) for name, layer in layers.items()}


# What Python and numpy raise for tensors of other types and sizes than a format has.
_MISFITS = (ArithmeticError, LookupError, StopIteration, TypeError, ValueError, msgspec.MsgspecError)


def _expanded(name: str, layer: Layer, quantization: Quantization) -> Weight:
    def rows() -> Iterator[Float32]:
        try:
            matrix = quantization.matrix(layer)
            matrix.check(shape)
            yield from matrix.rows()
        except _MISFITS as error:
            raise ModelUnavailable(f"the checkpoint's quantized layer {name[:100]} cannot be read: {error}") from None

    try:
        shape = quantization.shape(layer)
    except _MISFITS as error:
        raise ModelUnavailable(f"the checkpoint's quantized layer {name[:100]} cannot be read: {error}") from None
    return ComputedWeight(f"{name}.weight", shape, rows)
