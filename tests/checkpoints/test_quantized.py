"""Tests of checkpoints/quantized.py: a quantized checkpoint computes what its matrices stand for.

Each case writes a layer by its library's documentation, from codes, scales and zero points that it chooses itself.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.folders import write_transformer
from tests.checkpoints.reading import refusal, spec_of
from tests.compute.networks.case import numpy_answer, texts_of
from tests.compute.networks.tiny_decoders import CASES
from tests.compute.networks.tiny_encoders import change_config
from torch import Tensor

from vectord.errors import ModelUnavailable

TEXTS = texts_of(9, 3)
GROUP = 16
Parts = dict[str, Tensor]


def random(*shape: int, below: int) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(sum(shape)))


def scales(*shape: int) -> Tensor:
    return 0.01 + 0.02 * torch.rand(shape, generator=torch.Generator().manual_seed(len(shape)))


def packed(codes: Tensor, bits: int, places: Any = None) -> Tensor:
    """(rows, columns) to (rows, columns * bits / 32) of int32: the first column in the lowest bits, or in `places`."""
    count = 32 // bits
    grouped = codes.reshape(len(codes), -1, count).long()
    order = range(count) if places is None else places
    numbers = sum(grouped[:, :, j] << (bits * place) for j, place in enumerate(order))
    return torch.where(numbers >= 2**31, numbers - 2**32, numbers).to(torch.int32)


def of_groups(numbers: Tensor, columns: int) -> Tensor:
    return numbers.float().repeat_interleave(columns // numbers.shape[1], 1)


# --- layers: the tensors of one with this shape, and its matrix ------------------------------------------------


def fp8_blocks(rows: int, columns: int) -> tuple[Parts, Tensor]:
    """Blocks of 24 by 20, of which the sizes are no multiples: the last ones are smaller."""
    codes = (random(rows, columns, below=200) - 100).to(torch.float8_e4m3fn)
    scale = scales(-(-rows // 24), -(-columns // 20))
    grid = scale.repeat_interleave(24, 0)[:rows].repeat_interleave(20, 1)[:, :columns]
    return {"weight": codes, "weight_scale_inv": scale}, codes.float() * grid


def fp8_tensor(rows: int, columns: int) -> tuple[Parts, Tensor]:
    codes = (random(rows, columns, below=200) - 100).to(torch.float8_e4m3fn)
    scale = torch.tensor(0.02)
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(3.0)}, codes.float() * scale


def int8_channel(rows: int, columns: int) -> tuple[Parts, Tensor]:
    codes, scale = (random(rows, columns, below=255) - 127).to(torch.int8), scales(rows, 1)
    return {"weight": codes, "weight_scale": scale.bfloat16()}, codes.float() * scale.bfloat16().float()


def int8_zeros(rows: int, columns: int) -> tuple[Parts, Tensor]:
    codes, scale = (random(rows, columns, below=255) - 127).to(torch.int8), scales(rows, 1)
    zeros = (random(rows, 1, below=21) - 10).to(torch.int8)
    return {"weight": codes, "weight_scale": scale, "weight_zero_point": zeros}, (codes.float() - zeros) * scale


def pack_symmetric(rows: int, columns: int) -> tuple[Parts, Tensor]:
    codes, scale = random(rows, columns, below=16), scales(rows, columns // GROUP)
    parts = {"weight_packed": packed(codes, 4), "weight_scale": scale, "weight_shape": torch.tensor([rows, columns])}
    return parts, (codes.float() - 8) * of_groups(scale, columns)


def pack_zeros(rows: int, columns: int) -> tuple[Parts, Tensor]:
    """With zero points, packed along the rows, and columns in another order of groups."""
    parts, _ = pack_symmetric(rows, columns)
    codes, groups = random(rows, columns, below=16), columns // GROUP
    zeros, order = random(rows, groups, below=16), random(columns, below=groups)
    parts |= {"weight_zero_point": packed(zeros.T, 4).T.contiguous(), "weight_g_idx": order.to(torch.int32)}
    return parts, (codes.float() - zeros[:, order]) * parts["weight_scale"][:, order]


def gptq(bits: int, offset: int) -> Callable[[int, int], tuple[Parts, Tensor]]:
    """offset: what the format subtracts from zero points."""

    def layer(rows: int, columns: int) -> tuple[Parts, Tensor]:
        groups = columns // GROUP
        codes, scale = random(rows, columns, below=2**bits), scales(rows, groups).half()
        zeros, order = 1 + random(rows, groups, below=2**bits - 1), random(columns, below=groups)
        parts = {
            "qweight": packed(codes, bits).T.contiguous(),
            "qzeros": packed((zeros - offset).T.contiguous(), bits),
            "scales": scale.T.contiguous(),
            "g_idx": order.to(torch.int32),
        }
        return parts, (codes.float() - zeros[:, order]) * scale.float()[:, order]

    return layer


def awq(rows: int, columns: int) -> tuple[Parts, Tensor]:
    groups, places = columns // GROUP, (0, 4, 1, 5, 2, 6, 3, 7)
    codes, scale, zeros = random(rows, columns, below=16), scales(rows, groups).half(), random(rows, groups, below=16)
    parts = {
        "qweight": packed(codes.T.contiguous(), 4, places),
        "qzeros": packed(zeros.T.contiguous(), 4, places),
        "scales": scale.T.contiguous(),
    }
    return parts, (codes.float() - of_groups(zeros, columns)) * of_groups(scale, columns)


def bnb_int8(rows: int, columns: int) -> tuple[Parts, Tensor]:
    codes, largest = (random(rows, columns, below=255) - 127).to(torch.int8), 2 * scales(rows)
    parts = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, codes.float() * largest[:, None] / 127


def bnb_nf4(rows: int, columns: int) -> tuple[Parts, Tensor]:
    """Blocks of 16 numbers, whose scales are quantized again, in blocks of 8."""
    codes, blocks = random(rows, columns, below=16), rows * columns // 16
    table, nested, again = torch.linspace(-1, 1, 16) ** 3, scales(256), scales(-(-blocks // 8))
    largest = random(blocks, below=256)
    state = {"quant_type": "nf4", "blocksize": 16, "dtype": "bfloat16", "shape": [rows, columns]}
    state |= {"nested_blocksize": 8, "nested_dtype": "float32", "nested_offset": 0.25}
    flat = codes.reshape(-1, 2)
    parts = {
        "weight": (flat[:, 0] * 16 + flat[:, 1]).to(torch.uint8)[:, None],
        "weight.absmax": largest.to(torch.uint8),
        "weight.quant_map": table,
        "weight.nested_absmax": again,
        "weight.nested_quant_map": nested,
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }
    scale = nested[largest] * again.repeat_interleave(8)[:blocks] + 0.25
    return parts, table[codes] * scale.reshape(rows, -1).repeat_interleave(16, 1)


def compressed(name: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": name, "config_groups": groups, "ignore": ["lm_head"]}


FOUR = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
FORMATS: dict[str, tuple[dict[str, Any], Callable[[int, int], tuple[Parts, Tensor]]]] = {
    "fp8 in blocks": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [24, 20]}, fp8_blocks),
    "fp8 with one scale": ({"quant_method": "fp8", "activation_scheme": "static"}, fp8_tensor),
    "float-quantized": (compressed("float-quantized", num_bits=8, type="float", strategy="tensor"), fp8_tensor),
    "int-quantized": (compressed("int-quantized", num_bits=8, type="int", strategy="channel"), int8_channel),
    "int-quantized, zero points": (compressed("int-quantized", num_bits=8, symmetric=False), int8_zeros),
    "pack-quantized": (compressed("pack-quantized", **FOUR, symmetric=True), pack_symmetric),
    "pack-quantized, zero points": (compressed("pack-quantized", **FOUR, symmetric=False), pack_zeros),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}, gptq(4, 1)),
    "gptq v2, 8 bits": ({"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"}, gptq(8, 0)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}, awq),
    "bitsandbytes int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb_int8),
    "bitsandbytes nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, bnb_nf4),
}


def quantize(folder: Path, name: str) -> dict[str, Tensor]:
    """Replace the matrices of all layers by quantized ones, and return all tensors with what they stand for."""
    config, layer = FORMATS[name]
    saved, expanded = {}, {}
    for key, tensor in load_file(folder / "model.safetensors").items():
        is_layer = key.endswith("_proj.weight")
        parts, matrix = layer(*tensor.shape) if is_layer else ({"weight": tensor}, tensor)
        saved |= {f"{key.removesuffix('.weight')}.{part}": each.contiguous() for part, each in parts.items()}
        expanded[key] = matrix.contiguous()
    save_file(saved, folder / "model.safetensors", {"format": "pt"})
    change_config(folder, quantization_config=config)
    return expanded


@pytest.mark.parametrize("name", FORMATS)
def test_states_are_those_of_the_matrices(name: str, tmp_path: Path) -> None:
    """Of every layer: a code in the wrong place or with another group's scale would change them."""
    case = CASES["qwen3"]
    folder, plain = case.write(tmp_path / "quantized"), case.write(tmp_path / "plain")
    save_file(quantize(folder, name), plain / "model.safetensors", {"format": "pt"})
    got = numpy_answer(case.spec(folder), TEXTS)
    np.testing.assert_allclose(got, case.reference(plain, TEXTS), atol=1e-4)


GROUPED = ("scales", "qzeros")


def many(numbers: Tensor) -> Tensor:
    return numbers.repeat(50, 1)


BROKEN: dict[str, tuple[str, Callable[[Parts], object]]] = {
    "no scales": ("awq", lambda layer: layer.pop("scales")),
    "another width of scales": ("awq", lambda layer: layer.update(scales=layer["scales"][:, :8].contiguous())),
    "zero points of another type": ("gptq", lambda layer: layer.update(qzeros=layer["qzeros"].float())),
    "a group that is not there": ("gptq", lambda layer: layer.update(g_idx=layer["g_idx"] + 50)),
    "no zero points": ("pack-quantized, zero points", lambda layer: layer.pop("weight_zero_point")),
    "another shape": ("pack-quantized", lambda layer: layer.update(weight_shape=torch.tensor([2**40, 2**40]))),
    "a shape of another type": (
        "pack-quantized",
        lambda layer: layer.update(weight_shape=torch.tensor([torch.inf] * 2)),
    ),
    "more groups than columns": ("awq", lambda layer: layer.update({part: many(layer[part]) for part in GROUPED})),
    "more scales than columns": ("fp8 with one scale", lambda layer: layer.update(weight_scale=torch.ones(48, 99))),
    "one group for all columns": ("gptq", lambda layer: layer.update(g_idx=layer["g_idx"][:1])),
    "a group before the first": ("gptq", lambda layer: layer.update(g_idx=layer["g_idx"] - 1)),
    "one scale for all rows": ("bitsandbytes int8", lambda layer: layer.update(SCB=layer["SCB"][:1])),
    "codes of another type": ("fp8 in blocks", lambda layer: layer.update(weight=layer["weight"].float())),
    "a state that is no JSON": (
        "bitsandbytes nf4",
        lambda layer: layer.update({"weight.quant_state.bitsandbytes__nf4": torch.zeros(3, dtype=torch.uint8)}),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_layer_whose_tensors_do_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    """By its name."""
    form, change = BROKEN[name]
    case, layer = CASES["qwen3"], "layers.1.mlp.up_proj"
    folder = case.write(tmp_path)
    quantize(folder, form)
    tensors = load_file(folder / "model.safetensors")
    parts = {key.removeprefix(f"{layer}."): tensors.pop(key) for key in [*tensors] if key.startswith(f"{layer}.")}
    change(parts)
    save_file({**tensors, **{f"{layer}.{part}": each for part, each in parts.items()}}, folder / "model.safetensors")
    with pytest.raises(ModelUnavailable, match=rf"{layer}\b"):
        numpy_answer(case.spec(folder), TEXTS)


@pytest.mark.parametrize("name", ["fp8 in blocks", "bitsandbytes nf4"])
def test_blocks_that_exceed_a_layer_need_no_memory(name: str, tmp_path: Path) -> None:
    """A size that only a lying file has is refused, or bounded by the layer, before anything of that size is made."""
    case, endless = CASES["qwen3"], 2**31 - 1
    folder = case.write(tmp_path)
    quantize(folder, name)
    config = dict(FORMATS[name][0])
    if name == "fp8 in blocks":
        change_config(folder, quantization_config={**config, "weight_block_size": [endless, 20]})
        with pytest.raises(ModelUnavailable, match="rows are not"):
            numpy_answer(case.spec(folder), TEXTS)
        return
    tensors = load_file(folder / "model.safetensors")
    for key in (key for key in tensors if key.endswith("__nf4")):
        state = json.loads(bytes(tensors[key].tolist())) | {"nested_blocksize": endless}
        tensors[key] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors")
    tracemalloc.start()
    assert np.isfinite(numpy_answer(case.spec(folder), TEXTS)).all()
    assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    tracemalloc.stop()


REFUSED: dict[str, tuple[Any, str]] = {
    "another method": ({"quant_method": "hqq"}, "(quantization_config: hqq)"),
    "no object": ("a\nb", r"(quantization_config: a\nb)"),
    "another float": ({"quant_method": "fp8", "fmt": "e5m2"}, "Invalid enum value 'e5m2' - at `$.fmt`"),
    "3 bits": ({"quant_method": "gptq", "bits": 3}, "Invalid enum value 3 - at `$.bits`"),
    "bits by layer": ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 8}}}, "dynamic must only"),
    "another order": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "Invalid enum value 'gemv'"),
    "another format": (compressed("nvfp4-pack-quantized", num_bits=4), "Invalid enum value 'nvfp4-pack-quantized'"),
    "packed 3 bits": (compressed("pack-quantized", num_bits=3), "num_bits must be 2, 4 or 8"),
    "endless blocks": ({"quant_method": "fp8", "weight_block_size": [2**40, 20]}, "Expected `int` <= 2147483647"),
    "blocks of nothing": ({"quant_method": "fp8", "weight_block_size": [24, 0]}, "Expected `int` >= 1"),
    "rotated weights": (
        {**compressed("pack-quantized", num_bits=4), "transform_config": {"config_groups": {"u": {}}}},
        "transform_config and sparsity_config must be empty",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unknown_forms_are_refused_with_the_supported_ones(name: str, tmp_path: Path) -> None:
    """At start, in one line with the way out, unless the operator reads the tensors unchanged."""
    folder = write_transformer(tmp_path, quantization_config=REFUSED[name][0])
    message = refusal(folder)
    assert REFUSED[name][1] in message
    assert "supported are fp8 (e4m3), gptq, awq (gemm), bitsandbytes, and compressed-tensors" in message
    assert message.startswith(f"{folder / 'config.json'}: the weights are quantized")
    assert spec_of(folder, allow_unknown=["quantization_config"]).dimensions > 0


def test_the_older_key_has_no_method(tmp_path: Path) -> None:
    """compression_config is of compressed-tensors."""
    fields = compressed("int-quantized", num_bits=8)
    del fields["quant_method"]
    assert spec_of(write_transformer(tmp_path, compression_config=fields)).dimensions > 0
