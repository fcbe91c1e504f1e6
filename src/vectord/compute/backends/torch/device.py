"""The device, its dtype and its share of memory: from the operator's options and the hardware.

TF32 and the memory limit belong to the process: all models have the same settings.
"""

from __future__ import annotations

import logging
import re

import torch

from vectord.checkpoints.spec import FLOAT32_BY_DEFAULT, NEVER_FLOAT16
from vectord.errors import ConfigError
from vectord.schema import DeviceMemory, Gpu

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MIB = 2**20
# Encoders whose activations stay far below 65,504: float16 rounds 8 times finer than bfloat16, at the same speed. A
# text that overflows nevertheless is not finite and is computed again in float32 (engine/queue/execution.py).
FLOAT16_ENCODERS = frozenset({"bert", "distilbert", "mpnet", "roberta", "xlm-roberta"})


def choose_device(name: str) -> torch.device:
    """Return the device for `auto`, `cpu`, `cuda`, `cuda:N` or `mps`. auto: the first available of cuda, mps, cpu. A
    missing GPU becomes the CPU, with a warning."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", name):
        raise ConfigError(f"device must be auto, cpu, cuda, cuda:N or mps; found {name[:40]!r}", field="device")
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if _count(kind)))
    device = torch.device(name)
    if (device.index or 0) < _count(device.type):
        return device
    logger.warning("%s requested but not available, falling back to CPU", name.upper())
    return torch.device("cpu")


def choose_dtype(name: str, device: torch.device, architecture: str = "") -> torch.dtype:
    """Return the dtype. auto: 16 bits on CUDA (bfloat16 if supported, except FLOAT16_ENCODERS), and float32 elsewhere
    and for FLOAT32_BY_DEFAULT.

    A dtype that the device only emulates is replaced, with a warning: float16 on the CPU by float32, bfloat16 before
    Ampere by float16. For an architecture that overflows in float16 it is replaced by bfloat16 or float32.
    """
    if name != "auto" and name not in DTYPES:
        raise ConfigError(f"dtype must be auto, {', '.join(DTYPES)}; found {name[:40]!r}", field="dtype")
    if name != "auto":
        dtype = DTYPES[name]
    elif device.type != "cuda" or architecture in FLOAT32_BY_DEFAULT:
        dtype = torch.float32
    else:
        dtype = torch.float16 if architecture in FLOAT16_ENCODERS else torch.bfloat16
    why = None
    if dtype == torch.bfloat16 and device.type == "cuda" and not _computes_bfloat16(device):
        dtype, why = torch.float16, "this GPU does not compute in bfloat16"
    if dtype == torch.float16 and device.type == "cpu":
        dtype, why = torch.float32, "this processor does not compute in float16"
    if dtype == torch.float16 and architecture in NEVER_FLOAT16:
        dtype = torch.bfloat16 if _computes_bfloat16(device) else torch.float32
        why = f"{architecture} overflows in float16"
    if why is not None and name != "auto":
        logger.warning("%s; using %s", why, name_of(dtype))
    return dtype


def fp8_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of what is not in fp8: that of fp8 products. Raises ConfigError for a GPU without them."""
    if device.type == "cpu":
        return torch.float32
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        raise ConfigError("dtype fp8 needs compute capability 8.9 or later; use int8", field="dtype")
    return torch.bfloat16


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def set_products(*, tf32: bool) -> None:
    """Set CUDA's products: float32 in TF32 or unchanged; 16 bits always with float32 sums."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def cap_memory(device: torch.device, cap_mib: int) -> None:
    """Limit this process's tensors and graphs on the device; the driver's own memory is not included."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap_mib * MIB / total), device.index or 0)


def memory_of(device: torch.device) -> DeviceMemory:
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(
        allocated=torch.cuda.memory_allocated(device),
        reserved=torch.cuda.memory_reserved(device),
        free=free,
        total=total,
    )


def gpu_of(device: torch.device) -> Gpu | None:
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return Gpu(properties.name, properties.total_memory)


def room_bytes(memory: DeviceMemory, cap_mib: int | None) -> int:
    """Return the room for further tensors: free memory within the limit, plus this process's unused memory."""
    unheld = memory.free
    if cap_mib is not None:
        unheld = max(0, min(unheld, cap_mib * MIB - memory.reserved))
    return unheld + memory.reserved - memory.allocated


def _computes_bfloat16(device: torch.device) -> bool:
    """Whether the GPU is of Ampere or later; torch's own check counts emulation, too."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def _count(kind: str) -> int:
    if kind == "cuda":
        present = torch.cuda.device_count()
        if present and not torch.cuda.is_available():
            logger.warning("the driver of %d GPUs is too old for CUDA %s of this torch", present, torch.version.cuda)
            return 0
        return present
    return int(kind == "cpu" or torch.backends.mps.is_available())
