"""Decoders on the reference op set against transformers, and errors for configs and checkpoints that do not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.reading import spec_of
from tests.compute.networks.case import Texts, numpy_answer, pad
from tests.compute.networks.tiny_decoders import (
    CASES,
    CONFIGS,
    VOCAB_SIZE,
    WINDOW,
    Head,
    load_reference,
    minicpm_reference,
    reference,
    write,
)
from tests.compute.networks.tiny_encoders import change_config
from tests.models import random_texts, read_tiny_spec, write_bert

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.kinds.scores import cut_layers
from vectord.checkpoints.spec import ModelSpec, Output, Pooling, YesNo
from vectord.errors import ModelUnavailable

LENGTHS = (9, 1, 40, 2, 17)  # shorter and longer than the windows
DECODERS = sorted(CONFIGS.keys() - {"deberta-v2", "embedding_gemma2_text", "lfm2"})
CAUSAL = sorted(set(DECODERS) - {"eurobert", "ultrabert"})
NO, YES = 21, 4
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}


def hidden_states(folder: Path, texts: Texts) -> np.ndarray:
    """(T, H)"""
    return numpy_answer(read_tiny_spec(folder), texts)


def logits_of(folder: Path, head: Head, texts: Texts) -> list[np.ndarray]:
    """Of each text alone, by transformers' class."""
    model = load_reference(folder, head)
    with torch.no_grad():
        return [model(input_ids=torch.tensor([text])).logits.numpy() for text in texts]


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, atol=1e-5)


OLD_FORMS: dict[str, tuple[str, dict[str, Any], dict[str, Any], set[str]]] = {
    "theta beside": ("qwen3", {"rope_parameters": {"rope_theta": 99.0}}, {"rope_theta": 99.0}, {"rope_parameters"}),
    "scaling beside": (
        "qwen2",
        {"rope_parameters": YARN},
        {
            "rope_theta": 500.0,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        },
        {"rope_parameters", "layer_types"},
    ),
    "mistral by layer_types": ("mistral", {}, {"layer_types": ["sliding_attention"] * 3}, set()),
    "gemma with a scaling in the new form": (
        "gemma3_text",
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0}}},
        {
            "rope_parameters": {"full_attention": {"rope_theta": 1000.0}},
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        set(),
    ),
    "ultrabert by layer": (
        "ultrabert",
        {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
        {"attention_windows": [WINDOW, None, WINDOW], "rope_theta": [100.0, 1000.0, 100.0]},
        {"rope_parameters", "layer_types", "sliding_window"},
    ),
    "mistral": ("mistral", {}, {"rope_theta": 10000.0, "rope_scaling": None}, {"rope_parameters"}),
    "gemma": (
        "gemma3_text",
        {
            "layer_types": None,
            "sliding_window_pattern": 3,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_theta": 100.0},
            },
        },
        {
            "sliding_window_pattern": 3,
            "rope_theta": 1000.0,
            "rope_local_base_freq": 100.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {"rope_parameters", "layer_types"},
    ),
}


@pytest.mark.parametrize(("model_type", "config", "old", "new_keys"), OLD_FORMS.values(), ids=OLD_FORMS)
def test_configs_of_older_transformers_are_read(
    tmp_path: Path, model_type: str, config: dict[str, Any], old: dict[str, Any], new_keys: Collection[str]
) -> None:
    """The keys of published models from before transformers 5 have their meaning in transformers."""
    folder, texts = write(model_type, tmp_path, **config), random_texts(LENGTHS)
    want = hidden_states(folder, texts)
    saved = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in saved.items() if key not in new_keys}
    (folder / "config.json").write_text(json.dumps({**kept, **old}))
    np.testing.assert_array_equal(hidden_states(folder, texts), want)
    assert_same(want, reference(folder, texts))


@pytest.mark.parametrize("model_type", CAUSAL)
def test_a_checkpoint_under_a_head_is_read(tmp_path: Path, model_type: str) -> None:
    """Names with "model.", as in a model saved with a head, give the same network."""
    folder = write(model_type, tmp_path, head="AutoModelForCausalLM")
    texts = random_texts(LENGTHS)
    assert any(name.startswith("model.") for name in open_checkpoint((folder / "model.safetensors",)))
    assert_same(hidden_states(folder, texts), reference(folder, texts))


@pytest.mark.parametrize(
    ("model_type", "output"),
    [
        *((name, "scores") for name in DECODERS),
        *((name, "token_scores") for name in ("gemma", "llama", "mistral", "qwen2", "qwen3")),
    ],
)
def test_classes_equal_transformers(tmp_path: Path, model_type: str, output: Output) -> None:
    """The head of ...ForSequenceClassification reads the last token of each text, that of ...ForTokenClassification
    every token."""
    head = f"AutoModelFor{'Sequence' if output == 'scores' else 'Token'}Classification"
    folder, texts = write(model_type, tmp_path, head=head, num_labels=3), random_texts(LENGTHS)
    labels = "labels" if output == "scores" else "token_labels"
    spec = read_tiny_spec(folder, outputs=frozenset({output}), **{labels: ("a", "b", "c")})
    want = np.concatenate([rows.reshape(-1, 3) for rows in logits_of(folder, head, texts)])
    assert_same(numpy_answer(spec, texts, output), want)


@pytest.mark.parametrize("pooling", ["bos", "mean", "late"])
def test_eurobert_classifies_by_its_pooling(tmp_path: Path, pooling: str) -> None:
    """Late pooling is the mean of the tokens' logits. Published configs call the key clf_pooling."""
    head, texts = "AutoModelForSequenceClassification", random_texts(LENGTHS)
    folder = write("eurobert", tmp_path, head=head, num_labels=3, classifier_pooling=pooling)
    ids, mask = pad(texts, VOCAB_SIZE - 1)
    with torch.no_grad():
        want = load_reference(folder, head)(input_ids=ids, attention_mask=mask).logits.numpy()
    for key in ("classifier_pooling", "clf_pooling"):
        change_config(folder, **{"classifier_pooling": None, key: pooling})
        spec = read_tiny_spec(folder, outputs=frozenset({"scores"}), labels=("a", "b", "c"))
        assert_same(numpy_answer(spec, texts, "scores"), want)


@pytest.mark.parametrize(("pooling", "temperature"), [("avg", 1.0), ("avg", 0.5), ("cls", 1.0), ("last", 2.0)])
def test_a_nemotron_reranker_pools_and_divides(tmp_path: Path, pooling: str, temperature: float) -> None:
    """NVIDIA's own class over Llama, in plain torch: pooled states times `score.weight`, divided by the temperature."""
    folder, texts = CASES["llama_bidirec"].write(tmp_path), random_texts(LENGTHS)
    score = torch.randn(1, 32, generator=torch.Generator().manual_seed(1))
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "score.weight": score}, folder / "model.safetensors", {"format": "pt"})
    states = CASES["llama_bidirec"].reference(folder, texts)
    rows = np.split(states, np.cumsum([len(text) for text in texts])[:-1])
    pool = {"avg": lambda row: row.mean(0), "cls": lambda row: row[0], "last": lambda row: row[-1]}[pooling]
    want = np.stack([pool(row) for row in rows]) @ score.double().numpy().T / temperature
    change_config(folder, pooling=pooling, temperature=temperature)
    spec = read_tiny_spec(folder, outputs=frozenset({"scores"}), labels=("LABEL_0",))
    assert_same(numpy_answer(spec, texts, "scores"), want)


def test_the_score_of_a_head_of_two_answers_is_the_difference_of_their_probabilities(tmp_path: Path) -> None:
    """Querit's own class over Qwen3, in plain torch: two logits after the last token. The activation is tanh."""
    folder, texts = write("qwen3", tmp_path), random_texts(LENGTHS)
    generator = torch.Generator().manual_seed(1)
    head = {"head.weight": torch.randn(2, 32, generator=generator), "head.bias": torch.randn(2, generator=generator)}
    save_file({**load_file(folder / "model.safetensors"), **head}, folder / "model.safetensors", {"format": "pt"})
    last = torch.from_numpy(reference(folder, texts)[np.cumsum([len(text) for text in texts]) - 1])
    no, yes = torch.softmax(last @ head["head.weight"].double().mT + head["head.bias"].double(), dim=1).mT
    spec = read_tiny_spec(folder, outputs=frozenset({"scores"}), labels=("LABEL_0",))
    assert_same(np.tanh(numpy_answer(spec, texts, "scores")[:, 0]), (yes - no).numpy())


@pytest.mark.parametrize("layer", [2, 3])
def test_a_layerwise_reranker_ends_after_the_chosen_layer(tmp_path: Path, layer: int) -> None:
    """The head of that layer reads its last token. Tensors of later layers are no part of the network."""
    folder, texts = CASES["minicpm"].write(tmp_path), random_texts(LENGTHS)
    head = load_file(folder / "model.safetensors")[f"lm_head.{layer - 2}.linear_head.weight"]
    ends = np.cumsum([len(text) for text in texts]) - 1
    want = minicpm_reference(folder, texts, layers=layer)[ends] @ head.double().numpy().T
    spec = read_tiny_spec(folder, outputs=frozenset({"scores"}), labels=("LABEL_0",))
    assert_same(numpy_answer(cut_layers(spec, layer), texts, "scores"), want)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("model_type", CAUSAL)
def test_no_and_yes_equal_the_language_models_logits(tmp_path: Path, model_type: str, tied: bool) -> None:
    """Two numbers per text: the logits of those two words after its last token."""
    head = "AutoModelForCausalLM"
    folder, texts = (
        write(model_type, tmp_path, head=head, tie_word_embeddings=tied, **causal(model_type)),
        random_texts(LENGTHS),
    )
    want = np.stack([logits[0, -1, [NO, YES]] for logits in logits_of(folder, head, texts)])
    assert_same(numpy_answer(yes_no_spec(folder), texts, "scores"), want)


@pytest.mark.parametrize("word", [NO, YES])
def test_another_row_than_the_tied_words_is_refused(tmp_path: Path, word: int) -> None:
    """transformers 4 replaces the head's matrix by the words, 5 computes with it. Other rows do not matter."""
    folder = write("qwen3", tmp_path, head="AutoModelForCausalLM", tie_word_embeddings=True)
    path, texts = folder / "model.safetensors", random_texts(LENGTHS)
    tensors, want = load_file(path), numpy_answer(yes_no_spec(folder), texts, "scores")
    head = torch.zeros_like(tensors["model.embed_tokens.weight"])
    head[[NO, YES]] = tensors["model.embed_tokens.weight"][[NO, YES]]
    save_file({**tensors, "lm_head.weight": head}, path)
    np.testing.assert_array_equal(numpy_answer(yes_no_spec(folder), texts, "scores"), want)
    head[word] += 1
    save_file({**tensors, "lm_head.weight": head}, path)
    with pytest.raises(ModelUnavailable, match=r"tie_word_embeddings is true, but lm_head\.weight differs from"):
        numpy_answer(yes_no_spec(folder), texts, "scores")


def causal(model_type: str) -> dict[str, bool]:
    """Config entries of a causal model; the tiny Gemmas are bidirectional."""
    return {"use_bidirectional_attention": False} if model_type == "gemma3_text" else {}


def yes_no_spec(folder: Path, token_ids: tuple[int, int] = (NO, YES), **facts: Any) -> ModelSpec:
    yes_no = YesNo(prefix="", body="", suffix="", instruction="", token_ids=token_ids)
    return read_tiny_spec(folder, outputs=frozenset({"scores"}), yes_no=yes_no, **facts)


def test_gemma_ties_its_word_vectors_by_default(tmp_path: Path) -> None:
    """Published configs of Gemma omit tie_word_embeddings, whose default differs from that of other models."""
    folder = write("gemma3_text", tmp_path, **causal("gemma3_text"))
    config = dict(read_tiny_spec(folder).config)
    assert config.pop("tie_word_embeddings")
    texts = random_texts(LENGTHS)
    want = numpy_answer(yes_no_spec(folder), texts, "scores")
    np.testing.assert_array_equal(numpy_answer(yes_no_spec(folder, config=config), texts, "scores"), want)


def test_a_bidirectional_yes_no_model_is_refused(tmp_path: Path) -> None:
    """The engine computes the common beginning of several pairs once: scores would be plausible and wrong."""
    spec = yes_no_spec(write("qwen3", tmp_path, head="AutoModelForCausalLM", is_causal=False))
    with pytest.raises(ModelUnavailable, match="is bidirectional"):
        numpy_answer(spec, [[1]], "scores")


def test_embedding_gemma_equals_sentence_transformers(tmp_path: Path) -> None:
    """Mean pooling, and two Dense layers without bias or activation."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    source = write("gemma3_text", tmp_path / "source")
    for file in write_bert(tmp_path / "bert").glob("tokenizer*"):
        shutil.copy(file, source)
    torch.manual_seed(0)
    dense = [Dense(i, o, bias=False, activation_function=torch.nn.Identity()) for i, o in ((32, 80), (80, 32))]
    model = SentenceTransformer(modules=[Transformer(str(source)), Pooling(32, "mean"), *dense, Normalize()])
    model.save(str(tmp_path / "saved"), create_model_card=False)

    texts = random_texts(LENGTHS)
    ids, mask = pad(texts, VOCAB_SIZE - 1)
    with torch.no_grad():
        want = model.double().cpu()({"input_ids": ids, "attention_mask": mask})["sentence_embedding"].numpy()
    got = numpy_answer(read_tiny_spec(tmp_path / "saved"), texts, "dense")
    assert_same(got / np.linalg.norm(got, axis=1, keepdims=True), want)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_voyage_is_bidirectional_and_projected(tmp_path: Path, pooling: Pooling) -> None:
    """voyage-4-nano's own class over Qwen3: all tokens attend to all, `linear.weight` widens each, then the pooling."""
    folder = write("qwen3", tmp_path, head="AutoModelForCausalLM")
    for file in write_bert(tmp_path / "bert").glob("tokenizer*"):
        shutil.copy(file, folder)
    linear = torch.randn(80, 32, generator=torch.Generator().manual_seed(1)) * 0.3
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "linear.weight": linear}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"is_causal": False}
    (folder / "config.json").write_text(json.dumps(config))
    texts, model = random_texts(LENGTHS), load_reference(folder)
    model.config.is_causal = False
    ids, mask = pad(texts, VOCAB_SIZE - 1)
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state @ linear.double().mT
    rows = [state[seen.bool()] for state, seen in zip(states, mask, strict=True)]
    want = torch.stack([row.mean(0) if pooling == "mean" else row[-1] for row in rows]).numpy()

    voyage = {
        "architectures": ["VoyageQwen3BidirectionalEmbedModel"],
        "auto_map": {"AutoModel": "modeling.VoyageQwen3BidirectionalEmbedModel"},
        "use_bidirectional_attention": True,
        "num_labels": 80,
    }
    del config["is_causal"]
    (folder / "config.json").write_text(json.dumps(config | voyage))
    spec = spec_of(folder, pooling=pooling)
    assert spec.dimensions == 80
    assert_same(numpy_answer(spec, texts, "dense"), want)


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text"])
def test_softcapped_words_are_refused_only_for_scores(tmp_path: Path, model_type: str) -> None:
    """final_logit_softcapping changes the language model's logits, and nothing else."""
    folder = write(model_type, tmp_path)
    config = {**read_tiny_spec(folder).config, **causal(model_type), "final_logit_softcapping": 30.0}
    numpy_answer(read_tiny_spec(folder, config=config), [[1]])
    with pytest.raises(ModelUnavailable, match=r"final_logit_softcapping must be None; found 30\.0"):
        numpy_answer(yes_no_spec(folder, config=config), [[1]], "scores")
