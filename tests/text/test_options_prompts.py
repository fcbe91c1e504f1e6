"""The prompt before a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers.base.modules import Transformer
from tests.refusals import refuses
from tests.text.makers import (
    CHAT_SPECIALS,
    byte_level,
    content_of,
    make_encoder,
    make_spec,
    modernbert,
    prompt_tokens,
    qwen3,
    read,
    wordpiece,
)
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from vectord.checkpoints.spec import Adapter
from vectord.errors import InputTooLong, InvalidField, Untokenizable
from vectord.schema import TextOptions
from vectord.text.options import KIND_NAMES, find_adapter, find_prompt
from vectord.text.tokenizer import TextEncoder

PROMPTS = {"query": "query: ", "document": "", "sts": "same? "}


@pytest.mark.parametrize(
    ("options", "default_name", "prompt"),
    [
        ({}, None, ""),
        ({}, "query", "query: "),
        ({"prompt_name": "query"}, None, "query: "),
        ({"prompt_name": "document"}, "query", ""),
        ({"kind": "query"}, None, "query: "),
        ({"kind": "document"}, "query", ""),
        ({"kind": "query", "prompt_name": "sts"}, None, "same? "),
        ({"kind": "query", "prompt_name": "sts", "prompt": "mine: "}, "query", "mine: "),
        ({"prompt": ""}, "query", ""),
    ],
)
def test_the_most_explicit_prompt_counts(options: dict[str, Any], default_name: str | None, prompt: str) -> None:
    """Text, name, kind, then the model's default; an empty prompt text disables the default."""
    assert find_prompt(PROMPTS, TextOptions(**options), default_name) == prompt


@pytest.mark.parametrize("kind", ["query", "document"])
def test_a_kind_finds_the_model_s_own_name_for_it(kind: Any) -> None:
    """query, passage, search_document and other names; the usual name first."""
    for name in KIND_NAMES[kind]:
        assert find_prompt({"other": "no", name: "yes"}, TextOptions(kind=kind), None) == "yes"
    prompts = {name: name for name in reversed(KIND_NAMES[kind])}
    assert find_prompt(prompts, TextOptions(kind=kind), None) == KIND_NAMES[kind][0] == kind


def test_a_kind_without_a_prompt_has_none() -> None:
    """The default may be for the other kind."""
    assert find_prompt({"query": "query: "}, TextOptions(kind="document"), "query") == ""


def test_an_unknown_prompt_is_rejected_with_the_known_names() -> None:
    """The message does not repeat the client's value."""
    with pytest.raises(InvalidField) as caught:
        find_prompt(PROMPTS, TextOptions(prompt_name="pass<script>age"), None)
    assert caught.value.field == "prompt_name"
    assert "query, document, sts" in caught.value.message
    assert "script" not in caught.value.message


def test_a_prompt_name_for_a_model_without_prompts_is_rejected() -> None:
    """Ignoring it would give another vector."""
    with refuses(InvalidField, field="prompt_name"):
        find_prompt({}, TextOptions(prompt_name="query"), None)


def test_a_prompt_of_the_client_s_own_is_bounded() -> None:
    """It is read once for every input of the request."""
    assert find_prompt({}, TextOptions(prompt="x" * 2_000), None) == "x" * 2_000
    with pytest.raises(InputTooLong, match="`prompt` must have at most 2000 characters; got 2001"):
        find_prompt({}, TextOptions(prompt="x" * 2_001), None)
    with refuses(Untokenizable, field="prompt"):
        find_prompt({}, TextOptions(prompt="\udfff"), None)


def test_a_prompt_of_the_client_s_own_goes_before_the_text(tmp_path: Path) -> None:
    """The same ids as for the joined text."""
    encoder = make_encoder(tmp_path, wordpiece())
    (prompted,) = read(encoder, ["dog"], TextOptions(prompt="lazy "), truncate=False)
    (written,) = read(encoder, ["lazy dog"], TextOptions(), truncate=False)
    assert prompted.ids.tolist() == written.ids.tolist()


# --- how many tokens of it pooling leaves out -------------------------------------------------------------------


def leaves_out(folder: Path, tokenizer: Tokenizer, **facts: Any) -> TextEncoder:
    return make_encoder(folder, tokenizer, include_prompt=False, prompts=PROMPTS, **facts)


def bare() -> Tokenizer:
    return byte_level(*CHAT_SPECIALS)


@pytest.mark.parametrize("make", [wordpiece, modernbert, qwen3, bare], ids=lambda make: make.__name__)
@pytest.mark.parametrize("prompt", ["query: ", "Judge the passage: \n", "", " ", "Judge it<|endoftext|>"])
def test_prompt_tokens_are_those_sentence_transformers_leaves_out(make: Any, prompt: str, tmp_path: Path) -> None:
    """Including the special token before it, not one at its end."""
    tokenizer = make()
    encoder = leaves_out(tmp_path, tokenizer)
    (encoded,) = read(encoder, ["lazy dog"], TextOptions(prompt=prompt))
    assert prompt_tokens(encoded) == sentence_transformers_count(tmp_path / "reference", tokenizer, prompt)


def sentence_transformers_count(folder: Path, tokenizer: Tokenizer, prompt: str) -> int:
    names = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    specials = {
        role: name
        for role, candidates in (
            ("cls_token", ("[CLS]",)),
            ("sep_token", ("[SEP]",)),
            ("pad_token", ("[PAD]", "<|endoftext|>")),
        )
        for name in candidates
        if name in names
    }
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **specials)
    config = BertConfig(vocab_size=600, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return int(Transformer(str(folder)).preprocess(["lazy dog"], prompt=prompt).get("prompt_length") or 0)


def test_a_model_that_pools_the_prompt_leaves_out_nothing(tmp_path: Path) -> None:
    """The usual case."""
    encoder = make_encoder(tmp_path, wordpiece(), prompts=PROMPTS)
    (encoded,) = read(encoder, ["dog"], TextOptions(prompt_name="query"))
    assert prompt_tokens(encoded) == 0


def test_at_least_one_token_is_pooled(tmp_path: Path) -> None:
    """On the left, the prompt is cut first; a prompt that fills the limit leaves the last token."""
    encoder = leaves_out(tmp_path, wordpiece(), max_tokens=8)
    for length in range(12):
        text = "dog " * length
        for side in ("left", "right"):
            options = TextOptions(prompt="lazy lazy ", truncate_side=side)
            (one,) = read(encoder, [text], options)
            prompt = np.isin(one.ids, [2, *content_of(encoder, "lazy")])  # [CLS] and what is left of the prompt
            assert prompt_tokens(one) == np.count_nonzero(prompt)
    (one,) = read(encoder, ["dog"], TextOptions(prompt="lazy " * 20))
    assert (prompt_tokens(one), len(one.ids)) == (7, 8)


def test_token_ids_under_a_prompt_count_as_text(tmp_path: Path) -> None:
    """They are decoded; without a prompt all of them are pooled."""
    encoder = leaves_out(tmp_path, wordpiece())
    ids = content_of(encoder, "lazy dog")
    text, given = read(encoder, ["lazy dog", ids], TextOptions(prompt_name="query", own_ids=True))
    assert prompt_tokens(given) == prompt_tokens(text) > 0
    (plain,) = read(encoder, [ids], TextOptions(own_ids=True))
    assert prompt_tokens(plain) == 0


def test_the_default_prompt_is_not_pooled_either(tmp_path: Path) -> None:
    """Even if the request does not name it."""
    wordpiece().save(str(tmp_path / "tokenizer.json"))
    spec = make_spec(tmp_path / "tokenizer.json", prompts=PROMPTS, default_prompt_name="query", include_prompt=False)
    (one,) = read(TextEncoder(spec), ["dog"], TextOptions())
    assert prompt_tokens(one) == len(one.ids) - 2


ADAPTERS = [Adapter(name=name, scale=1.0, rank=1) for name in ("retrieval.query", "retrieval.passage", "separation")]


@pytest.mark.parametrize(
    ("options", "number"),
    [
        pytest.param({}, 2, id="the model's default"),
        pytest.param({"task": "separation", "kind": "query"}, 3, id="the task goes first"),
        pytest.param({"prompt_name": "retrieval.query", "kind": "document"}, 1, id="then the name of the prompt"),
        pytest.param({"prompt_name": "other"}, 2, id="a prompt without an adapter"),
        pytest.param({"kind": "query"}, 1, id="queries"),
        pytest.param({"kind": "clustering"}, 3, id="clustering"),
    ],
)
def test_a_request_chooses_an_adapter(options, number):
    """By its number, counted from 1; 0 for a model without adapters, whatever the request."""
    assert find_adapter(ADAPTERS, TextOptions(**options), "retrieval.passage") == number
    assert find_adapter([], TextOptions(**options)) == 0


def test_an_unknown_adapter_is_refused():
    """The error lists the model's own."""
    with pytest.raises(InvalidField) as caught:
        find_adapter(ADAPTERS, TextOptions(task="code.query"))
    assert caught.value.field == "task"
    assert "separation" in caught.value.message
