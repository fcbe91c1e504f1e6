"""Chunks cover the text, none is too long, and no character, word or sentence is split needlessly."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import refuses
from tests.text.makers import (
    ALL,
    LIGATURE,
    SENTENCES,
    byte_level,
    content_of,
    make_encoder,
    make_spec,
    read,
    roberta,
    unigram,
    varied_texts,
    wordpiece,
)
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from vectord.errors import InputTooLong, InvalidField, ModelCannot, Untokenizable
from vectord.schema import ChunkOptions, Span, TextOptions
from vectord.text.chunks import read_document
from vectord.text.plain import CALL_CHARACTERS, PlainTokenizer
from vectord.text.sequence import Chunk, TokenSequence
from vectord.text.tokenizer import TextEncoder
from vectord.text.truncation import PIECE_CHARACTERS

PLAIN = TextOptions()


@pytest.fixture(scope="module", params=ALL, ids=lambda make: make.__name__)
def encoder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    return make_encoder(tmp_path_factory.mktemp("chunks"), request.param(), max_tokens=64)


def places_of(encoder: TextEncoder, text: str) -> list[tuple[int, int]]:
    """The first character of each token, and the one after its last."""
    (tokens,) = encoder.tokenize([text], add_special_tokens=False, prompt_name=None)
    ends = np.cumsum([0, *(len(character.encode()) for character in text)])
    return [(*np.searchsorted(ends, (token.start, token.stop)).tolist(),) for token in tokens]


def by(kind: Any, max_tokens: int = 20, overlap_tokens: int = 0) -> ChunkOptions:
    return ChunkOptions(by=kind, max_tokens=max_tokens, overlap_tokens=overlap_tokens)


def texts_of(text: str, chunks: list[Chunk]) -> list[str]:
    return [text[chunk.start : chunk.stop] for chunk in chunks]


OPTIONS = st.builds(by, st.sampled_from(["tokens", "sentences"]), st.integers(20, 60), st.integers(0, 10))
TEXTS = st.lists(
    st.sampled_from([*" ".join(SENTENCES).split(), "a" * 90, "東京" * 40, "\U0001f44d" * 9, "end.", "\n\n", " "])
    | st.text(max_size=9)
).map(" ".join)


@given(text=TEXTS, options=OPTIONS)
def test_chunks_cover_the_text(encoder: TextEncoder, text: str, options: ChunkOptions) -> None:
    """Each begins where the one before it ends, or earlier by at most the overlap. Without overlap, every token
    counts once."""
    try:
        chunks = encoder.chunk(text, options)
    except Untokenizable:
        return
    (tokens,) = encoder.count([text])
    assert chunks[0].start == 0
    assert chunks[-1].stop == len(text)
    for chunk in chunks:
        assert chunk.tokens <= options.max_tokens
    assert chunks[0].first == 0
    assert chunks[-1].first + chunks[-1].tokens == tokens
    for before, after in pairwise(chunks):
        assert 0 <= before.first + before.tokens - after.first <= options.overlap_tokens
        assert before.start < after.start <= before.stop < after.stop
    if not options.overlap_tokens:
        assert "".join(texts_of(text, chunks)) == text
        assert sum(chunk.tokens for chunk in chunks) == tokens


@given(text=TEXTS, options=OPTIONS)
def test_chunks_are_cut_between_characters(encoder: TextEncoder, text: str, options: ChunkOptions) -> None:
    """A chunk has only its own characters' tokens, even if one character is many tokens."""
    try:
        chunks = encoder.chunk(text, options)
    except Untokenizable:
        return
    places = places_of(encoder, text)
    for chunk in chunks:
        inside = places[chunk.first : chunk.first + chunk.tokens]
        assert all(chunk.start <= start <= stop <= chunk.stop for start, stop in inside)


def test_chunks_of_tokens_end_at_words(tmp_path: Path) -> None:
    """Unless a word is longer than half a chunk."""
    encoder = make_encoder(tmp_path, wordpiece())
    text = "unbelievably antidisestablishmentarianism extraordinarily " * 6
    chunks = encoder.chunk(text, by("tokens", 40))
    assert all(chunk.endswith(" ") for chunk in texts_of(text, chunks))
    long = "antidisestablishmentarianism" * 3
    parts = texts_of(long, make_encoder(tmp_path, byte_level()).chunk(long, by("tokens")))
    assert len(parts) > 1
    assert "".join(parts) == long


def test_a_chunk_has_as_many_whole_sentences_as_fit(tmp_path: Path) -> None:
    """A sentence that does not fit is cut by tokens."""
    encoder = make_encoder(tmp_path, wordpiece())
    short, long = "The fox. ", "The dog " * 20 + ". "
    text = short * 10 + long + short * 3
    chunks = texts_of(text, encoder.chunk(text, by("sentences")))  # 3 tokens a sentence, 41 the long one
    assert chunks[:2] == [short * 6, short * 4]
    assert "".join(chunks[2:5]).startswith("The dog ")
    assert chunks[-1].endswith(short)


def test_overlap_is_of_words_or_of_whole_sentences(tmp_path: Path) -> None:
    """The overlap is as long as overlap_tokens allows; there is none if no sentence fits."""
    encoder = make_encoder(tmp_path, wordpiece())
    text = "The fox. " * 20
    words, sentences, none = (
        texts_of(text, encoder.chunk(text, options))
        for options in (by("tokens", 20, 4), by("sentences", 20, 5), by("sentences", 20, 2))
    )
    assert words[0] == "The fox. " * 6 + "The fox"  # 20 tokens
    assert words[1].startswith("fox. The fox. The")  # of which the last 4 are here, too
    assert sentences[:2] == ["The fox. " * 6] * 2
    assert len(sentences) == 4
    assert none == ["The fox. " * 6] * 3 + ["The fox. " * 2]


def test_a_character_of_many_tokens_is_not_split(tmp_path: Path) -> None:
    """A ligature is 18 letters under NFKC, so a chunk has at least 20 tokens."""
    encoder = make_encoder(tmp_path, unigram())
    chunks = encoder.chunk(LIGATURE * 20, by("tokens", 20))
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(i, i + 1) for i in range(20)]


def test_overlap_is_never_a_whole_chunk(tmp_path: Path) -> None:
    """A short chunk before a long sentence is not read again from its beginning."""
    encoder = make_encoder(tmp_path, wordpiece())
    sentences = ["The " * 19 + ". ", "The fox. ", "The dog. ", "The " * 16 + ". "]  # 20, 3, 3 and 17 tokens
    text = "".join(sentences)
    chunks = texts_of(text, encoder.chunk(text, by("sentences", 20, 10)))
    assert chunks == [sentences[0], "The fox. The dog. ", "The dog. " + sentences[3]]


def test_a_character_of_several_bytes_is_not_split(tmp_path: Path) -> None:
    """Whether it is several tokens, or shares a token with the next character."""
    encoder = make_encoder(tmp_path, byte_level())
    assert {chunk.tokens for chunk in encoder.chunk("\U0001f44d" * 30, by("tokens", 22))} == {20}
    bytewise = byte_level()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*letters, "\xa9\xc3"])}
    bytewise.model = models.BPE(vocabulary, [("\xa9", "\xc3")])
    encoder = make_encoder(tmp_path, bytewise)
    text = "\xe9\xe8" * 12  # bytes c3 a9 c3 a8: three tokens, the middle one of both letters
    assert {chunk.tokens for chunk in encoder.chunk(text, by("tokens", 20))} == {18}


def test_trailing_spaces_are_not_a_chunk(tmp_path: Path) -> None:
    """RoBERTa has a token without characters for the last space."""
    encoder = make_encoder(tmp_path, roberta())
    for words in range(15, 45):
        text = "x " * words
        chunks = encoder.chunk(text, by("tokens", 20))
        assert all(texts_of(text, chunks))
        assert chunks[-1].stop == len(text)


@pytest.mark.parametrize("text", ["", " \n ", "\t"], ids=ascii)
def test_a_text_without_tokens_is_a_chunk(tmp_path: Path, text: str) -> None:
    """Every passage must have a score; it is read as an empty text, by its special tokens."""
    encoder = make_encoder(tmp_path, wordpiece())
    chunks = encoder.chunk(text, by("tokens"))
    assert chunks == [Chunk(0, len(text), 0, 0)]
    (window,) = read(encoder, [text], PLAIN, chunks=[chunks], truncate=False)
    assert (window.ids.tolist(), window.spans.tolist()) == ([2, 3], [[0, 2]])
    without = make_encoder(tmp_path, byte_level())
    with pytest.raises(Untokenizable, match=r"input 0 has no tokens"):
        read(without, [""], PLAIN, chunks=[without.chunk("", by("tokens"))], truncate=False)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (by("tokens", 19), "chunk.max_tokens"),
        (by("tokens", 63), "chunk.max_tokens"),
        (by("tokens", 20, 11), "chunk.overlap_tokens"),
        (by("tokens", 20, -1), "chunk.overlap_tokens"),
    ],
)
def test_options_out_of_bounds_are_rejected(tmp_path: Path, options: ChunkOptions, field: str) -> None:
    """Chunks must fit the model with its special tokens, and overlap is at most half a chunk."""
    encoder = make_encoder(tmp_path, wordpiece(), max_tokens=64)
    with refuses(InvalidField, field=field):
        encoder.chunk("dog", options)
    assert encoder.chunk("dog", by("tokens", 62, 31)) == [Chunk(0, 3, 0, 1)]


def test_a_document_may_be_too_long_or_unreadable(tmp_path: Path) -> None:
    """The caller adds the field and the index."""
    encoder = make_encoder(tmp_path, wordpiece())
    with pytest.raises(InputTooLong, match=r"the input must have at most 2000000 characters; got 2000001"):
        encoder.chunk("x" * 2_000_001, by("tokens"))
    with pytest.raises(Untokenizable, match=r"the input is not Unicode"):
        encoder.chunk("\ud800", by("tokens"))


@pytest.mark.parametrize("kind", ["tokens", "sentences"])
def test_a_document_of_too_many_chunks_is_tokenized_up_to_them(tmp_path: Path, kind: str) -> None:
    """The caller refuses it. All tokens of 2 MB of short sentences took 2 s of a thread, after which it was refused."""
    encoder = make_encoder(tmp_path, wordpiece())
    chunks = encoder.chunk("A. " * 500_000, by(kind, 20, 10), 5)
    assert len(chunks) > 5
    assert chunks[-1].stop <= CALL_CHARACTERS
    short = "The fox. " * 100
    whole = encoder.chunk(short, by(kind, 20, 10))
    for most in (1, len(whole) - 1, len(whole)):
        assert encoder.chunk(short, by(kind, 20, 10), most) == whole


# --- chunks of the caller's own -----------------------------------------------------------------------------------


def spans(*places: tuple[int, int]) -> list[Span]:
    return [Span(*place) for place in places]


WORDS = "jumps over a lazy dog while many small birds sing  "


def test_the_client_s_chunks_have_their_own_tokens(encoder: TextEncoder) -> None:
    """Without the space at their end, which some tokenizers make part of the next word."""
    own = spans((0, 6), (6, 13), (13, 18), (18, 28), (28, 51))
    chunks = encoder.chunk(WORDS, own)
    assert [Span(chunk.start, chunk.stop) for chunk in chunks] == own
    places = places_of(encoder, WORDS)
    owned = []
    for chunk in chunks:
        inside = range(chunk.first, chunk.first + chunk.tokens)
        assert all(places[i][0] < chunk.stop and places[i][1] > chunk.start for i in inside)
        owned += inside
    assert owned == sorted(set(owned))
    for i in set(range(len(places))) - set(owned):
        assert not WORDS[slice(*places[i])].strip()


def test_a_word_in_two_chunks_has_its_tokens_in_both(tmp_path: Path) -> None:
    """A cut through a token includes it twice: half a token has no row."""
    encoder = make_encoder(tmp_path, wordpiece())
    chunks = encoder.chunk("lazy dog", spans((0, 2), (2, 8)))
    assert [(chunk.first, chunk.tokens) for chunk in chunks] == [(0, 1), (0, 2)]


def test_text_between_the_chunks_is_read_but_not_pooled(tmp_path: Path) -> None:
    """The model reads the whole document."""
    encoder = make_encoder(tmp_path, wordpiece())
    text = "dog fox dog fox dog"
    chunks = encoder.chunk(text, spans((4, 7), (12, 15)))
    assert [(chunk.first, chunk.tokens) for chunk in chunks] == [(1, 1), (3, 1)]
    (window,) = read(encoder, [text], PLAIN, chunks=[chunks], truncate=False)
    assert window.ids.tolist() == read(encoder, [text], PLAIN, truncate=False)[0].ids.tolist()
    assert window.spans.tolist() == [[2, 3], [4, 5]]


def test_windows_read_the_context_of_each_chunk(tmp_path: Path) -> None:
    """A quarter of a window before it, and the text after it up to the window's end."""
    encoder = make_encoder(tmp_path, wordpiece(), max_tokens=42)
    text = "dog " * 500
    chunks = encoder.chunk(text, spans((800, 808), (1996, 1999)))
    first, second = read(encoder, [text], PLAIN, chunks=[chunks], truncate=False)
    assert (len(first.ids), first.spans.tolist()) == (42, [[11, 13]])
    assert (len(second.ids), second.spans.tolist()) == (13, [[11, 12]])


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=8))
def test_any_spans_are_found_in_their_windows_or_rejected(encoder: TextEncoder, text: str, cuts: list[int]) -> None:
    """Every chunk has rows of a window, and those rows are its tokens."""
    places = sorted({cut for cut in cuts if cut <= len(text)})
    own = spans(*pairwise(places))
    if not own:
        return
    try:
        chunks = encoder.chunk(text, own)
        windows = read(encoder, [text], PLAIN, chunks=[chunks], truncate=False)
    except (InvalidField, InputTooLong, Untokenizable):
        return
    rows = [window.ids[start:stop].tolist() for window in windows for start, stop in window.spans]
    if ids := content_of(encoder, text):
        assert rows == [ids[chunk.first : chunk.first + chunk.tokens] for chunk in chunks]
        assert all(rows)
    assert all(len(window.ids) <= 64 for window in windows)


def test_a_chunk_without_tokens_is_rejected(tmp_path: Path) -> None:
    """Unless the whole document has none: then it is read as an empty text."""
    encoder = make_encoder(tmp_path, wordpiece())
    text = "dog   fox"
    chunks = encoder.chunk(text, spans((0, 3), (4, 6), (6, 9)))
    assert [chunk.tokens for chunk in chunks] == [1, 0, 1]
    with pytest.raises(InvalidField, match=r"input 0 has no tokens in its chunk 1") as refused:
        read(encoder, [text], PLAIN, chunks=[chunks], truncate=False)
    assert (refused.value.field, refused.value.index) == (None, 0)
    (window,) = read(encoder, ["    "], PLAIN, chunks=[encoder.chunk("    ", spans((0, 1), (2, 4)))], truncate=False)
    assert window.spans.tolist() == [[0, 2], [0, 2]]


def test_a_chunk_that_does_not_fit_is_rejected(tmp_path: Path) -> None:
    """The error has the document's index."""
    encoder = make_encoder(tmp_path, wordpiece(), max_tokens=20)
    text = "dog " * 30
    chunks = encoder.chunk(text, spans((0, 4), (4, 120)))
    with pytest.raises(InputTooLong, match=r"input 0 has 29 tokens in its chunk 1.*; 18 are read") as refused:
        read(encoder, [text], PLAIN, chunks=[chunks], truncate=False)
    assert (refused.value.limit, refused.value.given) == (18, 29)
    assert refused.value.message.endswith("prompt. Make the chunk shorter, or set `truncate`")


def test_a_chunk_that_does_not_fit_is_cut_on_request(tmp_path: Path) -> None:
    """Its first tokens are read; the lengths state the cut."""
    encoder = make_encoder(tmp_path, wordpiece(), max_tokens=20)
    text = "dog " * 30 + "fox fox"
    chunks = encoder.chunk(text, spans((0, 4), (4, 120), (120, 127)))
    windows = read(encoder, [text], PLAIN, chunks=[chunks])
    assert [(stop - start) for window in windows for start, stop in window.spans] == [1, 18, 2]
    lengths = [window.length for window in windows]
    assert (sum(length.seen for length in lengths), sum(length.kept for length in lengths)) == (34, 23)


@pytest.mark.parametrize("words", [1, 62, 100, 300])
def test_shared_tokens_of_windows_count_once(tmp_path: Path, words: int) -> None:
    """A document's length does not depend on its windows."""
    encoder = make_encoder(tmp_path, wordpiece(), max_tokens=64)
    text = "dog " * words
    chunks = encoder.chunk(text, by("tokens", 20))
    windows = read(encoder, [text], PLAIN, chunks=[chunks], truncate=False)
    lengths = [window.length for window in windows]
    assert {(length.seen, length.kept) for length in lengths} == {(length.kept, length.kept) for length in lengths}
    assert sum(length.seen for length in lengths) == words + 2
    assert (sum(len(window.ids) for window in windows) > words + 2) == (words > 62)


# --- reading a document -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_a_long_document_has_the_same_tokens_in_pieces(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    """Also the same offsets."""
    text = " ".join(varied_texts(700, longest=60))
    assert len(text) > 3 * PIECE_CHARACTERS
    tokenizer, path = make(), tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    whole = tokenizer.encode(text, add_special_tokens=False)
    document = read_document(PlainTokenizer(make_spec(path)), text)
    assert document.ids.tolist() == whole.ids
    starts, stops = np.array(whole.offsets).T
    assert document.stops.tolist() == stops.tolist()
    early = np.flatnonzero(document.starts != starts)  # RoBERTa's offsets have the blank before a text's first word
    assert len(early) <= len(text) // PIECE_CHARACTERS * 2
    assert (starts[early] - document.starts[early] == 1).all()


# --- late chunking ----------------------------------------------------------------------------------------------


@given(text=TEXTS, options=OPTIONS.filter(lambda options: options.max_tokens <= 40), prompted=st.booleans())
def test_late_chunks_are_found_in_their_windows(
    encoder: TextEncoder, text: str, options: ChunkOptions, prompted: bool
) -> None:
    """The spans, in order, hold the chunks' own tokens; every window has frame and prompt, and is within the limit."""
    try:
        chunks = encoder.chunk(text, options)
        windows = read(
            encoder, [text], TextOptions(prompt="fox: " if prompted else None), chunks=[chunks], truncate=False
        )
    except Untokenizable:
        return
    ids = content_of(encoder, text)
    rows = [window.ids[start:stop].tolist() for window in windows for start, stop in window.spans]
    assert len(rows) == len(chunks)
    if ids:
        assert rows == [ids[chunk.first : chunk.first + chunk.tokens] for chunk in chunks]
    fox, framed = content_of(encoder, "fox"), read(encoder, ["fox"])[0].ids.tolist()
    first = framed.index(fox[0])
    before, suffix = framed[:first] + (content_of(encoder, "fox:") if prompted else []), framed[first + len(fox) :]
    if ids:
        assert windows[0].spans[0, 0] == len(before)  # the prompt's last blank is the text's
    for window in windows:
        assert len(window.ids) == len(window.type_ids) <= 64
        assert window.ids[: len(before)].tolist() == before
        assert window.ids[len(window.ids) - len(suffix) :].tolist() == suffix


def windows_of(
    encoder: TextEncoder, text: str, options: ChunkOptions, prompt: str | None = None
) -> list[TokenSequence]:
    return read(encoder, [text], TextOptions(prompt=prompt), chunks=[encoder.chunk(text, options)], truncate=False)


def test_chunks_that_do_not_fit_with_a_prompt_are_rejected(tmp_path: Path) -> None:
    """So is a prompt that leaves no room."""
    encoder = make_encoder(tmp_path, wordpiece(), max_tokens=64)
    with pytest.raises(InputTooLong, match=r"input 0 has 62 tokens in its chunk 0.*; 52 are read at once"):
        windows_of(encoder, "dog " * 99, by("tokens", 62), prompt="fox " * 10)
    for text in ("dog", ""):
        with pytest.raises(InputTooLong, match=r"; 0 are read at once, .* prompt. Make the prompt shorter"):
            windows_of(encoder, text, by("tokens", 62), prompt="fox " * 99)


def test_a_model_with_types_cannot_chunk_late(tmp_path: Path) -> None:
    """Such as XLNet: zeros would be wrong."""
    tokenizer = unigram()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A:0 </s>:0 <s>:2", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    with pytest.raises(ModelCannot):
        windows_of(make_encoder(tmp_path, tokenizer), "dog", by("tokens"))
