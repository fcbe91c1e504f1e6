"""Yes-or-no rerankers: how they are recognized, their question, and the ids of their answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.folders import NEW, WORDS, write_json, write_modules, write_transformer
from tests.checkpoints.reading import refusal, spec_of

from vectord.checkpoints.spec import YesNo

QWEN3 = "Qwen/Qwen3-Reranker-0.6B"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# assembled from the model card's own code
ASKED = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    f"<Instruct>: {INSTRUCTION}\n<Query>: Q\n<Document>: D"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def write_judge(folder: Path, *, architecture: str = "Qwen3ForCausalLM", **config: Any) -> Path:
    """Write a language model with the tokens no (14) and yes (15)."""
    write_transformer(folder, **{"model_type": "qwen3", "architectures": [architecture], **config})
    return add_answers(folder, "no", "yes")


def add_answers(folder: Path, *answers: str) -> Path:
    path = folder / "tokenizer.json"
    fields = json.loads(path.read_text())
    fields["model"]["vocab"] |= {answer: len(WORDS) + i for i, answer in enumerate(answers)}
    path.write_text(json.dumps(fields))
    return folder


def yes_no_of(folder: Path, name: str = QWEN3) -> YesNo:
    yes_no = spec_of(folder, name=name).yes_no
    assert yes_no is not None
    return yes_no


@pytest.mark.parametrize("name", [QWEN3, "me/my-Qwen3-Reranker-tuned", "qwen3-rerank-small"])
def test_a_qwen3_reranker_is_recognized_by_its_name(name: str, folder: Path) -> None:
    """The catalogue's models, and derived models that kept the name."""
    spec = spec_of(write_judge(folder), name=name)
    assert spec.outputs == {"scores"}
    assert (spec.labels, spec.pooling, spec.score_activation, spec.reranks) == ((), None, "sigmoid", True)
    assert yes_no_of(folder, name).token_ids == (14, 15)


def test_the_question_equals_the_model_card(folder: Path) -> None:
    """Byte for byte: prefix, body with its three fields, suffix."""
    yes_no = yes_no_of(write_judge(folder))
    body = yes_no.body.format(instruction=yes_no.instruction, query="Q", document="D")
    assert yes_no.prefix + body + yes_no.suffix == ASKED


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_conversion_is_recognized_by_its_chat_template(place: str, folder: Path) -> None:
    """Under any name; the template itself is never run."""
    write_judge(folder)
    assert spec_of(folder).outputs == {"dense", "tokens"}  # a plain Qwen3 embeds
    template = (
        "{{ boom() }} Judge whether the Document meets the requirements based on the Query and the Instruct provided"
    )
    if place.endswith("jinja"):
        (folder / place).write_text(template)
    else:
        write_json(folder / place, {"chat_template": template})
    assert spec_of(folder).outputs == {"scores"}


def test_a_conversion_to_a_classifier_keeps_the_question(folder: Path) -> None:
    """Its head gives one logit a pair, so no answer ids are needed; the words around the pair stay."""
    spec = spec_of(write_judge(folder, architecture="Qwen3ForSequenceClassification", num_labels=1), name=QWEN3)
    assert (spec.outputs, spec.labels) == ({"scores"}, ("LABEL_0",))
    assert yes_no_of(folder).token_ids is None and "{document}" in yes_no_of(folder).body


def test_a_qwen3_classifier_that_is_not_a_reranker_has_no_question(folder: Path) -> None:
    """It reads its text unchanged."""
    write_judge(folder, architecture="Qwen3ForSequenceClassification", num_labels=1)
    assert spec_of(folder).yes_no is None


def test_the_operator_chooses_the_task_of_a_language_model(folder: Path) -> None:
    """A reranker's hidden states can be pooled, and any language model can answer yes or no."""
    write_judge(folder, model_type="qwen2", architecture="Qwen2ForCausalLM")
    assert spec_of(folder).outputs == {"dense", "tokens"}
    assert spec_of(folder, task="rerank").outputs == {"scores"}
    assert spec_of(write_judge(folder), name=QWEN3, task="embed").outputs == {"dense", "tokens"}


def test_an_embedding_model_is_not_a_reranker(folder: Path) -> None:
    """Qwen3-Embedding was saved as a language model too; its modules define pooling."""
    write_judge(folder)
    write_modules(folder, "Transformer", "Pooling")
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    assert spec_of(folder).pooling == "last"
    assert "task rerank" in refusal(folder, task="rerank")


def test_a_reranker_with_another_question_is_refused(folder: Path) -> None:
    """Qwen3's question would give meaningless scores."""
    write_judge(folder, model_type="qwen2", architecture="Qwen2ForCausalLM")
    assert "whose question is not known" in refusal(folder, name="other/other-rerank-v9")


def test_a_vocabulary_without_the_answers_is_refused(folder: Path) -> None:
    """The message names tokenizer.json and the words."""
    write_transformer(folder, model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    message = refusal(folder, name=QWEN3)
    assert "tokenizer.json" in message
    assert "'no' is not a token" in message


@pytest.mark.parametrize(
    ("name", "architecture", "answers", "ids"),
    [
        ("mixedbread-ai/mxbai-rerank-base-v2", "Qwen2ForCausalLM", ("0", "1"), (14, 15)),
        ("zeroentropy/zerank-1", "Qwen3ForCausalLM", ("Yes",), (14,)),
        ("BAAI/bge-reranker-v2-gemma", "GemmaForCausalLM", ("Yes",), (14,)),
    ],
)
def test_other_rerankers_have_their_own_question_and_answers(
    name: str, architecture: str, answers: tuple[str, ...], ids: tuple[int, ...], folder: Path
) -> None:
    """The words are the catalogue's, the ids the tokenizer's; a vocabulary without them is refused."""
    model_type = architecture.removesuffix("ForCausalLM").lower()
    write_transformer(folder, model_type=model_type, architectures=[architecture])
    assert f"{answers[0]!r} is not a token" in refusal(folder, name=name)
    yes_no = yes_no_of(add_answers(folder, *answers), name)
    assert (yes_no.answers, yes_no.token_ids, spec_of(folder, name=name).scores_width) == (answers, ids, len(ids))


@pytest.mark.parametrize("name", ["nvidia/llama-nemotron-rerank-1b-v2", "my/tuned-reranker"])
def test_nemotrons_rerankers_read_question_and_passage(name: str, folder: Path) -> None:
    """As a pair of the tokenizer's they would get plausible scores. They read both ways, so pairs share no prefix."""
    classes = ["LlamaBidirectionalForSequenceClassification"]
    write_transformer(folder, model_type="llama_bidirec", architectures=classes, num_labels=1)
    yes_no = yes_no_of(folder, name)
    assert yes_no.body == "question:{query} \n \n passage:{document}"
    assert (yes_no.token_ids, yes_no.shares_prefix) == (None, False)


@pytest.mark.parametrize("name", ["Querit/Querit-4B", "my/tuned-reranker"])
def test_a_head_of_two_answers_is_recognized_by_its_class(name: str, folder: Path) -> None:
    """As Querit's own code for MTEB reads a pair: its question, and a token at the end whose state the head reads."""
    spec = spec_of(write_judge(folder, architecture="MLQwen3Model"), name=name)
    assert (spec.outputs, spec.labels, spec.score_activation) == ({"scores"}, ("LABEL_0",), "tanh")
    yes_no = yes_no_of(folder, name)
    body = yes_no.body.format(instruction=yes_no.instruction, query="Q", document="D")
    asked = "Judge whether the Content meets the requirements based on the Query. Query: Q; Content: D[CLS]"
    assert yes_no.prefix + body + yes_no.suffix == asked


@pytest.mark.parametrize("name", ["BAAI/bge-reranker-v2-minicpm-layerwise", "my/tuned"])
def test_a_layerwise_reranker_is_recognized_by_its_class(name: str, folder: Path) -> None:
    """Its heads give the score, so no answer has an id; the words around the pair are BAAI's."""
    write_transformer(folder, model_type="minicpm", architectures=["LayerWiseMiniCPMForCausalLM"])
    for spec in (spec_of(folder, name=name), spec_of(folder, name=name, task="rerank")):
        assert (spec.outputs, spec.labels, spec.reranks) == ({"scores"}, ("LABEL_0",), True)
        assert (spec.yes_no.prefix, spec.yes_no.body[0], spec.yes_no.token_ids) == ("<s>", "A: {query}", None)


def write_logit_score(folder: Path, **fields: Any) -> Path:
    """Save a CrossEncoder of a language model as sentence-transformers 6 does."""
    write_judge(folder)
    write_modules(folder, NEW["Transformer"], "sentence_transformers.cross_encoder.modules.logit_score.LogitScore")
    write_json(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    write_json(folder / "sentence_bert_config.json", {"transformer_task": "text-generation"})
    write_json(folder / "1_LogitScore" / "config.json", fields)
    return folder


def test_logit_score_defines_the_answer_ids(folder: Path) -> None:
    """The module's own ids take precedence over the words."""
    write_logit_score(folder, true_token_id=3, false_token_id=7)
    assert yes_no_of(folder).token_ids == (7, 3)


def test_an_unknown_chat_template_is_refused(folder: Path) -> None:
    """The model needs its training question, and its template would have to be run."""
    write_logit_score(folder, true_token_id=3, false_token_id=7)
    assert "the question that this reranker expects" in refusal(folder)
