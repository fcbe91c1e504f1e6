"""The promises of every op set: the reference's numbers, whatever the neighbours of a text.

Op sets are found by listing the folder. A new one needs a function here that makes a program runnable on it,
`run_<name>`, and passes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.models import pack_texts, random_texts

from vectord.checkpoints.checkpoint import Weight
from vectord.compute import ops
from vectord.compute.ops.base import Activation, AttentionSpec, Ops, PackedTexts, Tokens
from vectord.compute.ops.groups import PIECE_ROWS
from vectord.compute.ops.numpy import ACTIVATIONS, NumpyOps

# packed_weights: of openvino (test_packed_weights.py)
NOT_OP_SETS = {"base", "groups", "packed_weights", "padding"}
OP_SETS = sorted({module.name for module in iter_modules(ops.__path__)} - NOT_OP_SETS)
COMPARED = [name for name in OP_SETS if name != "numpy"]  # with numpy, the reference

HEADS = AttentionSpec(heads=4, head_size=8)
SHARED_KEYS = AttentionSpec(heads=4, head_size=8, kv_heads=2)
WIDTH = HEADS.width
VOCABULARY = 50
MAX_TOKENS = 1024
BUCKETS = 12

LENGTHS = {
    "one token": (1,),
    "one text": (11,),
    "like lengths": (5, 5, 5, 5),
    "mixed lengths": (3, 40, 1, 17, 2, 17, 33, 1),
    "many texts": tuple(range(1, 25)),
    "one text at the limit": (512,),
    "longer than a piece": (2 * PIECE_ROWS + 9, 7, PIECE_ROWS, PIECE_ROWS + 1),
}

Program = Callable[[Ops[Any], Tokens[Any]], Any]  # a network: ops and tokens to an activation
Runnable = Callable[[PackedTexts], np.ndarray]


def run_numpy(program: Program) -> Runnable:
    from vectord.compute.ops.numpy import pack

    def run(texts: PackedTexts) -> np.ndarray:
        answer: np.ndarray = program(NumpyOps(), pack(texts))
        return answer

    return run


def run_torch(program: Program) -> Runnable:
    import torch

    from vectord.compute.ops.torch import TorchOps, pack

    device = torch.device("cpu")
    torch_ops = TorchOps(device, torch.float32)

    def run(texts: PackedTexts) -> np.ndarray:
        with torch.inference_mode():
            return program(torch_ops, pack(texts, device)).numpy()

    return run


def run_openvino(program: Program, groups: int = 4) -> Runnable:
    from vectord.compute.ops.openvino import OpenvinoOps, build, ov

    openvino_ops = OpenvinoOps()
    graph = build(lambda tokens: {"dense": program(openvino_ops, tokens)}, groups)
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = ov.Core().compile_model(graph.model, "CPU", config)

    def run(texts: PackedTexts, alive: OpenvinoOps = openvino_ops) -> np.ndarray:
        # `alive`: the op set owns the constants' memory and must outlive the compiled graph.
        answer = np.array(compiled(graph.pack(texts, ()))[0])
        # Rows of padding belong to no text.
        return answer if len(answer) == len(texts.pooled) else answer[: texts.ids.size]

    return run


@cache
def runnable(op_set: str, program: Program) -> Runnable:
    """Compile `program` on `op_set` once: hypothesis uses it many times."""
    make: Callable[[Program], Runnable] = globals()[f"run_{op_set}"]
    return make(program)


def weight(name: str, *shape: int, dtype: str = "F32") -> Weight:
    """A random tensor, the same for the same name."""
    rng = np.random.default_rng(sum(map(ord, name)))
    array = (rng.standard_normal(shape) * 0.5).astype(np.float32)
    if dtype == "F16":
        return Weight(name, "F16", array.astype(np.float16))
    if dtype == "BF16":
        return Weight(name, "BF16", (array.view(np.uint32) >> 16).astype(np.uint16))
    return Weight(name, "F32", array)


def states(o: Ops[Any], tokens: Tokens[Any], name: str = "table", width: int = WIDTH) -> Any:
    """An activation (T, width), different on every row: by token and by position."""
    by_token = o.embed(o.constant(weight(name, VOCABULARY, width)), tokens.ids)
    return o.add(by_token, o.embed(o.constant(weight(f"{name} places", MAX_TOKENS, width)), tokens.positions))


def linear(o: Ops[Any], tokens: Tokens[Any], bias: bool, dtype: str = "F32") -> Any:
    shift = o.constant(weight("bias", 24, dtype=dtype)) if bias else None
    return o.linear(states(o, tokens), o.constant(weight("matrix", 24, WIDTH, dtype=dtype)), shift)


def layer_norm(o: Ops[Any], tokens: Tokens[Any], bias: bool) -> Any:
    shift = o.constant(weight("shift", WIDTH)) if bias else None
    return o.layer_norm(states(o, tokens), o.constant(weight("factor", WIDTH)), shift, eps=1e-3)


def rms_norm(o: Ops[Any], tokens: Tokens[Any], width: int) -> Any:
    return o.rms_norm(states(o, tokens), o.constant(weight("factor", width)), eps=1e-3)


def normalize(o: Ops[Any], tokens: Tokens[Any]) -> Any:
    """Rows, some of which are zeros."""
    return o.normalize(o.activation(o.scale(states(o, tokens, width=2), 10.0), "relu"))


def activation(o: Ops[Any], tokens: Tokens[Any], kind: Activation) -> Any:
    return o.activation(states(o, tokens), kind)


def rotate(o: Ops[Any], tokens: Tokens[Any]) -> Any:
    cos, sin = (o.embed(o.constant(weight(name, MAX_TOKENS, 4)), tokens.positions) for name in ("cos", "sin"))
    return o.rotate(states(o, tokens), cos, sin, head_size=8)


def projected(o: Ops[Any], tokens: Tokens[Any], spec: AttentionSpec) -> tuple[Any, Any, Any]:
    keys = (spec.kv_heads or spec.heads) * spec.head_size
    return states(o, tokens, "q", spec.width), states(o, tokens, "k", keys), states(o, tokens, "v", keys)


def attention(
    o: Ops[Any], tokens: Tokens[Any], spec: AttentionSpec = HEADS, bias: Weight | None = None, layers: int = 1
) -> Any:
    by_distance = None if bias is None else o.constant(bias)
    attended = [o.attention(*projected(o, tokens, spec), tokens, spec, by_distance) for _ in range(layers)]
    return reduce(o.add, attended)


def disentangled(o: Ops[Any], tokens: Tokens[Any], by_key: bool, by_query: bool) -> Any:
    """Near distances have one bucket each, far ones share the outermost, as in DeBERTa."""
    distances = np.arange(1 - MAX_TOKENS, MAX_TOKENS)
    buckets = np.clip(distances + BUCKETS // 2, 0, BUCKETS - 1).astype(np.int32)
    return o.disentangled_attention(
        *projected(o, tokens, HEADS),
        o.constant(weight("place k", BUCKETS, WIDTH)) if by_key else None,
        o.constant(weight("place q", BUCKETS, WIDTH)) if by_query else None,
        o.constant(Weight("buckets", "I32", buckets)),
        tokens,
        HEADS,
    )


def mixture(o: Ops[Any], tokens: Tokens[Any], top: int, experts: int = 5) -> Any:
    """Each expert is a layer of its own; logits are far apart, so that rounding changes no choice."""
    matrices = [o.matrix(weight(f"expert {e}", WIDTH, WIDTH)) for e in range(experts)]
    logits = o.scale(states(o, tokens, "logits", width=experts), 9.0)
    layers = [lambda x, matrix=matrix: o.linear(x, matrix, None) for matrix in matrices]
    return o.mixture(states(o, tokens), logits, top, layers, tokens)


def pooled_linear(o: Ops[Any], tokens: Tokens[Any], words: int) -> Any:
    constants = o.constant(weight("words", words, 4)), o.constant(weight("bias", words))
    return o.pooled_linear(states(o, tokens, width=4), *constants, lambda x: o.max(x, tokens))


def attend_and_pool(o: Ops[Any], tokens: Tokens[Any]) -> Any:
    return o.mean(attention(o, tokens), tokens)


def windowed_and_pool(o: Ops[Any], tokens: Tokens[Any]) -> Any:
    """One layer with full attention, and one with a window, as in ModernBERT."""
    x = attention(o, tokens)
    return o.mean(o.attention(x, x, x, tokens, replace(HEADS, window=2)), tokens)


def attend_over_poison(o: Ops[Any], tokens: Tokens[Any]) -> Any:
    """Attention and pooling over states in which every token with the highest id is NaN."""
    clean = weight("poisoned", VOCABULARY, WIDTH)
    clean.array[-1] = np.nan
    x = o.embed(o.constant(clean), tokens.ids)
    attended = (o.attention(x, x, x, tokens, spec) for spec in (HEADS, replace(HEADS, causal=True, window=3)))
    moved = o.add(o.shift(x, 1, tokens), o.shift(x, -2, tokens))
    routed = o.mixture(x, x, 2, [lambda rows: o.scale(rows, 0.5)] * WIDTH, tokens)
    return o.mean(reduce(o.add, (*attended, moved, routed)), tokens)


PROGRAMS: dict[str, Program] = {
    "embed, add": states,
    "embed float16": lambda o, t: o.embed(o.constant(weight("half", VOCABULARY, 8, dtype="F16")), t.ids),
    "embed bfloat16": lambda o, t: o.embed(o.constant(weight("brain", VOCABULARY, 8, dtype="BF16")), t.ids),
    "place": lambda o, t: o.place(states(o, t), states(o, t, "features"), t.type_ids),
    "embed types": lambda o, t: o.embed(o.constant(weight("types", 2, 8)), t.type_ids),
    "multiply": lambda o, t: o.multiply(states(o, t, "a"), states(o, t, "b")),
    "scale": lambda o, t: o.scale(states(o, t), 0.3),
    "power": lambda o, t: o.power(o.activation(states(o, t), "sigmoid"), -0.5),
    "concat": lambda o, t: o.concat([states(o, t), o.scale(states(o, t, width=3), 2.0)]),
    "columns": lambda o, t: o.columns(states(o, t), 3, 7),
    "linear": partial(linear, bias=True),
    "linear without bias": partial(linear, bias=False),
    "linear float16": partial(linear, bias=True, dtype="F16"),
    "linear bfloat16": partial(linear, bias=True, dtype="BF16"),
    "layer_norm": partial(layer_norm, bias=True),
    "layer_norm without bias": partial(layer_norm, bias=False),
    "rms_norm": partial(rms_norm, width=WIDTH),
    "rms_norm by head": partial(rms_norm, width=8),
    "normalize": normalize,
    **{kind: partial(activation, kind=kind) for kind in ACTIVATIONS},
    "rotate": rotate,
    "the next": lambda o, t: o.shift(states(o, t), 1, t),
    "the third before": lambda o, t: o.shift(states(o, t), -3, t),
    "mixture": partial(mixture, top=2),
    "mixture of all": partial(mixture, top=3, experts=3),
    "text_lengths": lambda o, t: o.embed(o.constant(weight("lengths", MAX_TOKENS, 3)), o.text_lengths(t)),
    "first": lambda o, t: o.first(states(o, t), t),
    "last": lambda o, t: o.last(states(o, t), t),
    "mean": lambda o, t: o.mean(states(o, t), t),
    "max": lambda o, t: o.max(states(o, t), t),
    "pooled_linear": partial(pooled_linear, words=20),
    "pooled_linear of many words": partial(pooled_linear, words=10_000),
}

ATTENTIONS: dict[str, Program] = {
    "attention": attention,
    "with a scale": partial(attention, spec=replace(HEADS, scale=0.1)),
    "one head": partial(attention, spec=AttentionSpec(heads=1, head_size=WIDTH)),
    "shared keys": partial(attention, spec=SHARED_KEYS),
    "narrower than the state": partial(attention, spec=AttentionSpec(heads=6, head_size=16, kv_heads=1)),
    "window": partial(attention, spec=replace(HEADS, window=3)),
    "wide window": partial(attention, spec=replace(HEADS, window=300)),
    "capped scores": partial(attention, spec=replace(HEADS, score_cap=0.5)),
}
CAUSAL: dict[str, Program] = {
    "causal": partial(attention, spec=replace(HEADS, causal=True)),
    "causal, shared keys": partial(attention, spec=replace(SHARED_KEYS, causal=True)),
    "causal, window": partial(attention, spec=replace(SHARED_KEYS, causal=True, window=3)),
    "causal, window, capped scores": partial(
        attention, spec=replace(SHARED_KEYS, causal=True, window=3, score_cap=0.5)
    ),
}
BIAS = weight("distances", HEADS.heads, 2 * MAX_TOKENS - 1)
ALIBI = np.outer([0.5, 0.25, 0.125, 0.0625], -abs(np.arange(1 - MAX_TOKENS, MAX_TOKENS))).astype(np.float32)
SLOPES = Weight("slopes", "F32", ALIBI)
BY_DISTANCE: dict[str, Program] = {
    "bias": partial(attention, bias=BIAS),
    "bias of two layers": partial(attention, bias=BIAS, layers=2),
    "causal, bias": partial(attention, spec=replace(SHARED_KEYS, causal=True), bias=BIAS),
    "slopes": partial(attention, bias=SLOPES),
    "slopes of two layers": partial(attention, bias=SLOPES, layers=2),
    "no bias at all": partial(attention, bias=Weight("zeros", "F32", np.zeros((4, 2 * MAX_TOKENS - 1), np.float32))),
    "disentangled": partial(disentangled, by_key=True, by_query=True),
    "disentangled, by key": partial(disentangled, by_key=True, by_query=False),
    "disentangled, by query": partial(disentangled, by_key=False, by_query=True),
}
PROGRAMS |= ATTENTIONS | CAUSAL | BY_DISTANCE


def typed(lengths: Sequence[int], **options: Any) -> PackedTexts:
    """Random texts whose second halves have type 1."""
    types = np.concatenate([np.arange(length) >= length / 2 for length in lengths]).astype(np.int32)
    return pack_texts(*random_texts(lengths, vocab_size=VOCABULARY), type_ids=types, **options)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


_references: dict[tuple[Program, str], np.ndarray] = {}


def reference_of(program: Program, texts: PackedTexts) -> np.ndarray:
    """The float64 result, computed once for all op sets."""
    key = program, str([np.asarray(getattr(texts, name)).tolist() for name in texts.__struct_fields__])
    if key not in _references:
        _references[key] = runnable("numpy", program)(texts)
    return _references[key]


def assert_same(op_set: str, program: Program, texts: PackedTexts, what: str) -> None:
    """Compare within float32's rounding of the float64 reference."""
    got, want = runnable(op_set, program)(texts), reference_of(program, texts)
    assert got.shape == want.shape, what
    np.testing.assert_allclose(got, want, atol=3e-5, err_msg=what)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("op_set", COMPARED)
def test_ops_equal_the_reference(op_set: str, program: str) -> None:
    """Every op, on every shape of batch; only attention cuts texts into pieces."""
    attends = program in ATTENTIONS | CAUSAL | BY_DISTANCE
    for name, lengths in LENGTHS.items():
        if attends or name != "longer than a piece":
            assert_same(op_set, PROGRAMS[program], typed(lengths), name)


@pytest.mark.parametrize("program", ["first", "last", "mean", "max", "pooled_linear"])
@pytest.mark.parametrize("op_set", COMPARED)
def test_the_spans_are_pooled(op_set: str, program: str) -> None:
    """Parts of texts, several of one text, none of another, overlapping and out of order: one row each."""
    spans = numbers(3, 9, 0, 40, 8, 9, 41, 57, 5, 7).reshape(-1, 2)
    assert_same(op_set, PROGRAMS[program], typed((9, 31, 17), spans=spans), "spans")


MERGED: Program = lambda o, t: o.merge(states(o, t), 4, t)  # noqa: E731 - `runnable` compiles a program once


@pytest.mark.parametrize("op_set", COMPARED)
def test_the_rows_of_spans_are_merged(op_set: str) -> None:
    """Each span's rows become one, in the order of the spans."""
    spans = numbers(4, 8, 0, 4, 9, 13, 13, 17).reshape(-1, 2)
    assert_same(op_set, MERGED, typed((9, 31, 17), spans=spans), "spans")


@pytest.mark.parametrize("program", ["attention", "shared keys", "capped scores", *BY_DISTANCE])
@pytest.mark.parametrize("op_set", COMPARED)
def test_keys_limit_attention(op_set: str, program: str) -> None:
    """A text's last rows may be excluded as keys, even for themselves, and still attend to the others."""
    assert_same(op_set, PROGRAMS[program], typed((9, 31, 17, 40), keys=numbers(9, 20, 1, 33)), "keys")


@pytest.mark.parametrize("program", ["window", "causal, window", "causal, window, capped scores"])
@pytest.mark.parametrize("op_set", OP_SETS)
def test_a_query_without_visible_keys_gets_zeros(op_set: str, program: str) -> None:
    """Beyond a text's keys a window contains none of them, in a whole text and in the pieces of a long one."""
    lengths, keys, reach = (9, 40, 2 * PIECE_ROWS + 9, 1), numbers(2, 40, 5, 1), 3
    texts = typed(lengths, keys=keys)
    assert_same(op_set, PROGRAMS[program], texts, "keys and a window")
    seeing = np.concatenate([np.arange(n) < k + reach for n, k in zip(lengths, keys, strict=True)])
    rows = runnable(op_set, PROGRAMS[program])(texts)
    assert rows[seeing].any(axis=1).all()
    assert not rows[~seeing].any()


@pytest.mark.parametrize("program", [*CAUSAL, "attention"])
@pytest.mark.parametrize("op_set", COMPARED)
def test_children_attend_to_their_parent(op_set: str, program: str) -> None:
    """A common beginning is computed once; its texts' rows attend to it, and their positions continue from it."""
    texts = typed((20, 9, 31, 7, 1, 12), parents=numbers(-1, 0, 0, -1, 0, 3))
    assert_same(op_set, PROGRAMS[program], texts, "parents")


@pytest.mark.parametrize("op_set", OP_SETS)
def test_a_shared_beginning_changes_no_result(op_set: str) -> None:
    """In a causal model a text after its parent has the same rows as the whole text."""
    start, *ends = random_texts((20, 9, 300, 1), vocab_size=VOCABULARY)
    parents = numbers(-1, 0, 0, 0)
    for name, program in CAUSAL.items():
        shared = runnable(op_set, program)(pack_texts(start, *ends, parents=parents))
        for end, rows in zip(ends, np.split(shared[20:], np.cumsum([len(end) for end in ends])[:-1]), strict=True):
            whole = runnable(op_set, program)(pack_texts(start + end))
            np.testing.assert_allclose(rows, whole[20:], atol=3e-5, err_msg=name)


@pytest.mark.parametrize("program", [attend_and_pool, windowed_and_pool], ids=["attention", "windows"])
@pytest.mark.parametrize("op_set", OP_SETS)
@settings(max_examples=15)
@given(lengths=st.lists(st.integers(1, 70) | st.just(PIECE_ROWS + 9), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_any_batch_equals_its_single_texts(op_set: str, program: Program, lengths: list[int], seed: int) -> None:
    """For any lengths."""
    texts = random_texts(lengths, vocab_size=VOCABULARY, seed=seed)
    want = np.concatenate([runnable("numpy", program)(pack_texts(text)) for text in texts])
    np.testing.assert_allclose(runnable(op_set, program)(pack_texts(*texts)), want, atol=2e-5)


@pytest.mark.parametrize("poisoned", range(4))
@pytest.mark.parametrize("op_set", OP_SETS)
def test_a_nan_affects_its_own_text_only(op_set: str, poisoned: int) -> None:
    """Not through masks, padding, groups or pooling, although NaN times zero is NaN."""
    texts = [
        [token % (VOCABULARY - 1) for token in text] for text in random_texts((3, 20, 9, 17), vocab_size=VOCABULARY)
    ]
    texts[poisoned][0] = VOCABULARY - 1
    rows = runnable(op_set, attend_over_poison)(pack_texts(*texts))
    assert [bool(np.isfinite(row).all()) for row in rows] == [text != poisoned for text in range(4)]
