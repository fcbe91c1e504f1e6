"""Token limits, options and texts that every way to read a text obeys or refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.refusals import refuses
from tests.text.makers import (
    ALL,
    PLAIN,
    attended,
    byte_level,
    content_of,
    make_encoder,
    prompt_tokens,
    read,
    unigram,
    varied_texts,
    wordpiece,
)
from tokenizers import AddedToken, processors

from vectord.checkpoints.spec import Colbert, YesNo
from vectord.errors import InputTooLong, InvalidField, Untokenizable
from vectord.schema import ChunkOptions, TextOptions
from vectord.text.sequence import QUERY_INDEX, TokenSequence
from vectord.text.tokenizer import TextEncoder

COLBERT = Colbert(dimensions=8, query_prefix="[Q] ", query_length=12, document_length=20, expand_queries=True)
YES_NO = YesNo(
    prefix="<|im_start|>",
    body="{instruction} {query} {document}",
    suffix="<|im_end|>",
    instruction="Judge",
    token_ids=(1, 2),
)


def at_most(max_tokens: int, **options: Any) -> TextOptions:
    return TextOptions(max_tokens=max_tokens, **options)


def bare(**options: Any) -> TextOptions:
    return TextOptions(add_special_tokens=False, **options)


def colbert_encoder(folder: Path) -> TextEncoder:
    tokenizer = wordpiece()
    tokenizer.add_tokens([AddedToken("[Q] ", normalized=True)])
    return make_encoder(folder, tokenizer, colbert=COLBERT)


def yes_no_encoder(folder: Path) -> TextEncoder:
    names = ("<|im_start|>", "<|im_end|>")
    return make_encoder(folder, byte_level(*names), yes_no=YES_NO, max_tokens=200)


class Reader(NamedTuple):
    """A way to read texts. least: the lowest limit of their tokens."""

    make: Callable[[Path], TextEncoder]
    least: int
    of: Callable[[str], Any] = str  # an input
    further: Callable[[TextEncoder], dict[str, Any]] = lambda encoder: {}  # fields of the request

    def read(self, folder: Path, *texts: str, options: TextOptions = PLAIN, **what: Any) -> list[TokenSequence]:
        encoder = self.make(folder)
        return read(encoder, [*map(self.of, texts)], options, **{**self.further(encoder), **what})


def plain_encoder(folder: Path) -> TextEncoder:
    return make_encoder(folder, wordpiece())


def with_query(encoder: TextEncoder) -> dict[str, Any]:
    return {"query": "dog"}


def with_chunks(encoder: TextEncoder) -> dict[str, Any]:
    return {"chunks": [encoder.chunk("fox", ChunkOptions(max_tokens=20))]}


READERS = {
    "texts": Reader(plain_encoder, 3),
    "windows": Reader(plain_encoder, 3, further=with_chunks),
    "passages": Reader(plain_encoder, 5, further=with_query),
    "pairs": Reader(plain_encoder, 5, lambda text: ("dog", text)),
    "texts of ColBERT": Reader(colbert_encoder, 4),
    "passages of a judge": Reader(yes_no_encoder, 3, further=with_query),
}


# --- fewer tokens ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_a_text_is_cut_as_by_a_model_with_that_limit(make: Any, side: Any, tmp_path: Path) -> None:
    """The same ids, lengths and special tokens."""
    most, encoder = make_encoder(tmp_path, make(), max_tokens=9), make_encoder(tmp_path, make(), max_tokens=64)
    texts = [text for text in varied_texts(30) if content_of(encoder, text)]
    expected = read(most, texts, TextOptions(truncate_side=side))
    for one, other in zip(read(encoder, texts, at_most(9, truncate_side=side)), expected, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.type_ids.tolist() == other.type_ids.tolist()
        assert one.length.kept == other.length.kept <= 9
        assert one.length.seen == other.length.seen


def test_a_higher_limit_than_the_model_s_changes_nothing(tmp_path: Path) -> None:
    """Of any size."""
    encoder = make_encoder(tmp_path, wordpiece(), max_tokens=8)
    (one,) = read(encoder, ["dog " * 30], at_most(10**12))
    assert len(one.ids) == 8


def test_without_truncation_the_request_s_limit_rejects(tmp_path: Path) -> None:
    """Texts, ids and pairs; the error has the request's limit."""
    encoder = make_encoder(tmp_path, wordpiece())
    whole = read(encoder, ["dog " * 6], TextOptions(), truncate=False)[0].ids.tolist()
    for value in ("dog " * 6, whole):
        with refuses(InputTooLong, index=0, limit=7, given=8):
            read(encoder, [value], at_most(7), truncate=False)
    with refuses(InputTooLong, index=0, limit=7, given=8):
        read(encoder, ["dog " * 4], at_most(7), query="dog", truncate=False)
    with refuses(InputTooLong, field=None, index=QUERY_INDEX, limit=7, given=9):
        read(encoder, ["dog"], at_most(7), query="dog " * 6, truncate=False)


def test_ids_are_cut_to_the_request_s_limit(tmp_path: Path) -> None:
    """They keep their special tokens."""
    encoder = make_encoder(tmp_path, wordpiece())
    whole = read(encoder, ["dog " * 6], TextOptions(), truncate=False)[0].ids.tolist()
    (one,) = read(encoder, [whole], at_most(5))
    assert one.ids.tolist() == [*whole[:4], whole[-1]]
    assert (one.length.seen, one.length.kept) == (8, 5)


def test_a_pair_is_cut_as_a_whole(tmp_path: Path) -> None:
    """The passage first; of texts that count alike the longer one."""
    most, encoder = make_encoder(tmp_path, wordpiece(), max_tokens=12), make_encoder(tmp_path, wordpiece())
    query, passages = "lazy dog", ["fox", "fox " * 30, ""]
    for got, expected in (
        (
            read(encoder, passages, at_most(12), query=query),
            read(most, passages, TextOptions(), query=query),
        ),
        (
            read(encoder, [("fox " * 9, "dog " * 4)], at_most(12)),
            read(most, [("fox " * 9, "dog " * 4)], TextOptions()),
        ),
    ):
        assert [one.ids.tolist() for one in got] == [one.ids.tolist() for one in expected]
        assert [one.length for one in got] == [one.length for one in expected]


def test_a_pair_in_a_template_is_cut_as_a_whole(tmp_path: Path) -> None:
    """The passage's end first; the template stays."""
    encoder = yes_no_encoder(tmp_path)
    (whole,) = read(encoder, ["fox " * 20], TextOptions(), query="dog")
    (one,) = read(encoder, ["fox " * 20], at_most(15), query="dog")
    assert one.ids.tolist() == [*whole.ids[:14].tolist(), whole.ids[-1]]
    assert (one.length.seen, one.length.kept) == (whole.length.seen, 15)
    assert one.parts[1].truncated
    with refuses(InputTooLong, index=0, limit=15, given=26):
        read(encoder, ["fox " * 20], at_most(15), query="dog", truncate=False)


def test_a_colbert_query_is_cut_and_filled_up(tmp_path: Path) -> None:
    """The limit excludes mask tokens."""
    encoder = colbert_encoder(tmp_path)
    (query,) = read(encoder, ["dog " * 30], at_most(6, kind="query"))
    assert (query.length.kept, attended(query), len(query.ids)) == (6, 6, 12)
    (document,) = read(encoder, ["dog " * 30], at_most(6))
    assert (document.length.seen, document.length.kept, len(document.ids)) == (32, 6, 6)


def test_windows_keep_to_the_request_s_limit(tmp_path: Path) -> None:
    """A window is an input."""
    encoder = make_encoder(tmp_path, wordpiece(), max_tokens=64)
    text = "dog " * 100
    chunks = encoder.chunk(text, ChunkOptions(max_tokens=20))
    windows = read(encoder, [text], at_most(30), chunks=[chunks], truncate=False)
    assert max(len(window.ids) for window in windows) == 30
    with refuses(InputTooLong, index=0, limit=18, given=20):
        read(encoder, [text], at_most(20), chunks=[chunks], truncate=False)


@pytest.mark.parametrize("max_tokens", [-(10**30), -1, 0, 2])
@pytest.mark.parametrize("name", READERS)
def test_a_limit_without_room_for_a_token_of_each_text_is_rejected(name: str, max_tokens: int, tmp_path: Path) -> None:
    """Special tokens alone would be one vector for all texts. The message has the least valid limit."""
    with refuses(InvalidField, field="max_tokens", limit=READERS[name].least):
        READERS[name].read(tmp_path, "fox", options=at_most(max_tokens, kind="query"))


# --- without specials -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_a_text_without_special_tokens(make: Any, tmp_path: Path) -> None:
    """The tokens without the tokenizer's template, as many as the model reads."""
    encoder = make_encoder(tmp_path, make(), max_tokens=16)
    for text in varied_texts(20):
        content = content_of(encoder, text)
        if not content:
            continue
        (one,) = read(encoder, [text], bare())
        assert one.ids.tolist() == content[:16]
        assert one.type_ids.tolist() == [0] * len(one.ids)
        assert (one.length.seen, one.length.kept) == (len(content), min(16, len(content)))
        (left,) = read(encoder, [text], bare(truncate_side="left"))
        assert left.ids.tolist() == content[-16:]


def test_without_specials_one_token_is_enough(tmp_path: Path) -> None:
    """A limit of 0 is not."""
    encoder = make_encoder(tmp_path, wordpiece())
    (one,) = read(encoder, ["lazy dog"], bare(max_tokens=1))
    assert one.ids.tolist() == content_of(encoder, "lazy")
    with refuses(InvalidField, field="max_tokens", limit=1, given=0):
        read(encoder, ["dog"], bare(max_tokens=0))


def test_without_specials_only_the_prompt_is_not_pooled(tmp_path: Path) -> None:
    """All tokens of the text are pooled."""
    encoder = make_encoder(tmp_path, wordpiece(), include_prompt=False)
    (one,) = read(encoder, ["lazy dog"], bare(prompt="fox: "))
    prompt = content_of(encoder, "fox: ")
    assert prompt_tokens(one) == len(prompt)
    assert one.ids[prompt_tokens(one) :].tolist() == content_of(encoder, "lazy dog")


def test_windows_without_specials(tmp_path: Path) -> None:
    """The document's tokens alone, as many as the model reads."""
    encoder = make_encoder(tmp_path, wordpiece(), max_tokens=20)
    text = "dog " * 20
    chunks = encoder.chunk(text, ChunkOptions(max_tokens=18))
    (window,) = read(encoder, [text], bare(), chunks=[chunks], truncate=False)
    assert window.ids.tolist() == content_of(encoder, text)
    assert window.spans.tolist() == [[0, 18], [18, 20]]


def test_the_types_of_special_tokens_go_with_them(tmp_path: Path) -> None:
    """As for XLNet, whose last token has a type of its own."""
    tokenizer = unigram()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A:0 </s>:0 <s>:2", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    encoder = make_encoder(tmp_path, tokenizer)
    (framed,), (one,) = (read(encoder, ["dog"], options) for options in (TextOptions(), bare()))
    assert framed.type_ids.tolist()[-1] == 2
    assert one.type_ids.tolist() == [0] * len(one.ids)


@pytest.mark.parametrize("name", ["passages", "pairs", "texts of ColBERT", "passages of a judge"])
def test_readings_that_need_special_tokens_are_rejected(name: str, tmp_path: Path) -> None:
    """Pairs, ColBERT texts and templates."""
    with refuses(InvalidField, field="add_special_tokens"):
        READERS[name].read(tmp_path, "fox", options=bare())


# --- what no reader takes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in READERS if name != "windows"])
def test_half_a_surrogate_pair_is_rejected_by_index(name: str, tmp_path: Path) -> None:
    """JSON can contain it, but it is not Unicode text."""
    with refuses(Untokenizable, index=1):
        READERS[name].read(tmp_path, "a", "\ud800")


@pytest.mark.parametrize(
    ("name", "field", "place"),
    [
        ("passages", "query", {"index": QUERY_INDEX}),
        ("passages of a judge", "query", {"index": QUERY_INDEX}),
        ("passages of a judge", "instruction", {"field": "instruction"}),
    ],
)
def test_half_a_surrogate_pair_in_a_field_is_rejected(
    name: str, field: str, place: dict[str, Any], tmp_path: Path
) -> None:
    """All inputs share it."""
    with refuses(Untokenizable, **place):
        READERS[name].read(tmp_path, "a", "b", **{field: "\ud800"})


@pytest.mark.parametrize("name", ["passages", "pairs", "passages of a judge"])
@pytest.mark.parametrize("field", ["prompt_name", "prompt"])
def test_prompts_of_pairs_are_rejected(field: str, name: str, tmp_path: Path) -> None:
    """A reranker is trained without prompts, and ignoring one would hide that. Its instruction is a judge's prompt."""
    with refuses(InvalidField, field=field):
        READERS[name].read(tmp_path, "fox", options=TextOptions(**{field: "query"}))


@pytest.mark.parametrize("name", ["windows", "texts of ColBERT", "passages of a judge"])
def test_a_cut_at_the_beginning_is_refused(name: str, tmp_path: Path) -> None:
    """Of a chunk, of a text after its marker, and in a template, whose question stands after the passage."""
    with refuses(InvalidField, field="truncate_side"):
        READERS[name].read(tmp_path, "fox", options=TextOptions(truncate_side="left"))
