"""Texts to tokens: the ids of transformers, correct lengths, and a clear error for every invalid input."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.checkpoints.folders import GIT_LFS_POINTER, WORDS, write_json, write_tokenizer, write_transformer
from tests.refusals import refuses
from tests.text.makers import (
    ALL,
    CHAT_SPECIALS,
    SENTENCES,
    byte_level,
    make_encoder,
    read,
    unigram,
    varied_texts,
    wordpiece,
)
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from vectord.checkpoints.files.read import Settings
from vectord.checkpoints.hub import resolve
from vectord.checkpoints.reader import read_spec
from vectord.checkpoints.spec import Colbert, Located, ModelSpec, YesNo
from vectord.errors import InputTooLong, InvalidField, ModelUnavailable, Untokenizable, VectordError
from vectord.schema import Input, Side, TextOptions
from vectord.text.sequence import TokenSequence
from vectord.text.tokenizer import TextEncoder

CLS, SEP = 101, 102
PLAIN = TextOptions()


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return read_spec(resolve("all-MiniLM-L6-v2", offline=True))


@pytest.fixture(scope="module")
def encoder(spec: ModelSpec) -> TextEncoder:
    return TextEncoder(spec)


@pytest.fixture(scope="module")
def reference(spec: ModelSpec) -> Any:
    return AutoTokenizer.from_pretrained(spec.folder, local_files_only=True)


@pytest.fixture(scope="module")
def prompted(spec: ModelSpec) -> TextEncoder:
    return TextEncoder(replace(spec, prompts={"query": "query: ", "document": ""}, default_prompt_name="document"))


def encode(encoder: TextEncoder, *inputs: Input, truncate: bool = True, side: Side = "right") -> list[TokenSequence]:
    """Reads ids as the model's own."""
    return read(encoder, inputs, TextOptions(truncate_side=side, own_ids=True), truncate=truncate)


def test_ids_and_texts_are_joined(encoder: TextEncoder) -> None:
    """Special tokens surround only a text that comes first. The result is read like the ids alone."""
    happy, person = ids_of(encoder, "happy", "person")
    mixed = encode(encoder, ["happy", 5, "person"], [7, "person", 8], [5])
    expected = [[*happy, 5, *person[1:-1]], [7, *person[1:-1], 8], [5]]
    assert [one.ids.tolist() for one in mixed] == expected
    assert [one.length.seen for one in mixed] == [len(ids) for ids in expected]


def test_joined_texts_are_bounded(encoder: TextEncoder) -> None:
    """Many short texts cost no more than one long text, and the error names the input."""
    with pytest.raises(InputTooLong, match="token ids and characters") as refused:
        encode(encoder, "a", [1, *["b"] * 100_000])
    assert (refused.value.index, encoder.max_tokens) == (1, 256)
    with refuses(Untokenizable, index=0):
        encode(encoder, [1, "\ud800"])


def ids_of(encoder: TextEncoder, *inputs: Input, **options: Any) -> list[list[int]]:
    return [encoded.ids.tolist() for encoded in encode(encoder, *inputs, **options)]


def tiny(
    folder: Path, *, max_tokens: int = 8, prefix: str = "[CLS]", suffix: str = "[SEP]", **config: Any
) -> TextEncoder:
    """An encoder over the ten words a to j."""
    write_transformer(folder, **config)
    write_tokenizer(folder / "tokenizer.json", prefix=prefix, suffix=suffix)
    write_json(folder / "tokenizer_config.json", {"model_max_length": max_tokens})
    return TextEncoder(read_spec(Located(folder=folder, model_id="tiny", revision=None, source="folder")))


ODD_TEXTS = [
    "",
    " ",
    "\n\t\r\n",
    "\u3000\u2003",
    "\x00",
    "a" * 1000,
    "." * 400,
    "東" * 400,
    "[CLS] a [SEP]",
    "[PAD]" * 5,
    "\U0010ffff",
    "\ufffe\uffff",
    "word " * 1000,
]


@pytest.mark.parametrize("side", ["right", "left"])
def test_ids_equal_those_of_transformers(encoder: TextEncoder, reference: Any, side: Side) -> None:
    """For texts of any script and length, and either side of truncation."""
    texts = [*varied_texts(180, longest=300), *ODD_TEXTS]
    reference.truncation_side = side
    expected = reference(texts, truncation=True, max_length=encoder.max_tokens)
    whole = reference(texts)["input_ids"]
    for i, encoded in enumerate(encode(encoder, *texts, side=side)):
        assert encoded.ids.tolist() == expected["input_ids"][i], i
        assert encoded.type_ids.tolist() == expected["token_type_ids"][i], i
        assert encoded.length.seen == len(whole[i])
        assert encoded.length.kept == len(encoded.ids) <= encoder.max_tokens
        assert encoded.length.truncated == (len(whole[i]) > encoder.max_tokens)
        assert encoded.ids.dtype == encoded.type_ids.dtype == np.int32


def test_the_file_s_own_truncation_and_padding_are_off(encoder: TextEncoder) -> None:
    """all-MiniLM's tokenizer.json cuts and pads to 128, but the model reads 256, and padding is never computed."""
    short, long = encode(encoder, "word", "word " * 200)
    assert len(short.ids) == 3
    assert len(long.ids) == 202


def test_a_file_that_truncates_at_the_start_is_refused(spec: ModelSpec, tmp_path: Path) -> None:
    """transformers obeys its direction, unless the settings next to it name another."""
    tokenizer = Tokenizer.from_file(str(spec.tokenizer))
    tokenizer.enable_truncation(8, direction="left")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    other = replace(spec, tokenizer=tmp_path / "tokenizer.json")
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path).truncation_side == "left"
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.json: truncation with the direction left"):
        TextEncoder(other)
    config = Settings(spec.folder / "config.json", spec.config, ["truncation_side"])
    assert len(encode(TextEncoder(replace(other, config=config)), "word " * 200)[0].ids) == 202
    write_json(tmp_path / "tokenizer_config.json", {"truncation_side": "right"})
    assert len(encode(TextEncoder(other), "word " * 200)[0].ids) == 202


def test_dropout_of_a_file_is_off(tmp_path: Path) -> None:
    """It would make other tokens of a text each time."""
    tokenizer, text = byte_level(), " ".join(SENTENCES)
    (usual,) = read(make_encoder(tmp_path, tokenizer), [text])
    tokenizer.model.dropout = 0.9
    (other,) = read(make_encoder(tmp_path, tokenizer), [text])
    assert other.ids.tolist() == usual.ids.tolist()


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=400), min_size=1, max_size=5))
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_text_has_the_same_tokens_alone_and_among_others(encoder: TextEncoder, side: Side, texts: list[str]) -> None:
    """In order, and any Unicode text has its special tokens."""
    together = encode(encoder, *texts, side=side)
    assert len(together) == len(texts)
    for text, encoded in zip(texts, together, strict=True):
        (alone,) = encode(encoder, text, side=side)
        assert alone.ids.tolist() == encoded.ids.tolist()
        assert alone.length == encoded.length
        assert (encoded.ids[0], encoded.ids[-1]) == (CLS, SEP)


def test_long_texts_are_rejected_unless_they_may_be_cut(encoder: TextEncoder) -> None:
    """The message has the place, the limit and the size, not the text."""
    with pytest.raises(InputTooLong) as caught:
        read(encoder, ["fits", "secret " * 300], PLAIN, truncate=False)
    assert caught.value.message == "input 1 must have at most 256 tokens; got 302"
    assert (caught.value.field, caught.value.index) == (None, 1)
    (exact,) = encode(encoder, "word " * 254, truncate=False)
    assert (exact.length.seen, exact.length.kept, exact.length.truncated) == (256, 256, False)


def test_a_word_of_10_mb_is_cut_before_it_is_tokenized(encoder: TextEncoder) -> None:
    """The length states the cut; without truncation it is rejected by its characters."""
    word = "a" * 10_000_000
    (encoded,) = encode(encoder, word)
    with pytest.raises(InputTooLong, match="at most 64000 characters; got 10000000"):
        encode(encoder, word, truncate=False)
    assert encoded.length.characters_cut == 10_000_000 - 64_000
    assert encoded.length.truncated


def test_of_an_absurdly_long_text_the_kept_side_is_read(encoder: TextEncoder) -> None:
    """Characters are cut on the same side as tokens."""
    text = "first " + "middle " * 100_000 + "last"
    beginning, end = (encode(encoder, text, side=side)[0] for side in ("right", "left"))
    assert encoder.decode([beginning.ids.tolist()], skip_special_tokens=True)[0].startswith("first middle")
    assert encoder.decode([end.ids.tolist()], skip_special_tokens=True)[0].endswith("middle last")
    assert beginning.length.characters_cut == end.length.characters_cut == len(text) - 64_000


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "ok \ud83d"], ids=ascii)
def test_half_a_surrogate_pair_is_rejected_by_index(encoder: TextEncoder, text: str) -> None:
    """JSON can contain it, but it is not Unicode text."""
    with refuses(Untokenizable, index=2):
        encode(encoder, "fine", "\U0001f600", text)
    with pytest.raises(Untokenizable):
        encoder.tokenize([text], add_special_tokens=True, prompt_name=None)


def test_an_empty_text_has_its_special_tokens(encoder: TextEncoder) -> None:
    """A product may reject it; the model can read it."""
    assert ids_of(encoder, "", " \n", "\x00") == [[CLS, SEP]] * 3


def test_many_texts_are_tokenized_in_groups_and_stay_in_order(encoder: TextEncoder) -> None:
    """Memory follows a group, not the request."""
    texts = ["word " * (i % 40) * 20 + str(i) for i in range(400)]
    together = ids_of(encoder, *texts, side="left")
    assert together == [ids_of(encoder, text, side="left")[0] for text in texts]


JUDGE = YesNo(prefix="<|im_start|>", body="{query} {document}", suffix="<|im_end|>", token_ids=(1, 2))
READERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # facts of the model, and of the request
    "texts": ({}, {}),
    "passages": ({}, {"query": "fox"}),
    "texts of ColBERT": ({"colbert": Colbert(dimensions=8)}, {}),
    "passages of a judge": ({"yes_no": JUDGE}, {"query": "fox"}),
}


@pytest.mark.parametrize("name", READERS)
def test_a_part_of_the_inputs_keeps_its_indexes(name: str, tmp_path: Path) -> None:
    """A long request is read part by part; an error has the index among all inputs."""
    facts, what = READERS[name]
    tokenizer = byte_level(*CHAT_SPECIALS) if "yes_no" in facts else wordpiece()
    encoder = make_encoder(tmp_path, tokenizer, **facts)
    inputs: list[Any] = ["lazy", "dog", "fox", "dog " * 300]
    for each in (inputs, [("the", text) for text in inputs]) if name == "texts" else (inputs,):
        part = read(encoder, each, truncate=False, part=range(1, 3), **what)
        assert [one.ids.tolist() for one in part] == [one.ids.tolist() for one in read(encoder, each[1:3], **what)]
        assert [one.index for one in part] == [1, 2]
        with pytest.raises(InputTooLong, match="input 3") as caught:
            read(encoder, each, truncate=False, part=range(2, 4), **what)
        assert caught.value.index == 3


def test_token_ids_stay_unchanged(encoder: TextEncoder) -> None:
    """No special token is added; texts and ids may be mixed."""
    given_ids, bare, text = encode(encoder, [CLS, 2088, SEP], [2088], "world")
    assert given_ids.ids.tolist() == text.ids.tolist() == [CLS, 2088, SEP]
    assert bare.ids.tolist() == [2088]
    assert bare.type_ids.tolist() == [0]
    assert (bare.length.seen, bare.length.kept) == (1, 1)


@pytest.mark.parametrize("side", ["right", "left"])
def test_long_token_ids_are_cut_or_rejected_like_texts(encoder: TextEncoder, side: Side) -> None:
    """Ids with the model's special tokens keep them."""
    text = " ".join(map(str, range(400)))
    framed = encode(encoder, text, side=side)[0]
    (tokens,) = encoder.tokenize([text], add_special_tokens=True, prompt_name=None)
    whole = [token.id for token in tokens]  # ids beyond the limit, which encode never gives
    taken, bare = encode(encoder, whole, whole[1:], side=side)
    assert taken.ids.tolist() == framed.ids.tolist()
    assert taken.length == framed.length
    assert bare.ids.tolist() == (whole[1:257] if side == "right" else whole[-256:])
    with refuses(InputTooLong, index=0, limit=256, given=len(whole)):
        encode(encoder, whole, truncate=False)


@pytest.mark.parametrize(
    "ids", [[30522], [-1], [5, 2**31], [2**63], [-(2**70)], [10**400]], ids=lambda ids: str(ids)[:12]
)
def test_ids_outside_the_vocabulary_are_rejected(encoder: TextEncoder, ids: list[int]) -> None:
    """The message states the way out, and not the client's value."""
    with pytest.raises(Untokenizable) as caught:
        encode(encoder, "fine", ids)
    assert caught.value.index == 1
    assert "0 to 30521" in caught.value.message
    assert "send text" in caught.value.message
    with pytest.raises(Untokenizable):
        encoder.decode([ids], skip_special_tokens=True)


def test_a_prompt_goes_before_the_text_and_counts(prompted: TextEncoder, encoder: TextEncoder) -> None:
    """The same ids and length as for the joined text."""
    (with_prompt,) = read(prompted, ["cat"], TextOptions(prompt_name="query"), truncate=False)
    (written,) = encode(encoder, "query: cat")
    assert with_prompt.ids.tolist() == written.ids.tolist()
    assert with_prompt.length == written.length
    assert ids_of(prompted, "cat") == ids_of(encoder, "cat")  # its default prompt is empty
    with refuses(InvalidField, field="prompt_name", values={"prompts": "query, document"}):
        read(prompted, ["cat"], TextOptions(prompt_name="nope"), truncate=False)


def test_a_prompt_before_token_ids(prompted: TextEncoder, encoder: TextEncoder) -> None:
    """Ids become text without special tokens, and that gets the prompt."""
    options = TextOptions(prompt_name="query", own_ids=True)
    (encoded,) = read(prompted, [[CLS, 4937, SEP]], options, truncate=False)
    assert encoded.ids.tolist() == ids_of(encoder, "query: cat")[0]
    with pytest.raises(InputTooLong, match="token ids"):
        read(prompted, [[7] * 64_001], options)


def test_tokens_have_byte_offsets_into_the_prompted_text(prompted: TextEncoder) -> None:
    """A token's text is the slice of the UTF-8 bytes; special tokens have no offsets."""
    text = "Größe 東京 👍 e\u0301tude"
    (tokens,) = prompted.tokenize([text], add_special_tokens=True, prompt_name="query")
    data = f"query: {text}".encode()
    assert [(token.text, token.start, token.stop) for token in tokens if token.special] == [
        ("[CLS]", None, None),
        ("[SEP]", None, None),
    ]
    content = [token for token in tokens if not token.special]
    assert content[0].text == "query"
    for token in content:
        assert token.start is not None
        assert data[token.start : token.stop].decode() == token.text
    assert [token.id for token in tokens] == ids_of(prompted, f"query: {text}")[0]
    (bare,) = prompted.tokenize([text], add_special_tokens=False, prompt_name="query")
    assert bare == content


def test_tokenize_is_limited_by_characters(encoder: TextEncoder) -> None:
    """The model's limit does not cut."""
    (tokens,) = encoder.tokenize(["word " * 1000], add_special_tokens=True, prompt_name=None)
    assert len(tokens) == 1002
    with pytest.raises(InputTooLong, match="at most 150000 characters in all; got 150002"):
        encoder.tokenize(["x" * 75_001] * 2, add_special_tokens=True, prompt_name=None)


def test_decode_reverses_encode(encoder: TextEncoder) -> None:
    """With special tokens or without; several lists at once, in order."""
    ids = ids_of(encoder, "hello world", "the cat sat")
    assert encoder.decode(ids, skip_special_tokens=True) == ["hello world", "the cat sat"]
    assert encoder.decode(ids[:1], skip_special_tokens=False) == ["[CLS] hello world [SEP]"]


def test_threads_share_one_encoder(encoder: TextEncoder) -> None:
    """With different sides and lengths at once."""
    texts = varied_texts(60, longest=300)
    expected = {side: ids_of(encoder, *texts, side=side) for side in ("right", "left")}
    wrong: list[str] = []

    def work(side: Side) -> None:
        for _ in range(5):
            if ids_of(encoder, *texts, side=side) != expected[side]:
                wrong.append(side)

    threads = [threading.Thread(target=work, args=(side,)) for side in ("right", "left") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@given(
    inputs=st.lists(
        st.text(max_size=20) | st.lists(st.integers(-5, 40_000) | st.integers(), max_size=5), min_size=1, max_size=4
    ),
    truncate=st.booleans(),
    own_ids=st.booleans(),
)
def test_any_input_is_read_or_rejected(
    encoder: TextEncoder, inputs: Sequence[Input], truncate: bool, own_ids: bool
) -> None:
    """Lone surrogates or ids of any size give tokens in the vocabulary, or a VectordError with an index."""
    try:
        encoded = read(encoder, inputs, TextOptions(own_ids=own_ids), truncate=truncate)
    except VectordError as error:
        assert error.index is not None
        return
    for one in encoded:
        assert 0 < len(one.ids) == len(one.type_ids) <= encoder.max_tokens
        assert one.ids.min() >= 0
        assert one.ids.max() < encoder.vocab_size


@pytest.mark.parametrize(
    ("prefix", "suffix", "expected"),
    [
        ("[CLS]", "[SEP]", {"right": [2, 4, 5, 6, 3], "left": [2, 11, 12, 13, 3]}),
        ("", "[SEP]", {"right": [4, 5, 6, 7, 3], "left": [10, 11, 12, 13, 3]}),
        ("[CLS]", "", {"right": [2, 4, 5, 6, 7], "left": [2, 10, 11, 12, 13]}),
        ("", "", {"right": [4, 5, 6, 7, 8], "left": [9, 10, 11, 12, 13]}),
    ],
    ids=["both", "suffix only, as Qwen3", "prefix only", "none"],
)
def test_special_tokens_stay_after_truncation(
    prefix: str, suffix: str, expected: dict[Side, list[int]], tmp_path: Path
) -> None:
    """A model that pools the last token needs its end-of-text token."""
    encoder = tiny(tmp_path, max_tokens=5, prefix=prefix, suffix=suffix)
    text = " ".join("abcdefghij")
    for side, ids in expected.items():
        assert ids_of(encoder, text, side=side) == [ids]


def xlnet() -> Tokenizer:
    """Special tokens at the end, with their own type."""
    tokenizer = unigram()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A:0 </s>:0 <s>:2", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("make", [*ALL, byte_level, xlnet])
def test_other_kinds_of_tokenizer_are_cut_as_they_cut_themselves(
    make: Callable[[], Tokenizer], side: Side, tmp_path: Path
) -> None:
    """Ids and type ids equal those of the tokenizer's own truncation, which is off because threads share it."""
    write_transformer(tmp_path, vocab_size=None, max_position_embeddings=24)
    own = make()
    own.save(str(tmp_path / "tokenizer.json"))
    encoder = TextEncoder(read_spec(Located(folder=tmp_path, model_id="tiny", revision=None, source="folder")))
    own.enable_truncation(24, direction=side)
    texts = [text for text in [*varied_texts(180, longest=300), *ODD_TEXTS] if own.encode(text).ids]
    for text, encoded in zip(texts, encode(encoder, *texts, side=side), strict=True):
        expected = own.encode(text)
        assert encoded.ids.tolist() == expected.ids
        assert encoded.type_ids.tolist() == expected.type_ids


def test_a_text_without_tokens_is_rejected(tmp_path: Path) -> None:
    """A tokenizer without special tokens has none for an empty text."""
    encoder = tiny(tmp_path, prefix="", suffix="")
    with refuses(Untokenizable, index=1):
        encode(encoder, "a", "  ")


def test_a_tokenizer_larger_than_the_model_s_table_cannot_read_beyond_it(tmp_path: Path) -> None:
    """An id without a row would be read from foreign memory; such texts are rejected, others served."""
    encoder = tiny(tmp_path, vocab_size=len(WORDS) - 2)
    assert encoder.vocab_size == len(WORDS) - 2
    assert ids_of(encoder, "a b") == [[2, 4, 5, 3]]
    with refuses(Untokenizable, index=0, values={"last": 11}):
        encode(encoder, "a j")


@pytest.mark.parametrize("rows", [0, -7, False])
def test_a_table_without_rows_is_refused(rows: int, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="vocab_size"):
        tiny(tmp_path, vocab_size=rows)


def test_a_model_with_more_rows_than_tokens_takes_only_its_tokens(tmp_path: Path) -> None:
    """Rows are often padded to a round number; an id without a token is invalid too."""
    assert tiny(tmp_path, vocab_size=64).vocab_size == len(WORDS)


BROKEN = {
    "empty": ("", ""),
    "cut off": ("{", ""),
    "a list": ("[]", ""),
    "no model": ('{"model": {}}', ""),
    "as `git clone` leaves it without Git LFS": (GIT_LFS_POINTER, ": a pointer of Git LFS"),
}


@pytest.mark.parametrize(("content", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_tokenizer_file_stops_the_start(content: str, reason: str, tmp_path: Path, spec: ModelSpec) -> None:
    """One sentence that names the file."""
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ModelUnavailable, match=rf"tokenizer\.json{reason}"):
        TextEncoder(replace(spec, tokenizer=path))


def test_a_model_may_lowercase_its_texts(tmp_path: Path) -> None:
    """With do_lower_case in sentence_bert_config.json, over a tokenizer of lowercase letters."""
    assert ids_of(tiny(tmp_path), "A b") == [[2, 1, 5, 3]]
    write_json(tmp_path / "sentence_bert_config.json", {"do_lower_case": True})
    assert ids_of(tiny(tmp_path), "A b") == [[2, 4, 5, 3]]


def test_specials_that_fill_the_limit_stop_the_start(tmp_path: Path) -> None:
    """Such a model would give one vector for all texts."""
    with pytest.raises(ModelUnavailable, match="fill all 2 tokens"):
        tiny(tmp_path, max_tokens=2)


@pytest.mark.parametrize("part", ["single", "pair"])
def test_types_without_rows_stop_the_start(part: str, spec: ModelSpec, tmp_path: Path) -> None:
    """One device reads zeros for them, another fails until the process ends."""
    tokenizer = json.loads(spec.tokenizer.read_text())
    for piece in tokenizer["post_processor"][part]:
        for one in piece.values():
            one["type_id"] = 5
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(ModelUnavailable, match="gives tokens the type 5; the model has types below 2"):
        TextEncoder(replace(spec, tokenizer=path, config={**spec.config, "model_type": None}))  # no class


def test_decode_is_bounded(encoder: TextEncoder) -> None:
    """Ids cost a decoder far more than their bytes."""
    with pytest.raises(InputTooLong, match=r"150000 token ids in all; got 150001"):
        encoder.decode([[1], [1] * 150_000], skip_special_tokens=True)


def test_special_ids(encoder: TextEncoder) -> None:
    """Beginnings, ends, padding and unknown; a mask token counts as a word."""
    assert encoder.special_ids.tolist() == [0, 100, CLS, SEP]


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
def test_a_special_token_that_the_settings_add_is_a_word(key: str, spec: ModelSpec, tmp_path: Path) -> None:
    """FlagEmbedding leaves out the weights of beginnings, ends, padding and the unknown token only."""
    tokenizer = Tokenizer.from_file(str(spec.tokenizer))
    tokenizer.add_special_tokens(["[unused5]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", {key: ["[unused5]"]})
    encoder = TextEncoder(replace(spec, tokenizer=tmp_path / "tokenizer.json"))
    assert encoder.special_ids.tolist() == [0, 100, CLS, SEP]


def test_texts_and_pairs_of_texts_may_be_mixed(encoder: TextEncoder) -> None:
    """The sequences have the order of the inputs, in any part of the request."""
    mixed: list[Any] = ["one", ("left", "right"), ("a", "b"), "two", [CLS, 2088, SEP], ("", "x")]
    expected = [sequence for one in mixed for sequence in read(encoder, [one])]
    for part in (range(6), range(1, 4), range(2, 3), range(0)):
        sequences = read(encoder, mixed, part=part)
        assert [one.index for one in sequences] == list(part)
        assert [one.ids.tolist() for one in sequences] == [expected[i].ids.tolist() for i in part]
