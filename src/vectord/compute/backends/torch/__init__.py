"""The backend on torch: CUDA and MPS, or the CPU if requested. Needs the torch extra.

networks/ defines the computation, over the op set ops/torch/. This folder chooses device and dtype (device.py), moves
batches in and answers out (slot.py, backend.py), and finds out what the device can do (capacity.py, graphs.py).
"""

from vectord.compute.backends.torch.backend import TorchBackend
from vectord.compute.backends.torch.device import choose_device, choose_dtype, gpu_of
from vectord.compute.backends.torch.loading import load

__all__ = ["TorchBackend", "choose_device", "choose_dtype", "gpu_of", "load"]
