"""The backend on torch: CUDA and MPS, or the CPU when asked for. Needs the torch extra.

`load` runs in the thread that loads models, `forward` in the device's one worker thread. What is computed is
networks/; this file chooses device and dtype, and moves batches in and answers out.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable

import torch

from vectord.artifacts.checkpoint import open_checkpoint
from vectord.artifacts.spec import ModelSpec
from vectord.backends.base import Answers, BackendFacts, BackendOptions, TokenBatch, max_batch_texts
from vectord.errors import ConfigError
from vectord.networks.network import Network
from vectord.ops.torch import TorchOps, pack
from vectord.processor import thread_budget
from vectord.schema import DeviceMemory

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_GPU_BATCH_TOKENS = 16_384  # not measured yet: text-embeddings-inference's default
_CPU_BATCH_TOKENS = 2048  # measured with MiniLM: 1,300 and 2,600 are equally fast, 5,300 a fifth to two fifths slower


def load(spec: ModelSpec, options: BackendOptions) -> TorchBackend:
    """Blocks while weights move to the device. Raises ConfigError (device, dtype) and ModelUnavailable."""
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    if device.type == "cpu":  # torch's own default sees no cgroup quota
        torch.set_num_threads(options.threads or thread_budget())
    checkpoint = open_checkpoint(spec.weights)

    def make_network(dtype: torch.dtype) -> Network[torch.Tensor]:
        return Network(spec, checkpoint, TorchOps(device, dtype))

    default_batch_tokens = _CPU_BATCH_TOKENS if device.type == "cpu" else _GPU_BATCH_TOKENS
    facts = BackendFacts(
        name="torch",
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        streams=1,
        cost="packed",
        max_batch_tokens=options.max_batch_tokens or default_batch_tokens,
        max_batch_texts=max_batch_texts(spec),
    )
    return TorchBackend(facts, make_network, device, dtype)


class TorchBackend:
    """A network on one device."""

    def __init__(
        self,
        facts: BackendFacts,
        make_network: Callable[[torch.dtype], Network[torch.Tensor]],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """make_network: the model on the device in a dtype."""
        self.facts = facts
        self._make_network = make_network
        self._device = device
        self._network = make_network(dtype)
        self._exact = self._network if dtype == torch.float32 else None
        self._exact_lock = threading.Lock()

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        """See Backend.forward. Raises MemoryError when the device has no room for the batch."""
        assert stream == 0, "this backend has one stream"
        with contextlib.suppress(torch.OutOfMemoryError):
            return self._run(self._network, batch)
        # Raised out here because the caught error's traceback holds the tensors that filled the device.
        raise MemoryError("the device has no room for this batch")

    def forward_exact(self, batch: TokenBatch) -> Answers:
        """See Backend.forward_exact. The second set of weights, unless the first is float32, stays from then on."""
        with self._exact_lock, contextlib.suppress(torch.OutOfMemoryError):
            self._exact = self._exact or self._make_network(torch.float32)
            return self._run(self._exact, batch)
        raise MemoryError("the device has no room for this batch in float32")

    def renew(self, stream: int) -> None:
        """See Backend.renew. A forward holds nothing that the next one needs."""
        self._exact_lock = threading.Lock()

    def device_memory(self) -> DeviceMemory | None:
        """See OwnMemory. Of CUDA only."""
        if self._device.type != "cuda":
            return None
        free, total = torch.cuda.mem_get_info(self._device)
        return DeviceMemory(
            allocated=torch.cuda.memory_allocated(self._device),
            reserved=torch.cuda.memory_reserved(self._device),
            free=free,
            total=total,
        )

    @torch.inference_mode()
    def _run(self, network: Network[torch.Tensor], batch: TokenBatch) -> Answers:
        assert len(batch.texts.cu_seqlens) > 1, "an empty batch"
        answers = network(pack(batch.texts, self._device), batch.outputs)
        return {output: answer.float().cpu().numpy() for output, answer in answers.items()}

    def close(self) -> None:
        """Give the weights back. No forward may follow."""
        del self._network, self._exact, self._make_network
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def choose_device(name: str) -> torch.device:
    """The device for `auto`, `cpu`, `cuda`, `cuda:N` or `mps`. auto: the first there is of cuda, mps, cpu.

    A GPU that this machine lacks becomes the CPU, with a warning. Raises ConfigError for any other name.
    """
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", name):
        raise ConfigError(f"device must be auto, cpu, cuda, cuda:N or mps; found {name[:40]!r}", field="device")
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if _count(kind)))
    device = torch.device(name)
    if (device.index or 0) < _count(device.type):
        return device
    logger.warning("device %s is not available, using the CPU instead", name)
    return torch.device("cpu")


def _count(kind: str) -> int:
    """How many devices of this kind the machine has."""
    if kind == "cuda":
        return torch.cuda.device_count()
    return int(kind == "cpu" or torch.backends.mps.is_available())


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """auto: 16 bits on CUDA, bfloat16 where it computes in that, and float32 elsewhere.

    float16 on the CPU is float32: torch emulates it there, slowly. Raises ConfigError for an unknown name.
    """
    if name != "auto" and name not in _DTYPES:
        raise ConfigError(f"dtype must be auto, {', '.join(_DTYPES)}; found {name[:40]!r}", field="dtype")
    if name == "auto" and device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if name == "float16" and device.type == "cpu":
        logger.warning("this processor does not compute in float16; using float32")
        return torch.float32
    if name == "auto":
        return torch.float32
    return _DTYPES[name]
