"""The op set that runs on torch: CUDA, MPS, and the CPU for comparison. ops.py has the ops, a layout has two forms.

flat.py is the form whose sizes follow from a few numbers, so that one plan fits many batches: it needs the
variable-length kernel (varlen.py) or attention.py's. grouped.py is the form for everything else. fused.py and
attention.py have kernels of our own.
"""

from vectord.compute.ops.torch.grouped import pack
from vectord.compute.ops.torch.ops import TorchOps
from vectord.compute.ops.torch.varlen import Varlen, find_varlen

__all__ = ["TorchOps", "Varlen", "find_varlen", "pack"]
