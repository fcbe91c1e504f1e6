"""Whether a model gains speed from int8 on this processor. backends/openvino.py asks while a model loads.

In int8, the matrices of linear layers and their inputs are rounded to 8 bits in groups of 128 numbers, each with a
scale of its own. Inputs are rounded while the model runs, so nothing is calibrated.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from math import prod

import numpy as np

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.files.weight import NETWORK_DTYPES
from vectord.checkpoints.spec import FLOAT32_BY_DEFAULT
from vectord.compute.backends.openvino_plans import Compiler
from vectord.compute.ops.openvino import OpenvinoOps, op, ov
from vectord.compute.ops.packed_weights import PACKINGS, PackedWeightsOps
from vectord.compute.processor import multiplies_int8

logger = logging.getLogger(__name__)

INT8 = PACKINGS["int8"]
ROWS = 256  # of the measured product
RUNS = 5  # of each kind, after one that lays out the weights; the fastest counts: other programs only slow a run down
LEAST_SPEED = 1.05  # of all products in int8; below, int8 would only cost accuracy


def gains_from_int8(compiler: Compiler, dtype: str) -> bool:
    """Return whether to use int8 instead of `dtype`, the model's usual format, by the speed of one product: a second
    plan of the whole model takes seconds to compile."""
    if multiplies_int8() is False:
        logger.warning("int8: this processor has no instructions for it, so %s is used", dtype)
        return False
    if compiler.spec.architecture in FLOAT32_BY_DEFAULT:
        logger.warning("int8: this architecture needs more exact numbers, so %s is used", dtype)
        return False
    matrices = [weight for weight in compiler.weights if len(weight.shape) == 2 and weight.dtype in NETWORK_DTYPES]
    counts = Counter(weight.shape for weight in matrices)
    # Those of layers: tables and heads have shapes of their own.
    matrices = [weight for weight in matrices if counts[weight.shape] > 1]
    packed = [weight for weight in matrices if weight.shape[1] % INT8.group == 0]
    if not packed:
        logger.warning("int8: no matrix has a width that is a multiple of %d, so %s is used", INT8.group, dtype)
        return False
    share = sum(prod(weight.shape) for weight in packed) / sum(prod(weight.shape) for weight in matrices)
    speed = product_speed(compiler, max(packed, key=lambda weight: prod(weight.shape)))
    overall = 1 / (1 - share + share / speed)
    if overall < LEAST_SPEED:
        logger.warning("int8: products are %.2f times as fast as in %s, which is used instead", overall, dtype)
        return False
    logger.info("int8: products are %.2f times as fast as in %s", overall, dtype)
    return True


def product_speed(compiler: Compiler, weight: Weight) -> float:
    rows = np.ones((ROWS, weight.shape[1]), np.float32)
    # Both own the memory of their constants.
    usual = OpenvinoOps(bfloat16=compiler.precision == "bf16")
    packed = PackedWeightsOps(INT8, bfloat16=compiler.precision == "bf16")
    requests = []
    for ops, packing in ((usual, None), (packed, INT8)):
        x = op.parameter([-1, weight.shape[1]], np.float32)
        model = ov.Model([ops.linear(x, ops.matrix(weight), None)], [x], "product")
        requests.append(compiler.compile_model(model, streams=1, packing=packing).create_infer_request())
    times_s = np.zeros((1 + RUNS, len(requests)))
    for run in times_s:
        for i, request in enumerate(requests):
            started_s = time.perf_counter()
            request.infer([rows], share_inputs=True, share_outputs=True)
            run[i] = time.perf_counter() - started_s
    usual_s, int8_s = times_s[1:].min(axis=0)
    return float(usual_s / int8_s)
