"""What every op set must do: the same as the reference, whatever stands beside a text in its batch.

Op sets are found by listing the folder. A new one needs a function here that makes a program runnable on it,
`run_<name>`, and passes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models import batch_of, random_texts, read_tiny_spec, write_sentence_bert

from vectord import ops
from vectord.artifacts.checkpoint import Weight, open_checkpoint
from vectord.backends.base import TokenBatch
from vectord.networks.network import Network
from vectord.ops.base import AttentionSpec, Ops, Tokens
from vectord.ops.numpy import NumpyOps

NOT_OP_SETS = {"base", "groups"}
OP_SETS = sorted({module.name for module in iter_modules(ops.__path__)} - NOT_OP_SETS)

HEADS = AttentionSpec(heads=4, head_size=8)
WIDTH = HEADS.heads * HEADS.head_size
VOCABULARY = 50

LENGTHS = {
    "one token": (1,),
    "one text": (11,),
    "like lengths": (5, 5, 5, 5),
    "mixed lengths": (3, 40, 1, 17, 2, 17, 33, 1),
    "many texts": tuple(range(1, 25)),
    "one text at the limit": (512,),
}

Program = Callable[[Ops[Any], Tokens[Any]], Any]  # what a network is: ops and tokens to an activation
Runnable = Callable[[TokenBatch], np.ndarray]


def run_numpy(program: Program) -> Runnable:
    from vectord.ops.numpy import pack

    def run(batch: TokenBatch) -> np.ndarray:
        answer: np.ndarray = program(NumpyOps(), pack(batch.ids, batch.type_ids, batch.cu_seqlens))
        return answer

    return run


def run_torch(program: Program) -> Runnable:
    import torch

    from vectord.ops.torch import TorchOps, pack

    device = torch.device("cpu")
    torch_ops = TorchOps(device, torch.float32)

    def run(batch: TokenBatch) -> np.ndarray:
        with torch.inference_mode():
            return program(torch_ops, pack(batch.ids, batch.type_ids, batch.cu_seqlens, device)).numpy()

    return run


def run_openvino(program: Program, groups: int = 4) -> Runnable:
    from vectord.ops.openvino import OpenvinoOps, build, ov, pack

    openvino_ops = OpenvinoOps()
    model = build(partial(program, openvino_ops), groups)
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1})
    names = [port.get_any_name() for port in compiled.inputs]

    def run(batch: TokenBatch, alive: OpenvinoOps = openvino_ops) -> np.ndarray:
        # `alive`: the constants' memory is the op set's, which must outlive the compiled graph.
        inputs = pack(batch.ids, batch.type_ids, batch.cu_seqlens, groups)
        answer = np.array(compiled([inputs[name] for name in names])[0])
        # Rows that were added to make T round belong to no text.
        return answer if len(answer) == len(batch.cu_seqlens) - 1 else answer[: batch.ids.size]

    return run


@cache
def runnable(op_set: str, program: Program) -> Runnable:
    """`program` on `op_set`, compiled once: hypothesis asks for it again and again."""
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
    """Some activation (T, width), different on every row: by token and by position."""
    by_token = o.embed(o.constant(weight(name, VOCABULARY, width)), tokens.ids)
    return o.add(by_token, o.embed(o.constant(weight(f"{name} places", 512, width)), tokens.positions))


def linear(o: Ops[Any], tokens: Tokens[Any], bias: bool, dtype: str = "F32") -> Any:
    shift = o.constant(weight("bias", 24, dtype=dtype)) if bias else None
    return o.linear(states(o, tokens), o.constant(weight("matrix", 24, WIDTH, dtype=dtype)), shift)


def layer_norm(o: Ops[Any], tokens: Tokens[Any]) -> Any:
    return o.layer_norm(
        states(o, tokens), o.constant(weight("scale", WIDTH)), o.constant(weight("shift", WIDTH)), eps=1e-3
    )


def attention(o: Ops[Any], tokens: Tokens[Any], spec: AttentionSpec = HEADS) -> Any:
    return o.attention(states(o, tokens, "q"), states(o, tokens, "k"), states(o, tokens, "v"), tokens, spec)


def attend_and_pool(o: Ops[Any], tokens: Tokens[Any]) -> Any:
    return o.mean(attention(o, tokens), tokens)


def attend_over_poison(o: Ops[Any], tokens: Tokens[Any]) -> Any:
    """Attention and pooling over states in which every token with the highest id is not a number."""
    clean = weight("poisoned", VOCABULARY, WIDTH)
    clean.array[-1] = np.nan
    x = o.embed(o.constant(clean), tokens.ids)
    return o.mean(o.attention(x, x, x, tokens, HEADS), tokens)


PROGRAMS: dict[str, Program] = {
    "embed, add": states,
    "embed float16": lambda o, t: o.embed(o.constant(weight("half", VOCABULARY, 8, dtype="F16")), t.ids),
    "embed bfloat16": lambda o, t: o.embed(o.constant(weight("brain", VOCABULARY, 8, dtype="BF16")), t.ids),
    "embed types": lambda o, t: o.embed(o.constant(weight("types", 2, 8)), t.type_ids),
    "linear": partial(linear, bias=True),
    "linear without bias": partial(linear, bias=False),
    "linear float16": partial(linear, bias=True, dtype="F16"),
    "linear bfloat16": partial(linear, bias=True, dtype="BF16"),
    "layer_norm": layer_norm,
    "gelu": lambda o, t: o.activation(states(o, t), "gelu"),
    "gelu_tanh": lambda o, t: o.activation(states(o, t), "gelu_tanh"),
    "relu": lambda o, t: o.activation(states(o, t), "relu"),
    "silu": lambda o, t: o.activation(states(o, t), "silu"),
    "tanh": lambda o, t: o.activation(states(o, t), "tanh"),
    "identity": lambda o, t: o.activation(states(o, t), "identity"),
    "attention": attention,
    "attention with a scale": partial(attention, spec=AttentionSpec(heads=4, head_size=8, scale=0.1)),
    "attention, one head": partial(attention, spec=AttentionSpec(heads=1, head_size=WIDTH)),
    "first": lambda o, t: o.first(states(o, t), t),
    "last": lambda o, t: o.last(states(o, t), t),
    "mean": lambda o, t: o.mean(states(o, t), t),
}


def typed_batch(lengths: Sequence[int]) -> TokenBatch:
    """Random texts whose second halves have type 1."""
    batch = batch_of(*random_texts(lengths, vocab_size=VOCABULARY))
    types = np.concatenate([np.arange(length) >= length / 2 for length in lengths]).astype(np.int32)
    return TokenBatch(ids=batch.ids, type_ids=types, cu_seqlens=batch.cu_seqlens)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("op_set", OP_SETS)
def test_op_is_that_of_the_reference(op_set: str, program: str) -> None:
    """Every op, on every shape of batch, is within float32's rounding of the float64 reference."""
    run, reference = runnable(op_set, PROGRAMS[program]), runnable("numpy", PROGRAMS[program])
    for name, lengths in LENGTHS.items():
        batch = typed_batch(lengths)
        got, want = run(batch), reference(batch)
        assert got.shape == want.shape, name
        np.testing.assert_allclose(got, want, atol=2e-5, err_msg=name)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Program]:
    """A whole tiny model, mean pooling and a Dense module, by output."""
    spec = read_tiny_spec(write_sentence_bert(tmp_path_factory.mktemp("model"), dense=(16,)))
    weights = open_checkpoint(spec.weights)

    def program(output: Any, o: Ops[Any], tokens: Tokens[Any]) -> Any:
        return Network(spec, weights, o)(tokens, output)

    programs = {output: partial(program, output) for output in ("dense", "tokens")}
    return programs.__getitem__


@pytest.mark.parametrize("output", ["dense", "tokens"])
@pytest.mark.parametrize("op_set", OP_SETS)
def test_network_is_that_of_the_reference(op_set: str, output: str, network: Callable[[str], Program]) -> None:
    """A whole model is within 1e-4 of float64."""
    run, reference = runnable(op_set, network(output)), runnable("numpy", network(output))
    for name, lengths in LENGTHS.items():
        batch = typed_batch(lengths)
        np.testing.assert_allclose(run(batch), reference(batch), atol=1e-4, err_msg=name)


@pytest.mark.parametrize("op_set", OP_SETS)
def test_neighbours_change_nothing(op_set: str, network: Callable[[str], Program]) -> None:
    """A text alone, beside its like, and beside longer ones gives the same vector."""
    run = runnable(op_set, network("dense"))
    text, other, long = random_texts((12, 12, 200))
    alone = run(batch_of(text))[0]
    for name, texts in {
        "first of two": (text, other),
        "second of two": (other, text),
        "beside a longer one": (text, long),
        "between longer ones": (long, text, long),
        "among many": (*random_texts(range(1, 20)), text),
    }.items():
        row = texts.index(text)
        np.testing.assert_allclose(run(batch_of(*texts))[row], alone, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("op_set", OP_SETS)
@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(1, 70), min_size=1, max_size=12), seed=st.integers(0, 9))
def test_any_batch_is_its_texts(op_set: str, lengths: list[int], seed: int) -> None:
    """Whatever lengths come together, each text's answer is the one it has alone."""
    texts = random_texts(lengths, vocab_size=VOCABULARY, seed=seed)
    want = np.concatenate([runnable("numpy", attend_and_pool)(batch_of(text)) for text in texts])
    np.testing.assert_allclose(runnable(op_set, attend_and_pool)(batch_of(*texts)), want, atol=2e-5)


@pytest.mark.parametrize("poisoned", range(4))
@pytest.mark.parametrize("op_set", OP_SETS)
def test_a_text_that_is_not_a_number_spoils_no_other(op_set: str, poisoned: int) -> None:
    """Not through masks, padding, groups or pooling: NaN times zero is NaN."""
    texts = [
        [token % (VOCABULARY - 1) for token in text] for text in random_texts((3, 20, 9, 17), vocab_size=VOCABULARY)
    ]
    texts[poisoned][0] = VOCABULARY - 1
    rows = runnable(op_set, attend_over_poison)(batch_of(*texts))
    assert [bool(np.isfinite(row).all()) for row in rows] == [text != poisoned for text in range(4)]
