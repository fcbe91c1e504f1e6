"""int8 on the processor: finds how to round a model's linear layers, or reads what an earlier start found.

backends/openvino.py calls `find_recipe` in the loading thread, before it compiles the serving plans. The sample's texts
run once without int8 while each place's input is recorded (calibration/fit.py); then they run in int8, with ever more
places left in the usual precision until the cosines and the order of similar texts are close enough to float32's.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.metadata import version
from itertools import count
from typing import TypeVar

import numpy as np
from msgspec import structs

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.backends.base import PackedTexts, TokenBatch
from vectord.compute.backends.openvino_plans import Compiler, InferencePrecision, Plan
from vectord.compute.calibration.fit import GOAL, GOAL_TEN, Fitted, Kept, Observed, choose_places, compare, fit_place
from vectord.compute.calibration.recipe import Recipe, keep_recipe, read_recipe
from vectord.compute.calibration.texts import Sample
from vectord.compute.ops.base import Tokens
from vectord.compute.ops.int8 import Int8Ops, ObservingOps
from vectord.compute.ops.openvino import OpenvinoOps, build, ov
from vectord.compute.processor import multiplies_int8
from vectord.errors import ConfigError
from vectord.schema import Float32, Int32

logger = logging.getLogger(__name__)
progress = logging.getLogger("vectord.progress")  # observability/progress.py shows it on a terminal

T = TypeVar("T")

BATCH_TOKENS = 256  # of the sample: every layer's input is an output, 700 KB per token with BGE-M3's shape
GROUPS = 2  # length groups of these graphs
ROWS = 128  # of each place, for the fit
CALIBRATING = "calibrating int8, step 1 of 3", "calibrating int8, step 2 of 3", "calibrating int8, step 3 of 3"
TIMED_TOKENS = 1024  # of the batch that is timed with and without int8
TIMED_RUNS = 5  # of each graph, whose fastest run counts: other programs can only slow a run down
LEAST_SPEED = 1.05  # of int8 next to the same model without it; below, int8 only costs accuracy
FORMAT = 3  # to be raised when the meaning of stored recipes changes


def find_recipe(compiler: Compiler, sample: Sample | None) -> Recipe | None:
    """Return how to compute the compiler's model in int8; None if no layer of it can be, or if it gains no speed.

    Blocks for seconds, or reads the result of an earlier start from the sample's folder.

    Raises ConfigError without a sample, ModelUnavailable if the model's files do not fit.
    """
    if sample is None:
        raise ConfigError("dtype int8 needs calibration texts")
    key = _key(compiler.spec, compiler.precision, sample)
    recipe = None if sample.folder is None else read_recipe(sample.folder, key)
    if recipe is not None:
        logger.info("int8: %s, found by an earlier start", _summary(recipe))
    else:
        recipe = _find(compiler, sample)
        if sample.folder is not None:
            keep_recipe(sample.folder, key, recipe)
    if recipe.places and recipe.speed < LEAST_SPEED:
        logger.warning(
            "int8: this model gains no speed from int8 on this processor (%.2f times the usual number format, which is "
            "used instead)",
            recipe.speed,
        )
        return None
    return recipe if recipe.places else None


def _find(compiler: Compiler, sample: Sample) -> Recipe:
    start = time.perf_counter()
    steps = _weight_steps()
    seen, matrices = _observe(compiler, sample.fitted)
    fitted = [
        fit_place(seen[name], [weight.as_float32() for weight in matrices[name]], steps)
        for name in _shown(CALIBRATING[1], list(seen))
    ]
    counts = [len(matrices[name]) for name in seen]
    recipe = _choose(compiler, sample.ids, fitted, counts, steps)
    if recipe.places:
        recipe = structs.replace(recipe, speed=_speed(compiler, recipe, sample.ids))
    kept = "" if sample.folder is not None else "; repeated at the next start, because no calibration_folder is set"
    elapsed_s = time.perf_counter() - start
    summary = f"{_summary(recipe)}, calibrated on {len(sample.ids)} {sample.source} texts in {elapsed_s:.1f} s{kept}"
    if recipe.places:
        logger.info("int8: %s", summary)
    else:
        logger.warning("int8: no layer of this model tolerates it, so none uses it: %s", summary)
    return recipe


def _summary(recipe: Recipe) -> str:
    return (
        f"mean cosine {recipe.mean_cosine:.4f}, least {recipe.least_cosine:.3f}, same ten {recipe.same_ten:.3f}, "
        f"{recipe.linears} of {recipe.all_linears} linears in int8, {recipe.speed:.2f} times the usual speed"
    )


def _weight_steps() -> int:
    """Steps of weights in each direction. Without int8 instructions, products of 8 by 8 bits are summed in 16 bits,
    which overflows; with one bit less it does not."""
    return 63 if multiplies_int8() is False else 127


def _key(spec: ModelSpec, precision: InferencePrecision, sample: Sample) -> str:
    """All inputs of a recipe, as 16 hex digits. Processors with the same instructions share one."""
    parts = [
        FORMAT,
        spec.fingerprint,
        sample.digest,
        len(sample.ids),
        _weight_steps(),
        precision,
        GOAL,
        GOAL_TEN,
        version("openvino"),
    ]
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


# --- the inputs of each place ---------------------------------------------------------------------------------


@dataclass
class _Seen:
    """The recorded inputs of one place."""

    rows: list[Float32] = field(default_factory=list)
    low: Float32 | None = None
    high: Float32 | None = None

    def add(self, x: Float32, every: int) -> None:
        """x (T, H), of which each `every`-th row is kept."""
        self.rows.append(x[::every].copy())
        low, high = x.min(axis=0), x.max(axis=0)
        self.low = low if self.low is None else np.minimum(self.low, low)
        self.high = high if self.high is None else np.maximum(self.high, high)

    def observed(self) -> Observed:
        assert self.low is not None and self.high is not None
        return Observed(np.concatenate(self.rows), self.low, self.high)


def _observe(
    compiler: Compiler, texts: Sequence[Int32]
) -> tuple[Mapping[str, Observed], Mapping[str, Sequence[Weight]]]:
    """The inputs of each place, and the matrices that multiply them, by place."""
    ops = ObservingOps()
    spec = _answering(compiler.spec, "tokens")
    network = compiler.network(ops, spec)

    def body(tokens: Tokens[ov.Node]) -> Mapping[str, ov.Node]:
        network(tokens, spec.outputs)
        return ops.observed

    graph = build(body, GROUPS, by_token=ops.observed.keys())
    request = compiler.compile_graph(graph, streams=1).create_infer_request()
    every = max(1, sum(ids.size for ids in texts) // ROWS)
    seen = {name: _Seen() for name in graph.outputs}
    for batch in _shown(CALIBRATING[0], list(_batches(texts))):
        answers = request.infer(graph.pack(batch, graph.outputs), share_outputs=True)
        for i, name in enumerate(graph.outputs):
            seen[name].add(answers[i], every)
    return {name: place.observed() for name, place in seen.items()}, ops.matrices


# --- the accuracy of int8 -------------------------------------------------------------------------------------


def _choose(
    compiler: Compiler, texts: Sequence[Int32], fitted: Sequence[Fitted], counts: Sequence[int], steps: int
) -> Recipe:
    """counts: linear layers of each place."""
    output: Output = "dense" if "dense" in compiler.spec.outputs else "tokens"
    spec = _answering(compiler.spec, output)
    expected = _answers(compiler, OpenvinoOps(), spec, texts, precision="f32")

    def recipe_of(places: frozenset[int]) -> Recipe:
        linears = sum(counts[number] for number in places)
        return Recipe(
            {number: fitted[number].place for number in places}, steps, linears, sum(counts), 1.0, 1.0, 1.0, 1.0
        )

    trials = count()
    most = 2 * max(1, len(fitted)).bit_length()  # choose_places doubles the places that are left out, then halves

    def kept(places: frozenset[int]) -> Kept:
        progress.info(CALIBRATING[2], extra={"progress": (min(next(trials), most - 1), most)})
        got = _answers(compiler, Int8Ops(recipe_of(places)), spec, texts)
        return compare(got, expected, ranked=output == "dense")

    places, found = choose_places([one.loss for one in fitted], kept)
    progress.info(CALIBRATING[2], extra={"progress": (most, most)})
    return structs.replace(
        recipe_of(places),
        mean_cosine=found.mean_cosine,
        least_cosine=found.least_cosine,
        same_ten=found.same_ten,
    )


def _answers(
    compiler: Compiler,
    ops: OpenvinoOps,
    spec: ModelSpec,
    texts: Sequence[Int32],
    precision: InferencePrecision | None = None,
) -> Float32:
    """(N, D), each row of norm 1: one for each text, or for each token. precision: replaces the compiler's."""
    plan = _plan(compiler, ops, spec, precision)
    (output,) = spec.outputs
    rows = [plan.run(TokenBatch(texts=batch, outputs=spec.outputs), stream=0)[output] for batch in _batches(texts)]
    x = np.concatenate(rows)
    unit: Float32 = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.float32(1e-12))
    return unit


def _speed(compiler: Compiler, recipe: Recipe, texts: Sequence[Int32]) -> float:
    """The speed in int8 as a multiple of the speed without.

    Both graphs run one batch in turn. The first runs do not count, because they lay out the weights.
    """
    sizes = np.cumsum([ids.size for ids in texts])
    packed = PackedTexts.of(texts[: max(1, int((sizes <= TIMED_TOKENS).sum()))])
    batch = TokenBatch(texts=packed, outputs=compiler.spec.outputs)
    usual = OpenvinoOps(bfloat16=compiler.precision == "bf16")
    plans = [_plan(compiler, ops, compiler.spec) for ops in (usual, Int8Ops(recipe))]
    rounds = [[_timed_s(plan, batch) for plan in plans] for _ in range(1 + TIMED_RUNS)]
    usual_s, int8_s = np.min(rounds[1:], axis=0)
    return float(usual_s / int8_s)


def _timed_s(plan: Plan, batch: TokenBatch) -> float:
    started_s = time.perf_counter()
    plan.run(batch, stream=0)
    return time.perf_counter() - started_s


def _plan(compiler: Compiler, ops: OpenvinoOps, spec: ModelSpec, precision: InferencePrecision | None = None) -> Plan:
    graph = compiler.graph(ops, spec, GROUPS)
    return Plan(compiler.compile_graph(graph, streams=1, precision=precision), graph, ops, streams=1)


def _shown(what: str, items: Sequence[T]) -> Iterator[T]:
    """The items, with a progress bar."""
    for done, item in enumerate(items):
        progress.info(what, extra={"progress": (done, len(items))})
        yield item
    progress.info(what, extra={"progress": (len(items), len(items))})


def _answering(spec: ModelSpec, output: Output) -> ModelSpec:
    """The model with one output only, so that a graph contains nothing else."""
    return replace(spec, outputs=frozenset({output}))


def _batches(texts: Sequence[Int32]) -> Iterator[PackedTexts]:
    """The texts in order, about BATCH_TOKENS at a time."""
    waiting: list[Int32] = []
    for ids in texts:
        waiting.append(ids)
        if sum(one.size for one in waiting) >= BATCH_TOKENS:
            yield PackedTexts.of(waiting)
            waiting = []
    if waiting:
        yield PackedTexts.of(waiting)
