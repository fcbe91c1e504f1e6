"""Architectures that networks/ lacks, run by transformers' own classes with our heads."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.compute.networks.case import padded_states, texts_of
from tests.models import batch_of, randomize, read_tiny_spec

from vectord.checkpoints.files.read import Settings
from vectord.checkpoints.spec import ModelSpec, YesNo
from vectord.compute.backends.base import BackendOptions
from vectord.compute.backends.transformers import TransformersBackend, load
from vectord.errors import ModelUnavailable

if TYPE_CHECKING:
    import torch

FLOAT32 = BackendOptions(device="cpu", dtype="float32", threads=1)
SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
TEXTS = texts_of(9, 1, 30, 2, 17)


def write(folder: Path, model: torch.nn.Module) -> Path:
    randomize(model).save_pretrained(folder)  # type: ignore[operator]
    return folder


def albert(**facts: Any) -> torch.nn.Module:
    from transformers import AlbertConfig, AlbertModel

    return AlbertModel(AlbertConfig(**SIZES, embedding_size=16, intermediate_size=48, **facts))


def llama() -> torch.nn.Module:
    """Causal, with rotary positions under a key of its own."""
    from transformers import LlamaConfig, LlamaModel

    rope = {"rope_type": "default", "rope_theta": 500.0}
    return LlamaModel(LlamaConfig(**SIZES, intermediate_size=48, num_key_value_heads=2, rope_parameters=rope))


def gpt2() -> torch.nn.Module:
    """Its class takes token types and has no table of them."""
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64, pad_token_id=0))


def t5_encoder() -> torch.nn.Module:
    """The encoder of a model that has a decoder too."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(
        T5Config(vocab_size=40, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=0)
    )


def squeezebert() -> torch.nn.Module:
    from transformers import SqueezeBertConfig, SqueezeBertModel

    return SqueezeBertModel(SqueezeBertConfig(**SIZES, embedding_size=32, intermediate_size=48))


MODELS = {
    "albert": albert,
    "gpt2": gpt2,
    "llama": llama,
    "squeezebert": squeezebert,
    "t5": t5_encoder,
}


def spec_of(folder: Path, **facts: Any) -> ModelSpec:
    defaults = {"hidden_size": 32, "dimensions": 32, "max_tokens": 64, "pooling": "mean"}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"hidden_size": 32, "max_position_embeddings": 64} | config))
    return read_tiny_spec(folder, **{**defaults, **facts})


def edit(folder: Path, **entries: Any) -> Path:
    """Change these entries of config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **entries}))
    return folder


def tokens_of(backend: TransformersBackend, texts: Sequence[Sequence[int]], **options: Any) -> np.ndarray:
    return backend.forward(batch_of(*texts, outputs=("tokens",), **options), 0)["tokens"]


@pytest.mark.parametrize("name", MODELS)
def test_states_equal_the_classes(name: str, tmp_path: Path) -> None:
    """Read through our checkpoint and config, a model has the states of the saved one."""
    model = MODELS[name]()
    backend = load(spec_of(write(tmp_path, model)), FLOAT32)
    assert backend.facts.cost == "padded"
    np.testing.assert_allclose(tokens_of(backend, TEXTS), padded_states(model, TEXTS), atol=1e-4)


def longrope(kind: str) -> torch.nn.Module:
    """Positions of another scale beyond 100 tokens."""
    from transformers import AutoConfig, AutoModel

    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
    facts = {"max_position_embeddings": 400, "num_key_value_heads": 2}
    if kind == "phi3":
        facts["original_max_position_embeddings"] = 100
    scaled = {**rope, "factor": 4.0, "original_max_position_embeddings": 100}
    tokens = {"bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model(kind, **SIZES, **facts, **tokens, intermediate_size=48, rope_parameters=scaled)
    return AutoModel.from_config(config)  # type: ignore[no-any-return]


def sized(kind: str, **facts: Any) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(kind, **SIZES, intermediate_size=48, max_position_embeddings=402, **facts)
    return AutoModel.from_config(config)  # type: ignore[no-any-return]


BATCH_DEPENDENT: dict[str, Callable[[], Any]] = {
    "padding in a convolution": lambda: sized("convbert", embedding_size=32),
    "padding in landmarks": lambda: sized("nystromformer", conv_kernel_size=5),
    "padding as the next word": lambda: sized("mobilebert", embedding_size=12, intra_bottleneck_size=16),
    "padding in hashes": lambda: sized("yoso"),
    "long positions of phi3": lambda: longrope("phi3"),
    "long positions of llama": lambda: longrope("llama"),
}


@pytest.mark.parametrize("name", BATCH_DEPENDENT)
def test_a_class_that_reads_its_batch_runs_each_length_alone(name: str, tmp_path: Path) -> None:
    """A text has the states that transformers gives it alone, whatever was read with it or before it."""
    from transformers import AutoModel

    folder = write(tmp_path, BATCH_DEPENDENT[name]())
    backend = load(spec_of(folder, max_tokens=300), FLOAT32)
    texts = texts_of(9, 250, 2, 30, 110, 9)
    want = [padded_states(AutoModel.from_pretrained(folder), [text]) for text in texts]
    for batch in (range(6), [1, 2], [0, 1], [2, 1, 0], [5], [3, 4]):
        states = tokens_of(backend, [texts[i] for i in batch])
        np.testing.assert_allclose(states, np.concatenate([want[i] for i in batch]), atol=1e-4)


def test_a_class_that_a_text_changes_for_good_is_refused(tmp_path: Path) -> None:
    """Dynamic positions keep the scale of the longest text so far; BigBird turns sparse attention off."""
    from transformers import LlamaConfig, LlamaModel

    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    config = LlamaConfig(**SIZES, intermediate_size=48, max_position_embeddings=100, rope_parameters=rope)
    folder = write(tmp_path, LlamaModel(config))
    with pytest.raises(ModelUnavailable, match="depend on other texts, even without padding"):
        load(spec_of(folder, max_tokens=300), FLOAT32)
    load(spec_of(folder, max_tokens=100), FLOAT32).close()
    with pytest.raises(ModelUnavailable, match="attention_type block_sparse"):
        load(spec_of(write(tmp_path / "sparse", sized("big_bird", block_size=8, num_random_blocks=2))), FLOAT32)


@pytest.mark.parametrize("model_type", ["gemma2", "olmo2", "starcoder2"])
def test_a_decoder_that_is_not_causal_attends_both_ways(model_type: str, tmp_path: Path) -> None:
    """As in transformers with padding, and without padding too, where some of its classes would be causal."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(model_type, **SIZES, intermediate_size=48, num_key_value_heads=2)
    if hasattr(config, "head_dim"):
        config.head_dim = 8
    folder = write(tmp_path, AutoModel.from_config(config))
    causal = tokens_of(load(spec_of(folder), FLOAT32), TEXTS)
    backend = load(spec_of(edit(folder, is_causal=False)), FLOAT32)
    states = tokens_of(backend, TEXTS)
    np.testing.assert_allclose(states, padded_states(AutoModel.from_pretrained(folder), TEXTS), atol=1e-4)
    np.testing.assert_allclose(states[:9], tokens_of(backend, TEXTS[:1]), atol=1e-4)
    assert np.abs(states - causal).max() > 0.1


def test_a_class_that_is_always_causal_is_refused(tmp_path: Path) -> None:
    """Its own causal mask ignores is_causal: it would return numbers of another model."""
    from transformers import OpenAIGPTConfig, OpenAIGPTModel

    model = OpenAIGPTModel(OpenAIGPTConfig(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    folder = edit(write(tmp_path, model), is_causal=False, pad_token_id=0)
    with pytest.raises(ModelUnavailable, match="is_causal false is not supported with model_type 'openai-gpt'"):
        load(spec_of(folder), FLOAT32)


def test_bidirectional_attention_of_a_class_of_its_own_is_refused(tmp_path: Path) -> None:
    """transformers' class ignores the key, and so does the backend; a class of the model's own may read it."""
    folder = edit(write(tmp_path, llama()), use_bidirectional_attention=True)
    load(spec_of(folder), FLOAT32).close()
    edit(folder, auto_map={"AutoModel": "modeling.Model"})
    with pytest.raises(ModelUnavailable, match="use_bidirectional_attention True is not supported"):
        load(spec_of(folder), FLOAT32)


def test_exact_is_float32(tmp_path: Path) -> None:
    """forward_exact computes in float32 whatever the served dtype."""
    model = albert()
    backend = load(spec_of(write(tmp_path, model)), BackendOptions(device="cpu", dtype="bfloat16", threads=1))
    batch = batch_of(*TEXTS, outputs=("tokens",))
    want = padded_states(model, TEXTS)
    assert np.abs(backend.forward(batch, 0)["tokens"] - want).max() > 1e-3
    np.testing.assert_allclose(backend.forward_exact(batch)["tokens"], want, atol=1e-4)
    backend.close()


# --- what a model's folder may not do -------------------------------------------------------------------------

CODE = "import pathlib; pathlib.Path({marker!r}).touch()\n"
HOSTILE: dict[str, Any] = {
    "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"},
    "_attn_implementation_internal": "someone/kernel",
    "_attn_implementation": "someone/kernel",
    "attn_implementation": "someone/kernel",
    "_experts_implementation_internal": "someone/kernel",
    "quantization_config": {"quant_method": "someone"},
    "trust_remote_code": True,
    "use_kernels": True,
    "transformers_weights": "../elsewhere.safetensors",
    "fusion_config": {"patch_embeddings": True},
    "_name_or_path": "someone/model",
    "custom_pipelines": {"text": {"impl": "code.Pipeline"}},
}


def test_nothing_in_the_folder_runs(tmp_path: Path) -> None:
    """Every config key that ever led to code is refused; allowed, it is ignored, as is code in the folder."""
    model = albert()
    marker = tmp_path / "ran"
    folder = edit(write(tmp_path / "model", model), **HOSTILE)
    for name in ("code.py", "modeling_albert.py", "configuration_albert.py", "__init__.py"):
        (folder / name).write_text(CODE.format(marker=str(marker)))
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/model", "peft_type": "LORA"}')
    with pytest.raises(ModelUnavailable, match="is not supported"):
        load(spec_of(folder), FLOAT32)
    allowed = Settings(folder / "config.json", spec_of(folder).config, HOSTILE)
    backend = load(spec_of(folder, config=allowed), FLOAT32)
    np.testing.assert_allclose(tokens_of(backend, TEXTS), padded_states(model, TEXTS), atol=1e-4)
    assert not marker.exists()


def test_a_key_that_transformers_ignores_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither its config class nor its code has the name. The config as the class saves it has no such key."""
    caplog.set_level("INFO")
    model = gpt2()
    folder = write(tmp_path, model)
    load(spec_of(folder), FLOAT32)
    assert "ignored" not in caplog.text
    backend = load(spec_of(edit(folder, embedding_scale=2.5)), FLOAT32)
    assert f"{folder}/config.json: ignored, as by transformers: embedding_scale" in caplog.messages
    np.testing.assert_allclose(tokens_of(backend, TEXTS), padded_states(model, TEXTS), atol=1e-4)


def test_a_key_that_only_the_code_of_a_class_reads_is_refused(tmp_path: Path) -> None:
    """Qwen2's config class has no head_dim, and its attention reads it."""
    from transformers import Qwen2Config, Qwen2Model

    model = Qwen2Model(Qwen2Config(**SIZES, intermediate_size=48, num_key_value_heads=2))
    with pytest.raises(ModelUnavailable, match=r"config\.json: head_dim 8 .*--allow-unknown-config head_dim"):
        load(spec_of(edit(write(tmp_path, model), head_dim=8)), FLOAT32)


def test_old_rotary_keys_are_read(tmp_path: Path) -> None:
    """A config from before version 5 has rope_theta at the top level, where the class has no field any more."""
    model = llama()
    folder = write(tmp_path, model)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_parameters": None, "rope_theta": 500.0}))
    backend = load(spec_of(folder), FLOAT32)
    np.testing.assert_allclose(tokens_of(backend, TEXTS), padded_states(model, TEXTS), atol=1e-4)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 1,024"),
        ({"vocab_size": 2**24}, "describes a network of"),
        ({"intermediate_size": 64}, r"tensor .* is \[48\]; by config.json it is \[64\]"),
        ({"hidden_act": "os.system"}, "refuses it"),
        ({"model_type": "albert2"}, "supported neither by vectord nor by transformers"),
        ({"model_type": "qwen2_vl"}, "made of several models"),
        ({"model_type": "fnet"}, "knows no padding"),
        ({"model_type": "bart"}, "no encoder of texts"),
    ],
    ids=str,
)
def test_an_unsuitable_config_stops_the_load(entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    """An unknown type, an endless size, a network that does not fit the weights: refused before it costs anything."""
    folder = edit(write(tmp_path, albert()), **entries)
    with pytest.raises(ModelUnavailable, match=message):
        load(spec_of(folder), FLOAT32)


def test_a_missing_tensor_stops_the_load(tmp_path: Path) -> None:
    """transformers would invent it. The pooler may be missing, because no output uses it."""
    from safetensors.numpy import load_file, save_file

    model = albert()
    folder = write(tmp_path, model)
    path = folder / "model.safetensors"
    state = {name: tensor for name, tensor in load_file(path).items() if not name.startswith("pooler.")}
    save_file(state, path)
    tokens = tokens_of(load(spec_of(folder), FLOAT32), TEXTS)
    np.testing.assert_allclose(tokens, padded_states(model, TEXTS), atol=1e-4)
    save_file({name: tensor for name, tensor in state.items() if "ffn.bias" not in name}, path)
    with pytest.raises(ModelUnavailable, match=r"no tensor .*ffn\.bias"):
        load(spec_of(folder), FLOAT32)


@pytest.mark.parametrize(
    "facts",
    [
        {"outputs": frozenset({"splade"})},
        {"outputs": frozenset({"scores"}), "labels": ("yes",), "config": {"model_type": "albert"}},
        {"hidden_size": 64, "dimensions": 64},
    ],
    ids=["splade", "no pad_token_id", "another width"],
)
def test_an_impossible_output_is_refused(facts: dict[str, Any], tmp_path: Path) -> None:
    """An output that needs parts of the architecture, or that the config leaves open."""
    folder = edit(write(tmp_path, albert()), pad_token_id=None)
    spec = spec_of(folder, **{name: fact for name, fact in facts.items() if name != "config"})
    with pytest.raises(ModelUnavailable):
        load(spec, FLOAT32)


def test_a_full_device_is_a_memory_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine halves a batch on MemoryError only."""
    import torch

    from vectord.compute.backends.transformers import TransformersModel

    def fill(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    backend = load(spec_of(write(tmp_path, albert())), FLOAT32)
    monkeypatch.setattr(TransformersModel, "__call__", fill)
    with pytest.raises(MemoryError, match="no room for this batch"):
        tokens_of(backend, TEXTS)


@pytest.mark.parametrize("tied", [True, False])
def test_a_reranker_answers_by_the_logits_of_words(tied: bool, tmp_path: Path) -> None:
    """Those of transformers' own language model after the last token, of a Qwen3.5, whose layers keep a state."""
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    delta = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
    sizes = {**SIZES, "num_hidden_layers": 4, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 16}
    config = Qwen3_5TextConfig(**sizes, **delta, linear_value_head_dim=8, tie_word_embeddings=tied)
    model = randomize(Qwen3_5ForCausalLM(config), size=0.2, norm=1.0)
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    words = YesNo(prefix="", body="{query}{document}", suffix="", token_ids=(7, 9), shares_prefix=False)
    spec = read_tiny_spec(tmp_path, outputs=frozenset({"scores"}), pooling=None, yes_no=words)
    backend = load(spec, FLOAT32)
    got = backend.forward(batch_of(*TEXTS, outputs=("scores",)), 0)["scores"]
    with torch.no_grad():
        want = [model(input_ids=torch.tensor([text])).logits[0, -1, [7, 9]].numpy() for text in TEXTS]
    np.testing.assert_allclose(got, want, atol=1e-4)
    backend.close()


def test_words_of_other_language_models_are_refused(tmp_path: Path) -> None:
    """Their classes may scale or cap the logits."""
    words = YesNo(prefix="", body="{query}{document}", suffix="", token_ids=(7, 9), shares_prefix=False)
    spec = read_tiny_spec(write(tmp_path, gpt2()), outputs=frozenset({"scores"}), pooling=None, yes_no=words)
    with pytest.raises(ModelUnavailable, match="scores need a network of our own"):
        load(spec, FLOAT32)
