"""The tensors of a GGUF file under their names in transformers: `read_weights(path, mapped)`.

checkpoint.py calls it in the loading thread. Tensors in 16 and 32 bits stay in the map. Quantized ones, and those that
the conversion changed, are computed in float32 when a network reads them.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np

from vectord.checkpoints.files.gguf_file import GgufTensor, read_gguf
from vectord.checkpoints.files.weight import DTYPES, ROWS_AT_ONCE, ComputedWeight, Dtype, Weight, array_over
from vectord.checkpoints.gguf.architectures import checkpoint_name, find_architecture, first_position
from vectord.errors import ModelUnavailable, installing
from vectord.schema import Float32

Inverse = Callable[[Float32], Float32]

_PLAIN = frozenset({"F32", "F16", "BF16"})


def read_weights(path: Path, mapped: mmap.mmap) -> dict[str, Weight]:
    """Raises ModelUnavailable, naming file and tensor: what read_gguf raises, a head count that does not divide the
    rows of its tensor, or quantized tensors without the package that reads them."""
    reader = _TensorReader(path, mapped)
    packed = next((tensor for tensor in reader.file.tensors.values() if tensor.type.name not in _PLAIN), None)
    if packed is not None and find_spec("gguf") is None:
        raise ModelUnavailable(
            f"{path}: tensor {packed.name[:100]!r} is quantized ({packed.type.name}); run {installing('gguf')}"
        )
    weights: dict[str, Weight] = {}
    for tensor in reader.file.tensors.values():
        target = checkpoint_name(reader.architecture, tensor.name)
        if target in weights:
            raise ModelUnavailable(f"{path}: tensor {tensor.name[:100]!r} is a second {target}")
        if tensor.name.endswith(".ffn_gate.weight") and target == tensor.name:
            continue  # the first half of the gated layer below: JinaBERT as converted before 2025
        weights[target] = reader.read(tensor, target)
    return weights


class _TensorReader:
    """Makes the tensors of transformers out of those of one file."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self._path = path
        self._mapped = mapped
        self.file = read_gguf(path, mapped)
        self._name, self.architecture = find_architecture(path, self.file)

    def read(self, tensor: GgufTensor, target: str) -> Weight:
        """target: its name in transformers."""
        gate = self.file.tensors.get(tensor.name.replace(".ffn_up.", ".ffn_gate."))
        if target.endswith("mlp.gated_layers.weight") and gate is not None and gate is not tensor:
            if gate.shape != tensor.shape:
                raise ModelUnavailable(f"{self._path}: tensor {gate.name[:100]!r} has another shape than ffn_up")
            both = (gate, tensor)
            return ComputedWeight(
                target, (2 * tensor.shape[0], tensor.shape[1]), lambda: (part for one in both for part in _parts(one))
            )
        shape, change = self._change(tensor, target)
        if change is None and tensor.type.name in _PLAIN:
            array = array_over(self._mapped, tensor.type.name, shape, tensor.at)
            return Weight(target, cast(Dtype, tensor.type.name), array)
        return ComputedWeight(target, shape, partial(_computed, tensor, change))

    def _change(self, tensor: GgufTensor, target: str) -> tuple[tuple[int, ...], Inverse | None]:
        """The shape in transformers, and the inverse of what the conversion did to the tensor; None: nothing."""
        architecture = self.architecture
        skipped = first_position(self.file, architecture.config["model_type"])
        if tensor.name == "position_embd.weight" and skipped:
            widths = ((skipped, 0), *((0, 0),) * (len(tensor.shape) - 1))
            return (tensor.shape[0] + skipped, *tensor.shape[1:]), lambda array: np.pad(array, widths)
        if ".mlp.experts." in target or ".conv.conv." in target or target == "score.weight":
            # Conversion gave these other dimensions, or reduced them to a few rows.
            match target.split(".")[-2:], tensor.shape:
                case ["mlp", "w1"], (experts, inner, width):  # the experts' matrices one below the other
                    return (experts * inner, width), lambda array: array.reshape(-1, width)
                case ["mlp", "w2"], (experts, width, inner):  # as before, of transposed matrices
                    return (experts * inner, width), lambda array: array.swapaxes(1, 2).reshape(-1, width)
                case ["conv", "weight"], (width, size):
                    return (width, 1, size), lambda array: array[:, None]
                case ["score", "weight"], (2, width):  # the logit of "yes" less that of "no"
                    return (1, width), lambda array: array[:1] - array[1:]
            raise ModelUnavailable(f"{self._path}: tensor {tensor.name[:100]!r} has the wrong number of dimensions")
        if architecture.norm_offset and target.endswith("norm.weight"):
            return tensor.shape, lambda array: array + np.float32(architecture.norm_offset)
        if architecture.interleaved and ".self_attn.q_proj." in target:
            return tensor.shape, self._in_halves(tensor, "attention.head_count")
        if architecture.interleaved and ".self_attn.k_proj." in target:
            is_own = f"{self._name}.attention.head_count_kv" in self.file.metadata
            return tensor.shape, self._in_halves(
                tensor, "attention.head_count_kv" if is_own else "attention.head_count"
            )
        return tensor.shape, None

    def _in_halves(self, tensor: GgufTensor, key: str) -> Inverse:
        """Return a function that puts one half of each head after the other; in the file, their rows alternate."""
        heads = self.file.metadata.get(f"{self._name}.{key}")
        if type(heads) is not int or heads < 1 or tensor.shape[0] % (2 * heads):
            raise ModelUnavailable(
                f"{self._path}: {self._name}.{key} is missing or does not divide the {tensor.shape[0]:,} rows of "
                f"{tensor.name[:100]!r}"
            )
        return lambda array: (
            array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        )


def _computed(tensor: GgufTensor, change: Inverse | None) -> Iterable[Float32]:
    """The tensor's rows. A change needs them all at once: it affects no tensor that is larger than a layer."""
    if change is None:
        return _parts(tensor)
    return (np.ascontiguousarray(change(np.concatenate(list(_parts(tensor)))), np.float32),)


def _parts(tensor: GgufTensor) -> Iterator[Float32]:
    """The tensor's rows in float32, a few thousand at a time.

    A block with a non-finite scale gives non-finite numbers; the model's self-test reports them.
    """
    dtype = tensor.type.name
    for start in range(0, len(tensor.blocks), ROWS_AT_ONCE):
        blocks = tensor.blocks[start : start + ROWS_AT_ONCE]
        shape = (len(blocks), *tensor.shape[1:])
        if dtype in _PLAIN:
            array = blocks.view(DTYPES[dtype]).reshape(shape if len(tensor.shape) > 1 else -1)
            yield Weight(tensor.name, cast(Dtype, dtype), array).as_float32()
            continue
        from gguf import GGMLQuantizationType  # noqa: PLC0415  an extra
        from gguf.quants import dequantize  # noqa: PLC0415

        with np.errstate(all="ignore"):
            yield dequantize(blocks, GGMLQuantizationType[dtype]).reshape(shape)
