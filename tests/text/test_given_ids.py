"""Token ids in place of a text: the model's own are taken, others are decoded or refused, none embedded as noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.text.makers import ALL, byte_level, make_spec, qwen3, wordpiece
from tokenizers import AddedToken, Tokenizer

from vectord.checkpoints.spec import Colbert
from vectord.errors import EmptyInput, ForeignIds, InputTooLong, Untokenizable
from vectord.schema import TextOptions
from vectord.text.foreign import ForeignTable
from vectord.text.tokenizer import TextEncoder

PLAIN = TextOptions()
# Its first ids are those of special tokens in some of the models here.
WORDS = [*"0123456789", "the ", "lazy ", "dog ", "東京"]
THE, LAZY, DOG, TOKYO, END = 10, 11, 12, 13, 100257
TABLE = ForeignTable([word.encode() for word in WORDS], frozenset({END}))


def make(folder: Path, tokenizer: Tokenizer, foreign: ForeignTable | None = TABLE, **facts: Any) -> TextEncoder:
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return TextEncoder(make_spec(path, **facts), foreign)


def read(encoder: TextEncoder, *inputs: Any, options: TextOptions = PLAIN) -> list[list[int]]:
    return [one.ids.tolist() for one in encoder.encode(inputs, options, truncate=True)]


@pytest.mark.parametrize("make_tokenizer", ALL, ids=lambda make: make.__name__)
@pytest.mark.parametrize("foreign", [None, TABLE], ids=["no table", "a table"])
def test_ids_between_the_model_s_special_tokens_are_its_own(make_tokenizer: Any, foreign: Any, tmp_path: Path) -> None:
    """As its tokenizer makes them of a text; of an empty one, too."""
    encoder = make(tmp_path, make_tokenizer(), foreign)
    (whole,) = read(encoder, "lazy dog")
    assert read(encoder, whole) == [whole]
    (nothing,) = read(encoder, "")
    assert read(encoder, nothing) == [nothing]


@pytest.mark.parametrize("make_tokenizer", ALL, ids=lambda make: make.__name__)
def test_without_them_they_are_refused_with_what_to_do(make_tokenizer: Any, tmp_path: Path) -> None:
    """Bare content, one special of two, specials in the wrong place: all of it may be anybody's."""
    encoder = make(tmp_path, make_tokenizer(), None)
    (whole,) = read(encoder, "lazy dog")
    first, last = encoder._plain.frame.specials
    content = whole[first : len(whole) - last]
    halves = [whole[:-1]] if last else []
    for ids in (content, [*content, *content], whole[::-1], *halves):
        with pytest.raises(ForeignIds) as refused:
            read(encoder, "fine", ids)
        assert (refused.value.field, refused.value.index) == ("input", 1)
        assert "`input[1]` has token ids that are not this model's" in refused.value.message
        assert "check_embedding_ctx_length=False" in refused.value.message


@pytest.mark.parametrize("make_tokenizer", ALL, ids=lambda make: make.__name__)
def test_foreign_ids_are_read_as_the_text_that_they_stand_for(make_tokenizer: Any, tmp_path: Path) -> None:
    """To the token: specials and all; beside texts and the model's own ids, in order."""
    encoder = make(tmp_path, make_tokenizer())
    expected = read(encoder, "the lazy dog ", "lazy dog 東京", "fox")
    assert read(encoder, [THE, LAZY, DOG], [LAZY, DOG, TOKYO, END], expected[2]) == expected


def test_a_prompt_goes_before_them_too(tmp_path: Path) -> None:
    """They are a text like any other."""
    encoder = make(tmp_path, wordpiece())
    options = TextOptions(prompt="query: ")
    assert read(encoder, [LAZY, DOG], options=options) == read(encoder, "lazy dog ", options=options)


def test_a_long_one_is_cut_or_refused_by_its_own_tokens(tmp_path: Path) -> None:
    """Those that the model reads, and not those of the client."""
    encoder = make(tmp_path, wordpiece(), max_tokens=8)
    (one,) = encoder.encode([[DOG] * 30], PLAIN, truncate=True)
    assert (one.length.seen, one.length.kept) == (32, 8)
    with pytest.raises(InputTooLong, match="at most 8 tokens; got 32"):
        encoder.encode([[DOG] * 30], PLAIN, truncate=False)
    with pytest.raises(InputTooLong, match="at most 2000 token ids; got 2001"):
        encoder.encode([[DOG] * 2001], PLAIN, truncate=True)


@pytest.mark.parametrize("ids", [[LAZY, 14], [-1], [10**30], [100258, LAZY]], ids=str)
def test_ids_of_no_known_vocabulary_are_refused(ids: list[int], tmp_path: Path) -> None:
    """Neither the model's nor in the table."""
    with pytest.raises(ForeignIds) as refused:
        read(make(tmp_path, wordpiece()), ids)
    assert refused.value.index == 0
    assert not any(str(id_) in refused.value.message for id_ in ids if abs(id_) > 9)


def test_whose_they_are_may_be_known(tmp_path: Path) -> None:
    """Of APIs whose ids are the model's by contract they are taken as they are."""
    encoder = make(tmp_path, wordpiece())
    content = encoder._plain.content("lazy dog").tolist()
    assert read(encoder, content, options=TextOptions(own_ids=True)) == [content]


def test_ids_between_special_tokens_must_be_in_the_vocabulary(tmp_path: Path) -> None:
    """They claim to be the model's, so no table is asked."""
    encoder = make(tmp_path, wordpiece())
    (whole,) = read(encoder, "dog")
    with pytest.raises(Untokenizable):
        read(encoder, [whole[0], 10**6, whole[-1]])


def test_no_ids_are_no_input(tmp_path: Path) -> None:
    """Whoever they are of."""
    for foreign in (None, TABLE):
        with pytest.raises(EmptyInput):
            read(make(tmp_path, wordpiece(), foreign), [])


def test_a_tokenizer_without_specials_knows_its_ids_by_their_text(tmp_path: Path) -> None:
    """Those that it would make again of what they decode to."""
    encoder = make(tmp_path, byte_level())
    (whole,) = read(encoder, "The quick brown fox")
    assert read(encoder, whole) == [whole]
    letters = [encoder._plain.content(letter).tolist()[0] for letter in "The"]
    assert letters != encoder._plain.content("The").tolist()
    with pytest.raises(ForeignIds):
        read(encoder, letters)  # the same text, but no tokenizer that merges would make these of it
    with pytest.raises(ForeignIds):
        read(encoder, [encoder.vocab_size])
    many = ForeignTable([b"%d " % i for i in range(500)])
    assert read(make(tmp_path, byte_level(), many), letters) == read(encoder, "".join(f"{id_} " for id_ in letters))
    with pytest.raises(InputTooLong, match="token ids"):
        read(encoder, whole * 5000)


def test_colbert_s_queries_take_them_too(tmp_path: Path) -> None:
    """Own ones are decoded and encoded again, with marker and mask tokens; foreign ones are texts."""
    tokenizer = wordpiece()
    tokenizer.add_tokens([AddedToken("[Q] ", normalized=True)])
    colbert = Colbert(dimensions=8, query_prefix="[Q] ", query_length=9, expand_queries=True)
    encoder = make(tmp_path, tokenizer, colbert=colbert)
    (own,) = read(encoder, "lazy dog")
    options = TextOptions(kind="query")
    expected, *others = (
        one.ids.tolist() for one in encoder.encode_colbert(["lazy dog", own, [LAZY, DOG]], options, truncate=True)
    )
    assert others == [expected] * 2
    with pytest.raises(ForeignIds):
        encoder.encode_colbert([own[1:]], options, truncate=True)


def test_one_special_token_is_enough_where_the_model_has_one(tmp_path: Path) -> None:
    """Qwen3's end of text, which no other vocabulary has at that place."""
    encoder = make(tmp_path, qwen3())
    (whole,) = read(encoder, "dog")
    assert read(encoder, whole[-1:]) == [whole[-1:]]
    with pytest.raises(ForeignIds):
        read(encoder, [*whole, whole[0]])
