"""Two texts together: joined as the tokenizer joins them, truncated by rule, with correct lengths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.text.makers import PAIRING, make_encoder, modernbert, read, varied_texts, wordpiece
from tokenizers import Tokenizer, processors

from vectord.errors import InputTooLong, ModelCannot, Untokenizable
from vectord.schema import Side, TextOptions
from vectord.text.sequence import QUERY_INDEX, TokenSequence
from vectord.text.tokenizer import TextEncoder

PLAIN = TextOptions()
LEFT = TextOptions(truncate_side="left")


@pytest.fixture
def encoder(tmp_path: Path) -> TextEncoder:
    return make_encoder(tmp_path, wordpiece(), max_tokens=32)


def pair(encoder: TextEncoder, query: str, passage: str, **options: Any) -> TokenSequence:
    (encoded,) = read(encoder, [passage], options.pop("options", PLAIN), query=query, **options)
    return encoded


def content(encoder: TextEncoder, text: str) -> list[int]:
    """Its tokens without [CLS] and [SEP]."""
    return read(encoder, [text], PLAIN)[0].ids.tolist()[1:-1]


@pytest.mark.parametrize("make", PAIRING, ids=lambda make: make.__name__)
def test_pairs_that_fit_equal_the_tokenizer_s_own(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    """Ids and types of `encode(query, passage)` in any script, for a query tokenized once."""
    own = make()
    encoder = make_encoder(tmp_path, own, max_tokens=2000)
    own = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    queries, passages = varied_texts(8, seed=1), varied_texts(30, seed=2)
    for query in queries:
        encoded = read(encoder, passages, PLAIN, query=query, truncate=False)
        as_list = read(encoder, [(query, passage) for passage in passages], PLAIN, truncate=False)
        for passage, one, listed in zip(passages, encoded, as_list, strict=True):
            expected = own.encode(query, passage)
            assert one.ids.tolist() == listed.ids.tolist() == expected.ids
            assert one.type_ids.tolist() == listed.type_ids.tolist() == expected.type_ids
            assert one.length.seen == one.length.kept == len(expected.ids)
            assert (one.parts[0].seen, one.parts[1].seen) == tuple(
                len(own.encode(text, add_special_tokens=False).ids) for text in (query, passage)
            )


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("make", PAIRING, ids=lambda make: make.__name__)
def test_pairs_are_cut_as_the_tokenizer_cuts(make: Callable[[], Tokenizer], side: Side, tmp_path: Path) -> None:
    """Equal to its longest_first, on either side and for either longer text."""
    own = make()
    encoder = make_encoder(tmp_path, own, max_tokens=24)
    own.enable_truncation(24, direction=side, strategy="longest_first")
    texts, options = varied_texts(60), TextOptions(truncate_side=side)
    pairs = list(zip([*texts, "fox " * 40, "fox"], [*reversed(texts), "", "dog " * 40], strict=True))
    for (first, second), listed in zip(pairs, read(encoder, pairs, options), strict=True):
        expected = own.encode(first, second)
        for one in (listed, pair(encoder, first, second, options=options)):
            assert one.ids.tolist() == expected.ids
            assert one.type_ids.tolist() == expected.type_ids
            assert one.length.kept == len(one.ids)
            kept = [expected.sequence_ids.count(text) for text in (0, 1)]
            assert [part.kept for part in one.parts] == kept


@pytest.mark.parametrize("options", [PLAIN, LEFT], ids=["right", "left"])
def test_a_query_of_bge_s_rerankers_gets_three_quarters(options: TextOptions, tmp_path: Path) -> None:
    """At most, and only of a pair that does not fit."""
    encoder = make_encoder(tmp_path, wordpiece(), max_tokens=32, caps_query=True)
    fox, dog = content(encoder, "fox"), content(encoder, "dog")
    for (query, passage), kept in {
        (28, 9): (24, 5),
        (50, 9): (24, 5),
        (50, 1): (24, 1),
        (9, 50): (9, 20),
        (26, 3): (26, 3),
    }.items():
        one = pair(encoder, "fox " * query, "dog " * passage, options=options)
        assert one.ids.tolist() == [2, *fox * kept[0], 3, *dog * kept[1], 3]
        assert [(part.seen, part.kept) for part in one.parts] == [(query, kept[0]), (passage, kept[1])]


def test_long_pairs_are_rejected_unless_they_may_be_cut(encoder: TextEncoder) -> None:
    """By the passage's index if the query leaves room, else by the query."""
    with refuses(InputTooLong, field=None, index=1, limit=32, given=44):
        read(encoder, ["dog", "dog " * 40], PLAIN, query="fox", truncate=False)
    with refuses(InputTooLong, field=None, index=QUERY_INDEX, limit=32, given=43):
        read(encoder, ["dog"], PLAIN, query="fox " * 40, truncate=False)
    (exact,) = read(encoder, ["dog " * 28], PLAIN, query="fox", truncate=False)
    assert len(exact.ids) == 32
    with refuses(InputTooLong, index=0, limit=32, given=33):
        read(encoder, [("fox", "dog " * 29), ("a", "b")], PLAIN, truncate=False)


def test_absurdly_long_texts_are_cut_by_characters(encoder: TextEncoder) -> None:
    """8,000 characters for 32 tokens; the lengths state the cut of both texts."""
    one = pair(encoder, "x" * 9_000, "y " * 5_000)
    assert (one.parts[0].characters_cut, one.parts[1].characters_cut) == (1_000, 2_000)
    assert one.length.characters_cut == 3_000
    with refuses(InputTooLong, index=QUERY_INDEX, values={"most": 8000, "what": "characters", "size": 9000}):
        read(encoder, ["y"], PLAIN, query="x" * 9_000, truncate=False)


def test_a_tokenizer_may_not_join_pairs(tmp_path: Path) -> None:
    """It serves as an embedding model, and rejects pairs."""
    tokenizer = wordpiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $B [SEP] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    encoder = make_encoder(tmp_path, tokenizer)
    assert not encoder.reads_pairs
    assert len(content(encoder, "fox")) == 1
    with pytest.raises(ModelCannot):
        read(encoder, ["b"], PLAIN, query="a")


def test_a_pair_without_any_token_is_refused(tmp_path: Path) -> None:
    """Of a tokenizer without special tokens: the network would have no row to score."""
    tokenizer = wordpiece()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    with pytest.raises(Untokenizable, match="no tokens"):
        read(make_encoder(tmp_path, tokenizer), ["fox", ""], PLAIN, query="")


def test_a_limit_without_room_for_both_texts_makes_pairs_impossible(tmp_path: Path) -> None:
    """Three special tokens and one token leave no room for the second text."""
    assert not make_encoder(tmp_path, wordpiece(), max_tokens=4).reads_pairs
    assert make_encoder(tmp_path, wordpiece(), max_tokens=5).reads_pairs


def test_tokenizers_without_types_have_zeros(tmp_path: Path) -> None:
    """As many as ids."""
    one = pair(make_encoder(tmp_path, modernbert(), max_tokens=40), "fox", "dog " * 100)
    assert len(one.ids) == len(one.type_ids) == 40
    assert not one.type_ids.any()
