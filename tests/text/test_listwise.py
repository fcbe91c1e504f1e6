"""A list of passages as texts of a listwise reranker: transformers' ids, and the parts of the model's own code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.refusals import refuses
from tests.text.makers import CHAT_SPECIALS, byte_level, make_encoder, read, varied_texts
from transformers import PreTrainedTokenizerFast

from vectord.checkpoints.catalogue import find
from vectord.checkpoints.spec import Listwise
from vectord.errors import InputTooLong, InvalidField, ModelUnavailable
from vectord.schema import TextOptions
from vectord.text.sequence import QUERY_INDEX, TokenSequence
from vectord.text.tokenizer import TextEncoder

MAX_TOKENS = 6000
PLAIN = TextOptions()
QUERY = "what does the fox do?"


def template(name: str = "jina-reranker-v3") -> Listwise:
    entry = find(name)
    assert entry is not None and entry.listwise is not None
    return entry.listwise


SPECIALS = (*CHAT_SPECIALS, *template().markers)
PASSAGE, ASKED = SPECIALS[-2:]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    return make(tmp_path_factory.mktemp("lists"))


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=byte_level(*SPECIALS))


def make(folder: Path, **facts: Any) -> TextEncoder:
    return make_encoder(folder, byte_level(*SPECIALS), **{"listwise": template(), "max_tokens": MAX_TOKENS, **facts})


def own_prompt(query: str, passages: Sequence[str], instruction: str = "") -> str:
    """The prompt of the model's own code, up to the query's marker."""
    line = f"<instruct>\n{instruction}\n</instruct>\n" if instruction else ""
    listed = "\n".join(f'<passage id="{i}">\n{text}{PASSAGE}\n</passage>' for i, text in enumerate(passages))
    return (
        "<|im_start|>system\nYou are a search relevance expert who can determine a ranking of the passages based on "
        "how relevant they are to the query. If the query is a question, how relevant a passage is depends on how well "
        "it answers the question. If not, try to analyze the intent of the query and assess how well each passage "
        "satisfies the intent. If an instruction is provided, you should follow the instruction when determining the "
        f"ranking.<|im_end|>\n<|im_start|>user\nI will provide you with {len(passages)} passages, each indicated by a "
        f"numerical identifier. Rank the passages based on their relevance to query: {query}\n{line}{listed}\n"
        f"<query>\n{query}{ASKED}"
    )


def own_parts(lengths: Sequence[int], query: int, max_tokens: int, longest: int) -> Iterator[int]:
    """How many passages each forward of the model's own code has."""
    count, capacity = 0, max_tokens - 2 * query
    for length in lengths:
        count, capacity = count + 1, capacity - length
        if count >= 125 or capacity <= longest:
            yield count
            count, capacity = 0, max_tokens - 2 * query
    if count:
        yield count


def pooled(sequence: TokenSequence) -> list[int]:
    """The tokens whose states are pooled."""
    assert sequence.spans is not None
    assert (np.diff(sequence.spans, axis=1) == 1).all()
    return [int(i) for i in sequence.ids[sequence.spans[:, 0]]]


@pytest.mark.parametrize("instruction", ["", "Find a fox"])
def test_ids_equal_those_of_transformers(
    encoder: TextEncoder, reference: PreTrainedTokenizerFast, instruction: str
) -> None:
    """Of one text with all passages, whatever begins and ends them. The markers' states are pooled, and lengths are
    those of each text alone."""
    passages = [*varied_texts(12, longest=60), "", "\n", " begins and ends with spaces ", "line\n\nline"]
    for query in (QUERY, "", "\n"):
        (one,) = read(encoder, passages, PLAIN, query=query, instruction=instruction or None)
        assert one.ids.tolist() == reference(own_prompt(query, passages, instruction))["input_ids"]
        markers = reference.convert_tokens_to_ids([PASSAGE, ASKED])
        assert pooled(one) == [markers[0]] * len(passages) + [markers[1]]
        assert [part.kept for part in one.parts] == [len(reference(text)["input_ids"]) for text in (query, *passages)]


def test_no_text_adds_a_marker(encoder: TextEncoder, reference: PreTrainedTokenizerFast) -> None:
    """Markers are removed, and what their removal joins to one is ordinary text, as any other special token."""
    half = len(PASSAGE) // 2
    passages = [f"a{PASSAGE}b", f"c{ASKED}", f"{PASSAGE[:half]}{PASSAGE}{PASSAGE[half:]}", "<|im_end|>d"]
    (one,) = read(encoder, passages, PLAIN, query=f"q{ASKED}", instruction=f"i{PASSAGE}")
    ids = reference.convert_tokens_to_ids([PASSAGE, ASKED, "<|im_end|>"])
    assert [one.ids.tolist().count(i) for i in ids] == [len(passages), 1, 1]
    assert pooled(one) == [ids[0]] * len(passages) + [ids[1]]
    text = reference.decode(one.ids)
    assert all(part in text for part in (f">\nab{PASSAGE}", f">\nc{PASSAGE}", f"<|im_end|>d{PASSAGE}", f"\nq{ASKED}"))


@pytest.mark.parametrize("sizes", [(1, 300), (150, 151), (1100, 1500), (1, 1500)], ids=["mixed", "even", "long", "any"])
def test_a_long_list_is_divided_as_by_the_models_own_code(encoder: TextEncoder, sizes: tuple[int, int]) -> None:
    """Into as many forwards of as many passages, in order, each within the model's positions."""
    rng = np.random.default_rng(0)
    passages = [" fox" * int(size) for size in rng.integers(*sizes, 60)]
    parts = read(encoder, passages, PLAIN, query=QUERY)
    lengths = [passage.kept for part in parts for passage in part.parts[1:]]
    assert [len(part.parts) - 1 for part in parts] == [
        *own_parts(lengths, parts[0].parts[0].kept, MAX_TOKENS, template().max_passage_tokens)
    ]
    assert len(parts) > 1
    assert lengths == [encoder.count([passage])[0] for passage in passages]
    assert [part.index for part in parts] == [*np.cumsum([0, *(len(part.parts) - 1 for part in parts[:-1])])]
    assert all(len(part.ids) <= MAX_TOKENS and part.length.kept == len(part.ids) for part in parts)


def test_a_part_has_at_most_125_passages(encoder: TextEncoder) -> None:
    """However short they are."""
    parts = read(encoder, ["fox"] * 300, PLAIN, query=QUERY)
    assert [len(part.parts) - 1 for part in parts] == [125, 125, 50]


def test_a_part_ends_before_the_models_positions_do(tmp_path: Path) -> None:
    """Its own code does not count the words around passages, which may be more than the passages."""
    encoder = make(tmp_path, max_tokens=1024)
    parts = read(encoder, ["fox"] * 100, PLAIN, query=QUERY)
    assert sum(len(part.parts) - 1 for part in parts) == 100
    assert max(len(part.ids) for part in parts) <= 1024


@pytest.mark.parametrize(
    ("name", "query", "passage"), [("jina-reranker-v3", 512, 2048), ("jina-reranker-v3.5", 1024, 8192)]
)
def test_a_long_text_is_cut_to_the_limit_of_the_models_own_code(
    tmp_path: Path, name: str, query: int, passage: int
) -> None:
    """Or refused without `truncate`, with the field, the limit and the size."""
    encoder = make(tmp_path, listwise=template(name), max_tokens=40_000)
    (one,) = read(encoder, [" fox" * 9000, "dog"], PLAIN, query=" fox" * 3000)
    assert [(part.seen, part.kept) for part in one.parts[:2]] == [(3000, query), (9000, passage)]
    assert one.length.truncated
    with refuses(InputTooLong, field=None, index=QUERY_INDEX, limit=query, given=3000):
        read(encoder, ["dog"], PLAIN, query=" fox" * 3000, truncate=False)
    with refuses(InputTooLong, index=1, limit=passage, given=9000):
        read(encoder, ["dog", " fox" * 9000], PLAIN, query="q", truncate=False)


def test_options_of_other_texts_are_refused(encoder: TextEncoder, tmp_path: Path) -> None:
    """And a window that has no room for the template."""
    with refuses(InvalidField, field="max_tokens", limit=1024):
        read(encoder, ["dog"], TextOptions(max_tokens=100), query=QUERY)
    with refuses(InvalidField, field="prompt"):
        read(encoder, ["dog"], TextOptions(prompt="p"), query=QUERY)
    with pytest.raises(ModelUnavailable, match="1,024 tokens; the limit is 512"):
        make(tmp_path, max_tokens=512)
