"""Queries and documents of a ColBERT model: pylate's tokens and rows."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from sentence_transformers.base.modules import Transformer
from tests.refusals import refuses
from tests.text.makers import attended, byte_level, make_encoder, modernbert, read, unigram, varied_texts, wordpiece
from tokenizers import AddedToken, Tokenizer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from vectord.checkpoints.spec import Colbert
from vectord.errors import InputTooLong, InvalidField, ModelUnavailable, Untokenizable
from vectord.schema import TextOptions
from vectord.text.sequence import TokenSequence
from vectord.text.tokenizer import TextEncoder

PLAIN = TextOptions()
QUERY = TextOptions(kind="query")
PYLATE = Colbert(
    dimensions=8,
    query_prefix="[Q] ",
    document_prefix="[D] ",
    query_length=12,
    document_length=20,
    expand_queries=True,
    skiplist_words=tuple(string.punctuation),
)
BGE_M3 = Colbert(dimensions=8, drops_first=True)


def with_markers(tokenizer: Tokenizer) -> Tokenizer:
    """With pylate's two tokens, whose names end in a space."""
    tokenizer.add_tokens([AddedToken(name, normalized=True) for name in ("[Q] ", "[D] ")])
    return tokenizer


def make(folder: Path, tokenizer: Tokenizer | None = None, **facts: Any) -> TextEncoder:
    return make_encoder(folder, tokenizer or with_markers(wordpiece()), **{"colbert": PYLATE, **facts})


@pytest.fixture
def encoder(tmp_path: Path) -> TextEncoder:
    return make(tmp_path)


def names(encoder: TextEncoder, ids: Any) -> list[str]:
    tokenizer = encoder._plain.tokenizer
    added = {id_: token.content for id_, token in tokenizer.get_added_tokens_decoder().items()}
    return [added.get(id_) or tokenizer.id_to_token(id_) for id_ in map(int, ids)]


def query(encoder: TextEncoder, text: str) -> TokenSequence:
    (encoded,) = read(encoder, [text], QUERY)
    return encoded


def document(encoder: TextEncoder, text: str, options: TextOptions = PLAIN) -> TokenSequence:
    (encoded,) = read(encoder, [text], options)
    return encoded


@pytest.mark.parametrize("attends", [False, True], ids=["unattended", "attended"])
def test_ids_equal_those_of_sentence_transformers(attends: bool, tmp_path: Path) -> None:
    """For texts of any script and length: its reader of pylate's models, which gives pylate's rows."""
    tokenizer = with_markers(modernbert())
    colbert = replace(PYLATE, attend_to_expansion=attends)
    encoder = make(tmp_path, tokenizer, colbert=colbert)
    expansion = {"strategy": "fixed", "attend": attends, "length": 12}
    reference = write_reference(tmp_path / "reference", tokenizer, document_length=20, query_expansion=expansion)
    for text in varied_texts(40):
        whole = reference.preprocess([text], prompt="[Q] ", task="query")
        one = query(encoder, text)
        assert one.ids.tolist() == whole["input_ids"][0].tolist()
        assert attended(one) == whole["attention_mask"][0].sum()
        whole = reference.preprocess([text], prompt="[D] ", task="document")
        one = document(encoder, text)
        assert one.ids.tolist() == whole["input_ids"][0].tolist()
        assert attended(one) == len(one.ids)


def write_reference(folder: Path, tokenizer: Tokenizer, **settings: Any) -> Transformer:
    config = BertConfig(vocab_size=600, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(folder)
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names).save_pretrained(folder)
    return Transformer(str(folder), **settings)


def test_a_query_may_be_chosen_by_the_name_of_its_prompt(tmp_path: Path) -> None:
    """Where an API has no other field: TEI and gRPC."""
    encoder = make(tmp_path, names_kinds=True)
    (named,) = read(encoder, ["a dog"], TextOptions(prompt_name="query"))
    np.testing.assert_array_equal(named.ids, query(encoder, "a dog").ids)
    (named,) = read(encoder, ["a dog"], TextOptions(prompt_name="document"))
    np.testing.assert_array_equal(named.ids, document(encoder, "a dog").ids)
    with refuses(InvalidField, field="prompt_name"):
        read(encoder, ["a dog"], TextOptions(prompt_name="passage"))


def test_a_query_is_filled_up_with_end_tokens_where_there_is_no_mask(tmp_path: Path) -> None:
    """As pylate does for LFM2, whose tokenizer has an eos_token only."""
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    colbert = Colbert(dimensions=8, query_length=9, expand_queries=True)
    encoder = make(tmp_path, byte_level("<|im_end|>"), colbert=colbert)
    one = query(encoder, "dog")
    assert names(encoder, one.ids)[one.length.kept :] == ["<|im_end|>"] * (9 - one.length.kept)


def test_a_model_may_not_expand_queries(tmp_path: Path) -> None:
    """The rows are the query's tokens, punctuation too."""
    colbert = Colbert(dimensions=8, query_prefix="[Q] ", query_length=9, skiplist_words=("?",))
    encoder = make(tmp_path, colbert=colbert)
    one = query(encoder, "dog?")
    assert names(encoder, one.ids) == ["[CLS]", "[Q] ", "dog", "?", "[SEP]"]
    assert one.rows.tolist() == [0, 1, 2, 3, 4]
    assert attended(one) == 5


def test_documents_keep_no_punctuation(encoder: TextEncoder) -> None:
    """Special tokens and the marker stay."""
    one = document(encoder, "lazy, dog.")
    assert names(encoder, one.ids) == ["[CLS]", "[D] ", "lazy", ",", "dog", ".", "[SEP]"]
    assert one.rows.tolist() == [0, 1, 2, 4, 6]
    assert attended(one) == 7


def test_a_skipped_word_without_a_token_skips_nothing(tmp_path: Path) -> None:
    """As the unknown token, it would skip every unknown word of a document."""
    encoder = make(tmp_path, colbert=Colbert(dimensions=8, skiplist_words=("\u2603",)))
    one = document(encoder, "\u2602 dog")
    assert names(encoder, one.ids) == ["[CLS]", "[UNK]", "dog", "[SEP]"]
    assert one.rows.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("kind", "limit"), [("query", 12), ("document", 20)])
def test_each_kind_has_its_own_limit(encoder: TextEncoder, kind: Any, limit: int) -> None:
    """Special tokens and marker count, and stay; the text is cut at its end, or rejected."""
    options = TextOptions(kind=kind)
    (one,) = read(encoder, ["lazy " + "dog " * 30], options)
    marker = "[Q] " if kind == "query" else "[D] "
    assert names(encoder, one.ids) == ["[CLS]", marker, "lazy", *["dog"] * (limit - 4), "[SEP]"]
    assert (one.length.seen, one.length.kept, attended(one)) == (34, limit, limit)
    with refuses(InputTooLong, index=1, limit=limit, given=34):
        read(encoder, ["a", "lazy " + "dog " * 30], options, truncate=False)


def test_the_model_s_limit_holds_above_its_lengths(tmp_path: Path) -> None:
    """Mask tokens need positions too."""
    one = query(make(tmp_path, max_tokens=7), "dog")
    assert len(one.ids) == 7


def test_bge_m3_reads_all_texts_alike(tmp_path: Path) -> None:
    """The same tokens as for a dense vector; the first row does not count."""
    tokenizer = unigram()
    encoder = make(tmp_path, tokenizer, colbert=BGE_M3, pooling="cls", max_tokens=30)
    for options in (QUERY, PLAIN):
        for text in varied_texts(20):
            (one,) = read(encoder, [text], options)
            whole = tokenizer.encode(text).ids
            assert one.ids.tolist() == (whole if len(whole) <= 30 else [*whole[:29], whole[-1]])
            assert (one.length.seen, one.length.kept) == (len(whole), len(one.ids))
            assert one.rows.tolist() == list(range(1, len(one.ids)))
            assert attended(one) == len(one.ids)


def test_a_marker_without_a_space_in_its_name(tmp_path: Path) -> None:
    """Stanford's [unused0], which configurations write with a space at the end."""
    encoder = make(tmp_path, wordpiece(), colbert=Colbert(dimensions=8, query_prefix="[unused0] "))
    assert names(encoder, query(encoder, "dog").ids) == ["[CLS]", "[unused0]", "dog", "[SEP]"]


def test_a_marker_inside_a_text_is_one_token(tmp_path: Path) -> None:
    """pylate adds it to the tokenizer, where the vocabulary alone has it."""
    encoder = make(tmp_path, wordpiece(), colbert=Colbert(dimensions=8, query_prefix="[unused0]"))
    assert names(encoder, query(encoder, "lazy[unused0]dog").ids) == [
        *("[CLS]", "[unused0]", "lazy", "[unused0]", "dog", "[SEP]")
    ]


def test_a_marker_is_not_written_twice(tmp_path: Path) -> None:
    """sentence-transformers writes it into the kind's prompt; the rest of that prompt follows it."""
    encoder = make(tmp_path, prompts={"query": "[Q] lazy ", "document": "[D] "})
    assert names(encoder, query(encoder, "dog").ids[:5]) == ["[CLS]", "[Q] ", "lazy", "dog", "[SEP]"]
    assert names(encoder, document(encoder, "dog").ids) == ["[CLS]", "[D] ", "dog", "[SEP]"]
    one = document(encoder, "dog", TextOptions(prompt="lazy "))
    assert names(encoder, one.ids) == ["[CLS]", "[D] ", "lazy", "dog", "[SEP]"]


def test_a_tokenizer_without_specials(tmp_path: Path) -> None:
    """The marker follows the first token, as in pylate; a text without tokens is rejected."""
    tokenizer = with_markers(byte_level())
    encoder = make(tmp_path, tokenizer, colbert=Colbert(dimensions=8, document_prefix="[D] ", document_length=6))
    one = document(encoder, "lazy dog dog dog dog dog dog")
    assert names(encoder, one.ids)[1] == "[D] "
    assert len(one.ids) == 6
    with refuses(Untokenizable, index=1):
        read(encoder, ["a", ""], PLAIN)


@pytest.mark.parametrize(
    ("colbert", "message"),
    [
        (Colbert(dimensions=8, query_prefix="[Query] "), "has no token '\\[Query\\] '"),
        (Colbert(dimensions=8, query_length=3, query_prefix="[Q] "), "fill all 3 tokens"),
        (Colbert(dimensions=8, expand_queries=True), "has neither \\[MASK\\] nor <mask> nor an eos_token"),
    ],
    ids=["no marker", "no room", "no mask token"],
)
def test_a_missing_token_stops_the_start(colbert: Colbert, message: str, tmp_path: Path) -> None:
    """One sentence that names the file."""
    tokenizer = with_markers(byte_level() if colbert.expand_queries else modernbert())
    with pytest.raises(ModelUnavailable, match=rf"tokenizer\.json: .*{message}"):
        make(tmp_path, tokenizer, colbert=colbert)


@pytest.mark.parametrize(("library", "skipped"), [("colbert-ai", True), (None, False)])
def test_colbert_ai_skips_the_first_token_of_each_sign(library: Any, skipped: bool, tmp_path: Path) -> None:
    """In SentencePiece's vocabularies that is the mark of a word's start, or the sign with it."""
    colbert = Colbert(dimensions=8, skiplist_words=("fox",), library=library)
    encoder = make(tmp_path, unigram(), colbert=colbert)
    (first,) = {document(encoder, f"{word} fox").ids.tolist()[-2] for word in ("dog", "lazy")}
    one = document(encoder, "dog fox")
    assert (one.ids.tolist().index(first) not in one.rows) == skipped
